"""Pictures of the web pages under docs/images, taken in a real Chromium from a cluster of this machine.

`python -m tools.web_screenshots [FOLDER]` starts `stoker up` with simulated GPUs, gives it a mixed queue of real
processes, looks at each page, wide and on a phone, light and dark, and writes a JPEG of each.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from playwright.sync_api import Browser, sync_playwright

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.tenant import NewTenantBody

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
HTTP_PORT, GRPC_PORT = 18_980, 18_990
NODES, GPUS = 6, 8
START_S: Final = 60.0
SETTLE_S: Final = 40.0
"""So that bars have a length and figures were told."""
QUALITY: Final = 72
CHROMIUMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
TRAINING: Final = (
    "i=0; while sleep 0.4; do i=$((i + 1)); printf 'step %5d  loss \\033[32m1.%03d\\033[0m  lr 3e-4\\n' "
    "$i $((900 - i)); done"
)


class Shot(NamedTuple):
    """One picture."""

    name: str
    path: str
    dark: bool = False
    phone: bool = False
    press: str = ""
    """Selector of what is clicked first."""
    several: bool = False
    """Of the control plane that shows several clusters."""


SHOTS: Final = (
    Shot("cluster-wide-light", "/"),
    Shot("cluster-wide-dark", "/", dark=True, press="[data-colour=tenant]"),
    Shot("cluster-phone-dark", "/", dark=True, phone=True),
    Shot("queue-wide-light", "/queue"),
    Shot("queue-phone-light", "/queue", phone=True),
    Shot("job-wide-dark", "/jobs/1", dark=True),
    Shot("why-wide-light", "/jobs/{waiting}"),
    Shot("nodes-wide-light", "/nodes"),
    Shot("tenants-wide-light", "/tenants"),
    Shot("timeline-wide-dark", "/timeline", dark=True),
    Shot("activity-wide-light", "/activity"),
    Shot("submit-wide-light", "/submit"),
    Shot("control-phone-light", "/control", phone=True),
    Shot("clusters-wide-light", "/clusters", several=True),
    Shot("clusters-phone-dark", "/clusters", dark=True, phone=True, several=True),
)


@contextmanager
def small_cluster(folder: Path) -> Iterator[Client]:
    """A cluster of this machine with simulated GPUs, once its nodes are online."""
    words = (
        *(sys.executable, "-m", "stoker", "up", "--nodes", str(NODES), "--gpus-per-node", str(GPUS)),
        *("--http-port", str(HTTP_PORT), "--grpc-port", str(GRPC_PORT), "--data-dir", str(folder / "data")),
        *("--stop-grace", "0", "--ends-with-parent"),
    )
    up = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Client(f"http://127.0.0.1:{HTTP_PORT}") as client:
            for _ in range(int(START_S)):
                try:
                    if client.status().online_nodes == NODES:
                        break
                except StokerError:
                    pass
                time.sleep(1)
            yield client
    finally:
        up.terminate()
        up.wait(60)


@contextmanager
def several_clusters(folder: Path) -> Iterator[str]:
    """Run a control plane that shows the small cluster, and one that is away, beside itself; yield an admin's token."""
    folder.mkdir()
    servers = {"hall-2": f"http://127.0.0.1:{HTTP_PORT}", "lab": "http://127.0.0.1:9"}
    settings = {
        "data_dir": str(folder / "data"),
        "http": {"port": HTTP_PORT + 1},
        "grpc": {"port": GRPC_PORT + 2, "node_port": 0},
        "web": {"clusters": {name: {"servers": [url]} for name, url in servers.items()}},
    }
    (folder / "control.yaml").write_text(json.dumps(settings))  # JSON is YAML
    stoker = (sys.executable, "-m", "stoker")
    made = (*stoker, "token", "create", "--role", "admin", "--data-dir", str(folder / "data"))
    token = subprocess.run(made, capture_output=True, check=True, text=True).stdout.split()[-1]
    words = (*stoker, "control", "-c", str(folder / "control.yaml"))
    control = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield token
    finally:
        control.terminate()
        control.wait(60)


