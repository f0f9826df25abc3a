"""A person is told about a job: from the command line to a webhook, with the words that `status` then has."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.real.up_process import UpProcess, run, until


@contextmanager
def heard_posts() -> Iterator[tuple[str, list[bytes]]]:
    """A webhook on this machine, and the bodies that it was sent."""
    heard: list[bytes] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Webhook) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", heard
        finally:
            server.shutdown()
            serving.join()


def test_a_job_that_fails_tells_a_webhook_once_and_status_says_so(tmp_path: Path) -> None:
    with heard_posts() as (url, heard):
        env = {"STOKER__NOTIFY__WEBHOOKS": f"team={url}/hook"}
        with UpProcess(tmp_path, "--nodes", "1", env=env) as up:
            said = ("--server", up.url)
            words = ("submit", "--notify", "end,fail", "--notify-to", "team", "--env", "TOKEN=hunter2", "--", "false")
            done = run(tmp_path, *said, *words)
            assert done.returncode == 0, done.stderr
            job = done.stdout.strip()
            status = until(lambda: _notified(tmp_path, up.url, job), what="a notice that has arrived")
            refused = run(tmp_path, *said, "submit", "--notify", "end", "--notify-to", "webhook:teem", "--", "true")
    (post,) = heard
    assert "fail to webhook:team at " in status
    assert f"job {job} false failed after " in json.loads(post)["text"]
    assert "exited with code 1" in json.loads(post)["text"]
    assert b"hunter2" not in post
    assert refused.returncode == 4
    assert "did you mean `team`?" in refused.stderr


def _notified(folder: Path, url: str, job: str) -> str | None:
    shown = run(folder, "--server", url, "status", job).stdout
    return shown if "notified" in shown and "on its way" not in shown else None
