"""Rules 1, 2 and 8: each import contract bites, on a copy of the tree with one offence for each."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).with_name("lint-imports")

OFFENCES = {
    "Packages: upper may import": ("utils/__init__.py", "x = 1"),
    "Inside the brain": ("brain/domain/gpu.py", "from stoker.brain.engine import decide"),
    "The brain has no clock": ("brain/engine/queue_order.py", "import random"),
    "The engine reads a View": ("brain/engine/decide.py", "from stoker.brain.state.cluster import ClusterState"),
    "Inside the engine": ("brain/engine/draft.py", "import stoker.brain.engine.fit"),
    "Only a composition root": ("control/loop.py", "from stoker.adapters.clock import SystemClock"),
    "Inside brain.state": ("brain/state/validation/spec.py", "import stoker.brain.state.admit.job"),
    "How one noun's facts": ("brain/state/apply/access.py", "import stoker.brain.state.apply.tenant"),
    "What one noun may be asked": ("brain/state/admit/label.py", "import stoker.brain.state.admit.node"),
    "Ports speak in nouns": ("ports.py", "from stoker.brain.state.view import View"),
    "The wire knows nouns": ("wire/text.py", "from stoker.brain.state.admit.dispatch import admit"),
    "Inside the agent": ("agent/outgoing.py", "import stoker.agent.daemon"),
    "Inside the runner": ("agent/runner/task.py", "import stoker.agent.runner.supervisor"),
    "The runner imports nothing": ("agent/runner/process/tree.py", "import stoker.brain.domain.ids"),
    "Inside the core": ("control/committer.py", "import stoker.control.loop"),
    "Inside the interfaces": ("api/http/jobs.py", "import stoker.api.rpc.status"),
    "Inside the runtime of a cluster": ("live/sessions.py", "import stoker.live.rpc.server"),
    "Inside the web pages": ("web/site.py", "import stoker.web.queue"),
    "Inside the command line": ("cli/display/table.py", "import stoker.cli.server"),
    "A command of the command line": ("cli/commands/wait.py", "import stoker.cli.commands.why"),
    "Inside the adapters": ("adapters/atomic_file.py", "from stoker.adapters.data_folder import ownership"),
    "Inside the runtime in simulated time": ("sim/trace.py", "import stoker.sim.outcome"),
    "Simulated time needs the brain": ("sim/policies.py", "import stoker.control.loop"),
    "The core and the interfaces": ("api/http/nodes.py", "from stoker.adapters.entropy import SystemEntropy"),
}


def verdicts(tree: Path) -> dict[str, str]:
    """Contract name, as far as it stands on its line -> KEPT or BROKEN."""
    command = [str(LINT), "--no-cache", "--config", str(ROOT / ".importlinter")]
    environment = {"PYTHONPATH": str(tree), "COLUMNS": "200", "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False).stdout
    rows = re.findall(r"^(\S.*?) ?(KEPT|BROKEN)\b", said, re.MULTILINE)
    assert rows, said
    return dict(rows)


def copy_of_the_package(into: Path) -> Path:
    shutil.copytree(ROOT / "src" / "stoker", into / "stoker", ignore=shutil.ignore_patterns("__pycache__"))
    return into


def test_the_tree_keeps_every_contract(tmp_path: Path) -> None:
    assert set(verdicts(copy_of_the_package(tmp_path)).values()) == {"KEPT"}


def test_each_contract_notices_its_offence(tmp_path: Path) -> None:
    tree = copy_of_the_package(tmp_path)
    for path, text in OFFENCES.values():
        file = tree / "stoker" / path
        file.parent.mkdir(exist_ok=True)
        before = file.read_text() if file.exists() else ""
        file.write_text(f"{before}\n{text}\n")
    said = verdicts(tree)
    unnoticed = [
        name for name in OFFENCES if not any(row.startswith(name[:40]) and said[row] == "BROKEN" for row in said)
    ]
    assert unnoticed == []
    assert len(said) == len(OFFENCES), "a contract without an offence here: add one"