def fill(client: Client) -> str:
    """Give the cluster something to show; return a job that waits."""
    for name, guaranteed in (("vision", 16), ("speech", 8), ("nlp", 8)):
        client.create_tenant(NewTenantBody(name=name, guaranteed_gpus=guaranteed, weight=2 if name == "vision" else 1))

    def submit(name: str, tenant: str, gpus: int, command: str = "sleep 900", **more: Any) -> str:  # noqa: ANN401  # fields
        body = {"time_limit": "2h", **more}
        return client.submit(JobBody(name=name, tenant=tenant, gpu_count=gpus, command=command, **body)).id

    submit("pretrain-7b", "nlp", 4, TRAINING, tasks=3, comment="third run, new tokenizer")
    submit("segment-cityscapes", "vision", 8)
    submit("whisper-finetune", "speech", 2, tasks=2)
    submit("sweep-lr", "vision", 1, array="0-9%6", time_limit="40m")
    submit(
        "detector-eval",
        "vision",
        2,
        "echo loading; echo 'RuntimeError: CUDA out of memory' >&2; exit 1",
        memory_mb=8_192,
    )
    submit("asr-serve", "speech", 1, job_class="online", priority="high")
    submit("tokenize", "nlp", 0, "sleep 3")
    waiting = submit("pretrain-70b", "nlp", 8, tasks=5, time_limit="12h")
    submit("distill", "vision", 4, hold=True)
    submit("nightly-report", "default", 0, "true", begin="now+6h")
    client.drain("node-6", "new fans, back at noon")
    return waiting


def _take(browser: Browser, shot: Shot, folder: Path, *, waiting: str, token: str) -> int:
    size = {"width": 390, "height": 780} if shot.phone else {"width": 1240, "height": 760}
    scheme = "dark" if shot.dark else "light"
    context = browser.new_context(viewport=size, color_scheme=scheme, timezone_id="Europe/Berlin", locale="en-GB")  # type: ignore[arg-type]  # sizes and schemes
    page = context.new_page()
    url = f"http://127.0.0.1:{HTTP_PORT + 1 if shot.several else HTTP_PORT}"
    if shot.several:
        page.goto(f"{url}/login")
        page.fill("#token", token)
        page.click("#sign-in button")
        page.wait_for_url(f"{url}/")
    page.goto(f"{url}{shot.path.format(waiting=waiting)}")
    page.wait_for_selector("#pulse:not(.off)")
    if shot.press:
        page.click(shot.press)
    page.wait_for_timeout(9_000 if shot.path == "/" and not shot.phone else 1_500)
    path = folder / f"web-{shot.name}.jpg"
    page.screenshot(path=path, type="jpeg", quality=QUALITY)
    context.close()
    return path.stat().st_size


def browser_program() -> str:
    """Return the path of this machine's Chromium; without one the program ends."""
    program = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if program is None:
        sys.exit("no Chromium is here: ./tools/setup.sh programs installs it on Debian")
    return program


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    """Run a browser for as long as it is needed."""
    # It makes a socket below TMPDIR, whose path may have a hundred bytes.
    environment: dict[str, str | float | bool] = {**os.environ, "TMPDIR": "/tmp"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_ARGUMENTS), env=environment)
        try:
            yield browser
        finally:
            browser.close()


def main(folder: Path) -> None:
    program = browser_program()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as name,
        small_cluster(place := Path(name)) as client,
        chromium(program) as browser,
    ):
        waiting = fill(client)
        with several_clusters(place / "several") as token:
            time.sleep(SETTLE_S)
            total = sum(_take(browser, shot, folder, waiting=waiting, token=token) for shot in SHOTS)
    print(f"{len(SHOTS)} pictures, {total // 1024} KiB in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
