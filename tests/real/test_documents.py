"""Pages are followed by people line by line, so a test follows them too.

Rules: G1  every indented block of a page is a piece of one shell script, run from top to bottom with `stoker` on PATH,
           a fresh cluster behind STOKER_SERVER and a folder of its own
       G2  a command that fails ends the script, unless the page itself says `|| true`
       G3  what needs a machine of one's own (root, systemd, a second terminal) stands below `<!-- not run: why -->`,
           which holds for the block that follows, or for the page when it is the first line
       G4  a page that speaks of `stoker up --nodes 3` gets three nodes
       G5  every YAML file that a page shows is one that `stoker doctor` takes
       G6  the ports and the data folder that a page names as people have them are those of its cluster
       G7  a page of which nothing is run is listed below, and has a note that says why
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.wire.client import Client
from tests.programs import skip_without
from tests.real.forks import on_path, requests_to
from tests.real.up_process import UpProcess, environment, run, until

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
NOT_RUN = "<!-- not run: "


def script_of(page: str) -> str:
    """G1, G3."""
    if page.startswith(NOT_RUN):
        return ""
    lines: list[str] = []
    skips = fenced = False
    inside = False
    for line in page.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith(NOT_RUN):
            skips = True
        elif line.startswith("    ") and not fenced:
            inside = True
            if not skips:
                lines.append(line[4:])
        elif line.strip() and inside:
            inside = skips = False
    return "\n".join(lines)


def test_a_block_that_says_so_is_left_out_and_only_that_one() -> None:
    skipped = "<!-- not run: needs root -->\n\n    three\n\n"
    page = f"text\n\n    one\n\n    two\n\n{skipped}text\n\n```\n    four\n```\n\n    five\n"
    assert script_of(page) == "one\ntwo\nfive"
    assert script_of("<!-- not run: needs root -->\n\n    one\n\ntext\n\n    two\n") == ""


SCRIPTS = {page.relative_to(ROOT).as_posix(): script_of(page.read_text(encoding="utf-8")) for page in PAGES}
NOTHING_RUN = {
    "docs/howto/ask-a-pair.md",
    "docs/howto/choose-a-store.md",
    "docs/howto/recover-a-damaged-log.md",
    "docs/howto/run-as-daemons.md",
    "docs/howto/set-up-a-pair.md",
    "docs/howto/use-the-web-page.md",
}
"""G7."""


def test_a_page_of_which_nothing_is_run_is_known_and_says_why() -> None:
    assert {page for page, script in SCRIPTS.items() if not script} == NOTHING_RUN
    assert [page for page in sorted(NOTHING_RUN) if NOT_RUN not in (ROOT / page).read_text(encoding="utf-8")] == []


LONG = ("run-many-jobs", "select-nodes", "share-between-teams", "ten-errands", "use-from-python")
"""Pages whose lines take many seconds: hundreds of jobs, dozens of commands, a real PyTorch."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.heavy if Path(page).stem in LONG else ())
        for page in sorted(SCRIPTS.keys() - NOTHING_RUN)
    ],
)
def test_a_page_can_be_followed_line_by_line(page: str, tmp_path: Path) -> None:
    script = SCRIPTS[page]
    assert script, "there is nothing to follow"
    for program in ("curl", "torchrun"):
        if program in script:
            skip_without(program)
    folder = tmp_path / "here"
    folder.mkdir()
    command = tmp_path / "bin" / "stoker"
    asks = on_path(command)
    nodes = next(iter(re.findall(r"`stoker up --nodes (\d+)`", (ROOT / page).read_text(encoding="utf-8"))), "2")
    data_dir = tmp_path / "data"
    with UpProcess(tmp_path, "--nodes", nodes, data_dir=data_dir) as up, Client(up.url) as client:
        until(lambda: client.status().online_nodes == int(nodes), what=f"{nodes} nodes")
        # G6
        script = script.replace("http://127.0.0.1:8080", up.url).replace("127.0.0.1:9090", f"127.0.0.1:{up.grpc_port}")
        script = re.sub(r"/var/lib/stoker\b(?!-)", str(data_dir / "control"), script)
        path = f"{command.parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment(tmp_path, STOKER_SERVER=up.url, PATH=path, **asks),
            pass_fds=[requests_to()],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )
    assert done.returncode == 0, f"{script}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


SETTINGS = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("page", "block"), SETTINGS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(SETTINGS)])
def test_settings_that_a_page_shows_are_accepted(page: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(block, encoding="utf-8")
    done = run(tmp_path, "doctor", "--settings", "-c", str(file))
    assert done.returncode == 0, (page, done.stderr)
