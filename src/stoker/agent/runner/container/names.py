"""Words and numbers by which the runner, its client of the container engine and the agent understand each other."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

LABEL: Final = "stoker.io/"
"""How the labels of our containers begin."""
TASK_LABEL: Final = f"{LABEL}task"
"""Mark of the task, which no other task ever has."""
OWNER_LABEL: Final = f"{LABEL}agent"
KEY_LABEL: Final = f"{LABEL}key"

REMOVED: Final = 0
NO_ENGINE: Final = 3
"""No engine listens, so none can start or end anything."""
STILL_THERE: Final = 1
