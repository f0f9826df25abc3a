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

EXEC_MARK: Final = "STOKER_EXEC_MARK"
"""Environment variable of what is executed beside a container's own program; each session has a mark of its own."""
DETACH_KEYS: Final = "ctrl-^,ctrl-_,ctrl-^,ctrl-_,ctrl-@"
"""An engine leaves a program for whoever types this. It can't be told to let all keys through, and its own choice
begins with Ctrl-P, which shells know; nobody types this one."""

# Descriptors of a client, and how long it waits for its engine.
REPLY: Final = 3
RESULT: Final = 4
REQUEST: Final = 5
ASK_S: Final = 60.0
RESIZE_S: Final = 2.0
"""What waits for it is a hang-up, perhaps."""
START_S: Final = 300.0
"""An engine on a slow disk unpacks nothing any more, but may wait for a lock."""
