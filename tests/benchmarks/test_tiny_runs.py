"""Every benchmark runs to its end with tiny sizes, prints the columns of the table that is kept of it, and `make bench`
knows it. What is measured here means nothing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import alternate

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
DECIDE = ("--nodes", "40", "--gangs", "60", "--quick")
TINY = {
    "append": ("--seconds", "0.05", "--jobs", "2000"),
    "commands": ("--runs", "1"),
    "containers": ("--rounds", "1", "--jobs", "2", "--running", "1", "--beside", "2"),
    "decide": DECIDE,
    "first_prompt": ("--rounds", "1"),
    "hostile": ("--seconds", "1", "--mib", "2"),
    "idle_agents": ("--agents", "3", "--seconds", "0.6", "--settle", "0.1"),
    "jct": ("--jobs", "40"),
    "replication": ("--seconds", "0.5", "--rate", "100", "--behind", "500", "--profile", "fast"),
    "scale": ("--jobs", "200", "--watch", "0.2", "--lists", "1"),
    "stalls": ("--jobs", "100", "--bulk", "20", "--quiet", "0.1"),
    "start_latency": ("--rounds", "2"),
    "submissions": ("--seconds", "0.2", "--rounds", "1"),
    "take_over": ("--kills", "1", "--profiles", "fast", "--running", "2"),
    "throughput": ("--jobs", "40", "--rounds", "1", "--nodes", "1"),
    "web": (
        *("--nodes", "2", "--jobs", "50", "--seconds", "0.5", "--lone", "2"),
        *("--facts", "10", "--play", "2", "--viewers", "2", "--paints", "1", "--lenient"),
    ),
}
OVER_TLS = {
    "start_latency": ("--rounds", "2", "--tls"),
    "submissions": ("--seconds", "0.2", "--rounds", "1", "--tls"),
    "take_over": (*TINY["take_over"], "--tls"),
}
QUICK = ("append", "decide", "idle_agents", "jct", "stalls")
"""Of each kind one: of a function alone, of many agents, of one control plane. The others take seconds each."""
PROGRAMS = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\ndef main(" in path.read_text()}


def columns(text: str) -> list[str]:
    """The first line of each table."""
    return re.findall(r"^(\|.*\|)\n\|[ :|-]+\|$", text, re.MULTILINE)


def test_every_benchmark_has_a_tiny_run_and_make_bench_runs_it() -> None:
    assert set(TINY) == PROGRAMS - {"alternate"}
    (made,) = re.findall(r"^BENCHES \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(made.split()) == sorted(TINY)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            pytest.param(*each, id=each[0], marks=() if each[0] in QUICK else pytest.mark.heavy)
            for each in TINY.items()
        ),
        pytest.param("decide", (*DECIDE, "--growth"), id="growth of a pass"),
        *(pytest.param(*each, id=f"{each[0]} over TLS", marks=pytest.mark.heavy) for each in OVER_TLS.items()),
    ],
)
def test_a_benchmark_runs_to_its_end_and_prints_what_its_table_has(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    kept = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text()
    assert done.stdout.strip()
    assert [line for line in columns(done.stdout) if line not in kept] == []


@pytest.mark.heavy
def test_two_checkouts_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(alternate.BENCHMARKS, "decide", alternate.BENCHMARKS["decide"]._replace(arguments=DECIDE))
    monkeypatch.setattr(sys, "argv", ["alternate", "--before", str(ROOT), "--runs", "1", "--only", "decide"])
    alternate.main()
    assert len(re.findall(r"^\| decide: .* \| (?:yes|NO) \|$", capsys.readouterr().out, re.MULTILINE)) > 5


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_bench_goes_on_after_a_failure_and_says_what_failed() -> None:
    words = ("-o", "setup-dev", "bench", f"PY={sys.executable}", "BENCHES=nonesuch decide", f"ARGS={' '.join(DECIDE)}")
    done = subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "make bench: failed: nonesuch\n" in done.stderr
    assert "full passes" in done.stdout
