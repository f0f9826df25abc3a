"""Draw small mutants of the code from a seed and say which of them the tests find.

A mutant is the tree with one place changed: a comparison moved or turned round, a number one higher, a truth negated,
`and` for `or`, a sum for a difference, a statement left out, None for an answer, the last named argument left out.

Rules: M1  the same seed on the same code draws the same mutants; rooms get theirs by their number of places, each at
           least one
       M2  no place is drawn whose change no test could find: docstrings and other text, annotations, what is there
           for the type checker, assertions, decorators, lines for the log, numbers of named constants (which bound or
           tune something)
       M3  first run the tests that touch the changed lines (as coverage tells), those of the module's own name first,
           the quickest of each file before the others; then, on those that live, tests with real processes of that room
       M4  a mutant is killed by a test that passes on the tree as it is, or by one that comes to no end; a test that
           fails there too kills nothing, and the run says so
       M5  each worker changes its own copy of the tree, never this one, in a PID namespace where root may make one:
           whatever a mutant starts ends with it

Limits: a test that only touches a line in another process isn't known to touch it, hence the table REAL.

Usage: python -m tools.mutants [--seed N] [--count N] [--only ROOM_OR_PATH] [--quick] [--workers N] [--list]
"""

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from queue import SimpleQueue
from typing import Final
from xml.etree import ElementTree

from tools.mutant_places import PACKAGE, Mutant, drawn, places

ROOT: Final = Path(__file__).resolve().parent.parent
MAP: Final = ROOT / "build" / "mutants"
"""What the tests of the tree touch and how long they take: made when it isn't there, so remove it to renew it."""
QUICK_S: Final = 60.0
"""Of tests without real processes for one mutant, by what they took under coverage."""
TESTS_MAX: Final = 100
"""And at most so many: more say the same of a line."""
QUICK_LIMIT_S: Final = 300.0
"""What takes longer hangs."""
REAL_LIMIT_S: Final = 150.0
"""Then the other tests aren't waited for. One that hangs is ended by its own time limit before."""
REAL: Final = (
    ("agent/runner/", "runner_* few_resources attempt_lease"),
    ("agent/", "agent_daemon agent_link_grpc faulty_node few_resources agent_token_file agent_pair runner_contract"),
    ("adapters/gpu_probe/", "probe_smi agent_daemon"),
    ("adapters/lease_folder/", "lease_processes pair_secret pair_alone doctor_pair"),
    ("adapters/postgres/", "log_postgres lease_postgres control_postgres control_postgres_faults restore_database"),
    ("adapters/sqlite/", "log_store log_sqlite_processes log_full_disk restore history_restart"),
    ("adapters/", "control_daemon agent_daemon clock checkpoint_folders restore pair_secret"),
    ("api/rpc/", "job_service job_apis_agree rpc_bounds rpc_tokens"),
    ("api/", "job_apis_agree peer_credentials slow_clients other_origins log_follow rest_client"),
    ("cli/demo/", "demo"),
    ("cli/doctor/", "doctor doctor_pair clock"),
    ("cli/top/", "top"),
    ("cli/", "cli* up tokens backup restore restore_database demo"),
    ("control/", "control_daemon history_restart backup log_follow cli_usage audit_restart"),
    ("live/failover/", "pair replication_rpc pair_alone pair_clients standby_from_backup"),
    ("live/", "control_daemon agent_link_grpc control_rpc rpc_bounds rpc_tokens lost_nodes up pair"),
    ("wire/client/", "client_contract rest_client client_pair log_follow cli cli_watch"),
    ("wire/", "job_apis_agree agent_link_grpc cli rest_client"),
)
"""Beginning of a path -> files of `tests/real` that run such code in processes of their own. The first row counts."""
NO_END: Final = "no end"


# --- which tests touch what -----------------------------------------------------------------------------------------


