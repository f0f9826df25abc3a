"""Draw small mutants of the code from a seed and say which of them the tests find.

A mutant is the tree with one place changed: a comparison moved or turned round, a number one higher, a truth negated,
`and` for `or`, a sum for a difference, a statement left out, None for an answer, the last named argument left out.

Rules: M1  the same seed on the same code draws the same mutants, and on code that changed since the same but for those
           of changed code; rooms get theirs by their number of places, each at least one; they are judged in an order
           of chance, so that those judged first speak for all
       M2  no place is drawn whose change no test could find: docstrings and other text, annotations, what is there
           for the type checker, assertions, decorators, lines for the log, names of asyncio's tasks, numbers of named
           constants (which bound or tune something)
       M3  first run the tests without real processes that import the changed module, directly or not, those first that
           have most words in common with the changed code, a rare word counting more; then, on those that live, tests
           with real processes of that room
       M4  a mutant is killed by a test that passes on the tree as it is, or by one that comes to no end; a test that
           fails there too kills nothing
       M5  each worker changes its own copy of the tree, never this one; tests run in a process group of their own,
           those with real processes in a PID namespace where root may make one, so that what they start ends with them
       M6  each verdict is written into the table at once; a run goes on after those that the table has. A person turns
           "lives: ..." into "equivalent: ..." with the reason, and such a mutant isn't counted

Limits: tests that come late in this order aren't tried, so more mutants die of the whole suite than the table says.

Usage: python -m tools.mutants [--seed N] [--count N] [--only ROOM_OR_PATH] [--quick] [--workers N] [--list]
       python -m tools.mutants --seed N --again [--names NAME...] [--tests TEST...]    those once more that live
"""

import argparse
import ast
import importlib.util
import multiprocessing
import os
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

