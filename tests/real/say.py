"""`stoker` commands, run in this process against a cluster of a test's own."""

import json

from click.testing import CliRunner, Result

from stoker.cli.main import root


class Say:
    """`say("list", "--json")` runs a command in this process."""

    def __init__(self, url: str, token: str = "") -> None:
        self._environ = {"STOKER_SERVER": url, **({"STOKER_TOKEN": token} if token else {})}

    def __call__(self, *words: str) -> Result:
        done = CliRunner().invoke(root, words, env=self._environ, prog_name="stoker")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done

    def submit(self, *words: str) -> str:
        done = self("submit", *words)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    def json(self, *words: str) -> dict[str, object]:
        done = self(*words, "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found