class TouchMap:
    """Tests by the lines that they touch, and how long each takes."""

    def __init__(self, folder: Path, tests: Sequence[str]) -> None:
        if not (folder / "coverage").exists():
            self._make(folder, tests)
        from coverage import CoverageData

        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        self._sources = folder / "sources"
        self._real = sorted((ROOT / "tests" / "real").glob("test_*.py"))

    @cached_property
    def _seconds(self) -> dict[str, float]:
        """Tests by file, class and name as JUnit's XML has them."""
        cases = ElementTree.parse(self._sources.with_name("junit.xml")).iter("testcase")
        return {f"{case.get('classname')}.{case.get('name')}": float(case.get("time") or 0) for case in cases}

    def _make(self, folder: Path, tests: Sequence[str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        copy_tree(folder / "sources")
        (folder / "sources" / "coveragerc").write_text("[run]\nsource = stoker\nrelative_files = true\n")
        words = ["--cov=stoker", "--cov-config=coveragerc", "--cov-context=test", "--cov-report=", "-m", "not real"]
        words += [f"--junitxml={folder / 'junit.xml'}", "-p", "no:cacheprovider", "--timeout=600", "-q", *tests]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=folder / "sources", env=_surroundings(folder / "sources"),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(
                f"mutants: not every test passes; those that fail kill nothing\n{done.stdout[-2000:]}", file=sys.stderr
            )
        (folder / "sources" / ".coverage").rename(folder / "coverage")

    def quick(self, mutant: Mutant) -> list[str]:
        """The tests to run in this order, about QUICK_S of them (M3)."""
        touching = self._touching(mutant)
        by_file: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        for test in touching:
            by_file[test.partition("::")[0]].append((self._seconds_of(test), test))
        names = (f"test_{Path(mutant.path).stem}.py", _dotted(mutant.path))
        turns = sorted(
            (not (path.endswith(names[0]) or names[1] in _text(ROOT / path)), turn, seconds, test)
            for path, all_of_it in by_file.items()
            for turn, (seconds, test) in enumerate(sorted(all_of_it))
        )
        chosen: list[str] = []
        left_s = QUICK_S
        for _, _, seconds, test in turns:
            left_s -= seconds + 0.01
            if (left_s < 0 and chosen) or len(chosen) == TESTS_MAX:
                break
            chosen.append(test)
        return chosen

    def real(self, mutant: Mutant) -> list[str]:
        """Files of tests with real processes, those that name the module first."""
        inside = mutant.path.removeprefix(PACKAGE)
        patterns = next((words for beginning, words in REAL if inside.startswith(beginning)), "").split()
        named = [path for path in self._real if _dotted(mutant.path) in _text(path)]
        listed = [path for pattern in patterns for path in self._real if path.match(f"test_{pattern}.py")]
        return [path.relative_to(ROOT).as_posix() for path in dict.fromkeys((*named, *listed))]

    def _touching(self, mutant: Mutant) -> set[str]:
        by_line = self._data.contexts_by_lineno(self._measured(mutant.path))
        lines = _lines_of_statement(mutant)
        known = self._sources / mutant.path
        if not known.exists() or known.read_bytes() != (ROOT / mutant.path).read_bytes():
            lines = set(by_line)  # its lines have moved since
        found = {test for line in lines for test in by_line.get(line, ())}
        if not found - {""}:  # what runs while the module is imported
            found = {test for tests in by_line.values() for test in tests}
        return {test.rpartition("|")[0] for test in found} - {""}

    def _measured(self, path: str) -> str:
        return next((name for name in self._data.measured_files() if name.endswith(path)), path)

    def _seconds_of(self, test: str) -> float:
        path, _, name = test.partition("::")
        dotted = path.removesuffix(".py").replace("/", ".")
        return self._seconds.get(".".join((dotted, *name.split("::"))), 0.05)


def _lines_of_statement(mutant: Mutant) -> set[int]:
    """The lines of the innermost statement around the change, without the block that it may have."""
    best: ast.stmt | None = None
    for node in ast.walk(ast.parse((ROOT / mutant.path).read_bytes())):
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0):
            best = node if best is None or node.lineno >= best.lineno else best
    if best is None:
        return {mutant.line}
    block = getattr(best, "body", None)
    last = block[0].lineno - 1 if isinstance(block, list) else best.end_lineno or best.lineno
    return set(range(best.lineno, max(last, best.lineno) + 1))


def _dotted(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


# --- running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """End of a mutant. `by`: the test that killed it; empty = it lives."""

    mutant: Mutant
    by: str
    remark: str = ""


class Worker:
    """A copy of the tree in which one mutant at a time is tried (M5)."""

    def __init__(self, folder: Path, touched: TouchMap) -> None:
        self._tree = folder
        self._touched = touched
        copy_tree(folder)

    def judge(self, mutant: Mutant, *, real: bool) -> Verdict:
        """Run one of the two sets of tests on the mutant until one fails (M3, M4)."""
        tests = self._touched.real(mutant) if real else self._touched.quick(mutant)
        limit_s = REAL_LIMIT_S if real else QUICK_LIMIT_S
        file = self._tree / mutant.path
        sound = file.read_bytes()
        file.write_bytes(mutant.applied(sound))
        try:
            failed = self.first_failure(tests, limit_s)
        finally:
            file.write_bytes(sound)
        if failed == NO_END and real:
            return Verdict(mutant, "", f"after {limit_s:.0f} s of tests with real processes")
        if failed == NO_END and self.first_failure(tests, limit_s):
            return Verdict(mutant, "", "its tests come to no end without it either")
        return Verdict(mutant, failed, "" if tests else "no test touches it")

    def first_failure(self, tests: Sequence[str], limit_s: float) -> str:
        """The first test that fails, or NO_END; empty = they pass."""
        if not tests:
            return ""
        (self._tree / "tests.args").write_text("".join(f"{test}\n" for test in tests))
        words = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "-m", "not heavy", "--tb=no", "@tests.args"]
        process = subprocess.Popen(
            [*_apart(), sys.executable, "-m", "pytest", *words], cwd=self._tree, env=_surroundings(self._tree),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return NO_END
        if process.returncode in (0, 5):  # 5: every one of them is left out here
            return ""
        failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].partition(" ")[2].partition(" - ")[0] if failed else tests[0]


def _apart() -> list[str]:
    """The command before a command so that all that it starts ends with it; empty = this account may not."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    allowed = shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if allowed and allowed.returncode == 0 else []


def _surroundings(tree: Path) -> dict[str, str]:
    """The environment of tests in a copy. Chance is the same each time, as in CI."""
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def copy_tree(to: Path) -> None:
    """Copy what git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / ".venv").symlink_to(ROOT / ".venv")