from tools.mutant_places import PACKAGE, Mutant, drawn, places

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "benchmarks" / "results" / "mutants.md"
FILES_MAX: Final = 4
"""Of tests without real processes those of so many files are tried,"""
NEAREST_MAX: Final = 24
"""so many of them first,"""
WHOLE_MAX: Final = 2
"""and then all of so many files."""
LIMIT_S: Final = 150
"""Then no further test of a run begins: more say the same of a line."""
TEST_LIMIT_S: Final = 120
"""A test that takes longer hangs."""
HANGS_S: Final = 120
"""So much longer takes only a test that no time limit ends."""
MEMORY_MAX: Final = 4 << 30
"""What a mutant that gathers without an end may take of the machine."""
REAL: Final = (
    ("agent/runner/", "runner_* few_resources attempt_lease"),
    ("agent/", "agent_daemon agent_link_grpc faulty_node few_resources agent_token_file agent_pair runner_contract"),
    ("adapters/gpu_probe/", "probe_smi probe_nvml agent_daemon agent_nvml bounded_run"),
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
IMPORTED: Final = [
    "pytest", "xdist.plugin", "pytest_asyncio.plugin", "pytest_timeout", "pytest_cov.plugin", "anyio.pytest_plugin",
    "hypothesis.strategies", "hypothesis.internal.conjecture.engine", "schemathesis.pytest.plugin", "msgspec", "click",
    "grpc", "google.protobuf.json_format", "prometheus_client", "psycopg", "rich", "textual.app", "uvicorn", "yaml",
    "starlette.applications", "uuid_utils", "sqlite3",
]  # fmt: skip
"""What takes seconds of each run of tests: one process imports it, and the runs are forks of that one."""
REAL_TESTS: Final = "tests/real/"
OTHER_TESTS: Final = (REAL_TESTS, "tests/rig/", "tests/docs/", "tests/tidy/")
"""Those with real processes, and those that take long or look at no behaviour."""
FOUND_BY_NAME: Final = f"{PACKAGE}cli/commands/"
"""Nothing imports these modules in so many words."""
NOT_REAL: Final = "not tried with real processes"


# --- which tests are near -------------------------------------------------------------------------------------------


class Tests:
    """The tests of the tree, by what they import and by their words."""

    def __init__(self) -> None:
        files = [path.relative_to(ROOT).as_posix() for part in ("src", "tests") for path in (ROOT / part).rglob("*.py")]
        self._modules = {_dotted(path): path for path in sorted(files)}
        self._importers: defaultdict[str, set[str]] = defaultdict(set)
        self._with_word: defaultdict[str, set[str]] = defaultdict(set)
        self._tests: dict[str, dict[str, set[str]]] = {}
        for path in self._modules.values():
            text = (ROOT / path).read_text("utf-8")
            tree = ast.parse(text)
            for name in self._imported(tree):
                self._importers[name].add(path)
            if Path(path).name.startswith("test_"):
                self._tests[path] = dict(_tests_in(path, text, tree))
                for word in words_of(path + text):
                    self._with_word[word].add(path)

    def _imported(self, tree: ast.Module) -> set[str]:
        names: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    names |= {each.name for each in node.names}
                case ast.ImportFrom(module=str(module)):
                    names |= {module, *(f"{module}.{each.name}" for each in node.names)}
        return {self._modules[name] for name in names if name in self._modules}

    def nearest(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Single tests without real processes, and files of such tests, in the order in which to try them (M3)."""
        reached = {mutant.path: None}
        queue = [mutant.path]
        for path in queue:
            new = sorted(self._importers[path] - reached.keys())
            reached.update(dict.fromkeys(new))
            queue += new
        words = words_of(f"{mutant.within} {mutant.around} {Path(mutant.path).stem}")
        weights = {word: 1 / len(self._with_word[word]) for word in words if word in self._with_word}
        scores = {
            path: (path in self._importers[mutant.path]) / 2
            + sum(weight for word, weight in weights.items() if path in self._with_word[word])
            for path in self._tests
            if not path.startswith(OTHER_TESTS) and (path in reached or mutant.path.startswith(FOUND_BY_NAME))
        }
        files = sorted(scores, key=lambda each: (-scores[each], each))[:FILES_MAX]
        near = {
            test: scores[path] / 2 + sum(weights.get(word, 0.0) for word in has)
            for path in files
            for test, has in self._tests[path].items()
        }
        first = sorted(near, key=lambda each: (-near[each], each))[:NEAREST_MAX]
        return first, files[:WHOLE_MAX]

    def real(self, mutant: Mutant) -> list[str]:
        """Files of tests with real processes, those that import the module first."""
        inside = mutant.path.removeprefix(PACKAGE)
        patterns = next((words for beginning, words in REAL if inside.startswith(beginning)), "").split()
        importing = [ROOT / path for path in self._tests if path in self._importers[mutant.path]]
        real = sorted((ROOT / "tests" / "real").glob("test_*.py"))
        listed = [path for pattern in patterns for path in real if path.match(f"test_{pattern}.py")]
        found = dict.fromkeys(path.relative_to(ROOT).as_posix() for path in (*importing, *listed))
        return [path for path in found if path.startswith(REAL_TESTS)]


def _tests_in(path: str, text: str, tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """The tests of a file with their words."""
    lines = text.splitlines()
    groups: list[tuple[str, list[ast.stmt]]] = [(path, tree.body)]
    groups += [(f"{path}::{each.name}", each.body) for each in tree.body if isinstance(each, ast.ClassDef)]
    for prefix, body in groups:
        for each in body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
                yield f"{prefix}::{each.name}", words_of("\n".join(lines[each.lineno - 1 : each.end_lineno]))


def words_of(text: str) -> set[str]:
    """Names, and the words of names without their plural, but for those that say nothing."""
    names = set(re.findall(r"[a-zA-Z]\w{3,}", text))
    parts = (part.lower().rstrip("s") for name in names for part in re.findall(r"[A-Z]?[a-z]+", name))
    return names | {part for part in parts if len(part) > 2}


def _dotted(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# --- running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """End of a mutant. `words`: the test that killed it, or why it lives or changes nothing."""

    mutant: Mutant
    end: Literal["killed", "lives", "equivalent"]
    words: str = ""


class Worker:
    """A copy of the tree in which one mutant at a time is tried (M5)."""

    def __init__(self, folder: Path, tests: Tests) -> None:
        self._tree = folder
        self._tests = tests
        self._broken: list[str] = []
        """They fail on the tree as it is."""
        copy_tree(folder)

    def judge(self, mutant: Mutant, given: argparse.Namespace) -> Verdict:
        """Run tests on the mutant until one fails (M3, M4)."""
        runs = [*self._tests.nearest(mutant), [] if given.quick else self._tests.real(mutant)]
        for tests in [given.tests] if given.tests else runs:
            failed = self._failure_with(mutant, tests)
            if failed.startswith(REAL_TESTS) and not self._failure_with(mutant, [failed]):
                continue  # it failed by the load of the machine
            if failed and self.first_failure([failed]):
                self._broken.append(failed)
            elif failed:
                return Verdict(mutant, "killed", failed)
        return Verdict(mutant, "lives", NOT_REAL if given.quick else "")

    def _failure_with(self, mutant: Mutant, tests: Sequence[str]) -> str:
        file = self._tree / mutant.path
        compiled = Path(importlib.util.cache_from_source(str(file)))
        sound = file.read_bytes()
        file.write_bytes(mutant.applied(sound))
        compiled.unlink(missing_ok=True)  # it is known by second and length alone
        try:
            return self.first_failure(tests)
        finally:
            file.write_bytes(sound)
            compiled.unlink(missing_ok=True)

    def first_failure(self, tests: Sequence[str]) -> str:
        """The first test that fails or doesn't come to an end; empty = all that there was time for pass."""
        if not tests:
            return ""
        words = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "--tb=no", f"--session-timeout={LIMIT_S}", *tests]
        words += [f"--deselect={test}" for test in self._broken]
        if any(test.startswith(REAL_TESTS) for test in tests):
            status, said = self._in_a_process([*words, "-m", "not heavy"])
        else:
            status, said = self._in_a_fork([*words, "-m", "not real and not heavy", f"--timeout={TEST_LIMIT_S}"])
        failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        if failed:
            return failed[0].partition(" ")[2].partition(" - ")[0]
        is_fine = status in (0, 5) or "session-timeout" in said  # 5: every one of them is left out here
        return "" if is_fine else tests[0]

    def _in_a_fork(self, words: Sequence[str]) -> tuple[int | None, str]:
        """Exit status and words of pytest in a fork of a process that has imported all but Stoker."""
        output = self._tree.with_suffix(".out")
        process = _FORKS.Process(target=_pytest, args=(str(self._tree), words, str(output)))
        process.start()
        process.join(LIMIT_S + HANGS_S)
        if process.pid is not None:
            with suppress(ProcessLookupError):  # it has left nothing
                os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return process.exitcode, output.read_text("utf-8", "replace")

    def _in_a_process(self, words: Sequence[str]) -> tuple[int | None, str]:
        process = subprocess.Popen(
            [*_apart(), sys.executable, "-m", "pytest", *words], cwd=self._tree, env=_surroundings(self._tree),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said = process.communicate(timeout=LIMIT_S + HANGS_S)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]


_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(IMPORTED)


def _pytest(tree: str, words: list[str], output: str) -> None:
    """Be pytest in this process."""
    os.setsid()
    os.chdir(tree)
    os.environ |= _surroundings(Path(tree))
    sys.dont_write_bytecode = False
    sys.path[:0] = [f"{tree}/src", tree]
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    sys.argv = ["pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning", *words]
    runpy.run_module("pytest", run_name="__main__")


def _apart() -> list[str]:
    """The command before a command so that all that it starts ends with it; empty = this account may not."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    allowed = shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if allowed and allowed.returncode == 0 else []


def _surroundings(tree: Path) -> dict[str, str]:
    """The environment of tests in a copy. Chance is the same each time, as in CI."""
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "CI": "1", "PYTHONDONTWRITEBYTECODE": ""}


def copy_tree(to: Path) -> None:
    """Copy what git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / ".venv").symlink_to(ROOT / ".venv")