def judged(mutants: Sequence[Mutant], touched: TouchMap, workers: int, *, quick: bool) -> Iterator[Verdict]:
    """Judge mutants, several at a time: first all by quick tests, then those that live by tests with real processes."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        free: SimpleQueue[Worker] = SimpleQueue()
        for number in range(workers):
            free.put(Worker(Path(folder) / str(number), touched))

        def judge(mutant: Mutant, real: bool) -> Verdict:
            worker = free.get()
            try:
                return worker.judge(mutant, real=real)
            finally:
                free.put(worker)

        def checked(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
            """M4: the tests that failed pass on the tree as it is, all of them in one run."""
            killed: list[Verdict] = []
            for verdict in verdicts:
                killed += [verdict] if verdict.by not in ("", NO_END) else []
                yield verdict
            worker = free.get()
            suspects = list(dict.fromkeys(each.by for each in killed))
            while broken := worker.first_failure(suspects, QUICK_LIMIT_S):
                suspects.remove(broken)
                yield from (
                    Verdict(each.mutant, "", f"{broken} fails without it too") for each in killed if each.by == broken
                )
            free.put(worker)

        alive: dict[Mutant, bool] = {}
        for verdict in checked(pool.map(judge, mutants, repeat(False))):
            alive[verdict.mutant] = not verdict.by
            yield verdict
        if not quick:
            yield from checked(pool.map(judge, [each for each, lives in alive.items() if lives], repeat(True)))


# --- telling --------------------------------------------------------------------------------------------------------


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Counts of each room, and the mutants that live."""
    drawn_in = Counter(verdict.mutant.room for verdict in verdicts)
    killed_in = Counter(verdict.mutant.room for verdict in verdicts if verdict.by)
    yield "| room | mutants | killed |"
    yield "|---|---:|---:|"
    for room in sorted(drawn_in):
        yield f"| {room} | {drawn_in[room]} | {killed_in[room]} |"
    share = 100 * killed_in.total() / max(drawn_in.total(), 1)
    yield f"| all | {drawn_in.total()} | {killed_in.total()} ({share:.0f} %) |"
    yield ""
    for verdict in verdicts:
        if not verdict.by:
            yield f"- lives: {verdict.mutant}" + (f" ({verdict.remark})" if verdict.remark else "")


def main(arguments: Sequence[str]) -> int:
    """Draw, judge, and print the table; 1 if less than 85 % die."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="how many mutants (default: 100)")
    parser.add_argument("--only", default="", help="only of paths within src/stoker that begin so: agent/runner/")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="the tests to know of (default: all)")
    parser.add_argument("--map", type=Path, default=MAP, help="folder of what those touch (default: build/mutants)")
    parser.add_argument("--quick", action="store_true", help="without the tests that start real processes")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="only say which mutants would be drawn")
    given = parser.parse_args(arguments)
    mutants = drawn(places(ROOT, given.only), given.seed, given.count)
    if given.list:
        print(*mutants, sep="\n")
        return 0
    verdicts: dict[Mutant, Verdict] = {}
    for verdict in judged(mutants, TouchMap(given.map, given.tests), given.workers, quick=given.quick):
        verdicts[verdict.mutant] = verdict  # the later one counts
        remark = f" ({verdict.remark})" if verdict.remark else ""
        print(f"{len(verdicts)}/{len(mutants)} {verdict.by or 'lives'}: {verdict.mutant}{remark}", file=sys.stderr)
    print(*table(list(verdicts.values())), sep="\n")
    return 0 if sum(bool(each.by) for each in verdicts.values()) >= 0.85 * len(verdicts) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