def judged(mutants: Sequence[Mutant], given: argparse.Namespace) -> Iterator[Verdict]:
    """Judge mutants, several at a time."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(given.workers) as pool:
        tests = Tests()
        free: SimpleQueue[Worker] = SimpleQueue()
        for number in range(given.workers):
            free.put(Worker(Path(folder) / str(number), tests))

        def judge(mutant: Mutant) -> Verdict:
            worker = free.get()
            try:
                return worker.judge(mutant, given)
            finally:
                free.put(worker)

        yield from pool.map(judge, mutants)


# --- the table ------------------------------------------------------------------------------------------------------

_ROW: Final = re.compile(r"^- `(\w{8})` .*\n  (killed|lives|equivalent)(?:: (.*))?$", re.MULTILINE)
_BEGIN: Final = "<!-- below: written by tools/mutants.py -->\n"


def known(page: Path, mutants: Sequence[Mutant]) -> dict[Mutant, Verdict]:
    """Verdicts of the table on these mutants (M6)."""
    named = {mutant.name: mutant for mutant in mutants}
    rows = _ROW.findall(page.read_text("utf-8").partition(_BEGIN)[2]) if page.exists() else []
    return {named[name]: Verdict(named[name], end, words) for name, end, words in rows if name in named}


def write(page: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the table below the prose of the page, at once or not at all."""
    prose = page.read_text("utf-8").partition(_BEGIN)[0] if page.exists() else ""
    beside = page.with_suffix(".new")
    beside.write_text("\n".join((f"{prose}{_BEGIN}", *table(verdicts), "")), "utf-8")
    beside.replace(page)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Counts of each room, then every mutant with its end, those that live first."""
    counts = Counter((verdict.mutant.room, verdict.end) for verdict in verdicts)
    counts.update(("all", verdict.end) for verdict in verdicts)
    yield "| room | judged | killed | live | equivalent |"
    yield "|---|---:|---:|---:|---:|"
    for room in (*sorted({verdict.mutant.room for verdict in verdicts}), "all"):
        killed, lives, same = (counts[room, end] for end in ("killed", "lives", "equivalent"))
        yield f"| {room} | {killed + lives + same} | {killed} | {lives} | {same} |"
    yield ""
    yield f"{100 * share_killed(verdicts):.0f} % of those that aren't equivalent die."
    yield ""
    for end in ("lives", "equivalent", "killed"):
        for verdict in sorted((each for each in verdicts if each.end == end), key=lambda each: each.mutant):
            yield f"- `{verdict.mutant.name}` {verdict.mutant}"
            yield f"  {end}" + (f": {verdict.words}" if verdict.words else "")


def _is_open(verdict: Verdict, given: argparse.Namespace) -> bool:
    """Whether a mutant of the table is judged once more."""
    return verdict.end == "lives" and (given.again or (not given.quick and NOT_REAL in verdict.words))


def share_killed(verdicts: Iterable[Verdict]) -> float:
    """Of the mutants that a test could kill, from 0 to 1."""
    ends = Counter(verdict.end for verdict in verdicts)
    return ends["killed"] / max(ends["killed"] + ends["lives"], 1)


def main(arguments: Sequence[str]) -> int:
    """Draw, judge those that the table doesn't have, and write it; 1 if less than 85 % die."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="how many mutants (default: 100)")
    parser.add_argument("--only", default="", help="only of paths within src/stoker that begin so: agent/runner/")
    parser.add_argument("--table", type=Path, default=TABLE, help="page of what was judged (default: that of the tree)")
    parser.add_argument("--quick", action="store_true", help="without the tests that start real processes")
    parser.add_argument("--again", action="store_true", help="those once more that live")
    parser.add_argument("--names", nargs="+", default=[], help="of those drawn only these, as the table calls them")
    parser.add_argument("--tests", nargs="+", default=[], help="which tests to run instead of the nearest")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="only say which mutants would be drawn")
    given = parser.parse_args(arguments)
    mutants = drawn(places(ROOT, given.only), given.seed, given.count)
    if given.list:
        print(*mutants, sep="\n")
        return 0
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    done = known(given.table, mutants)
    asked = [each for each in mutants if not given.names or each.name in given.names]
    open_ones = [each for each in asked if each not in done or _is_open(done[each], given)]
    for verdict in judged(open_ones, given):
        done = {**known(given.table, mutants), verdict.mutant: verdict}  # a person may have written into it
        write(given.table, list(done.values()))
        print(f"{len(done)}/{len(mutants)} {verdict.end}: {verdict.words}: {verdict.mutant}", file=sys.stderr)
    print(*table(list(done.values())), sep="\n")
    return 0 if share_killed(done.values()) >= 0.85 else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
