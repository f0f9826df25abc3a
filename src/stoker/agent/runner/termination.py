"""Termination of a task: its steps from the end of its leader, or a stop, to a tree that is gone.

Rules: E1  a task is over when its leader is reaped and its tree is gone, never before
       E2  a stop terminates the whole tree at once, kills after the grace, and goes on until the tree is gone
       E3  what a leader leaves behind gets `LINGER_S` to write its last words, then a terminate and `LEFTOVER_GRACE_S`,
           then a kill: a job's children don't outlive it
       E4  of several stops the earliest deadline holds; a leader that had ended by itself stays `exited`
       E5  a lease that is over kills at once, also what was given a grace
       E6  a process that can't be killed (a hung device) keeps its task in `ending` for as long as it takes

Checks come at once when a child is reaped, and else on a timer that doubles.
"""

from __future__ import annotations

import signal

from stoker.agent.runner.task import ENDING, KILLED, LINGERING, TERMINATED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.task import RunnerTask

LINGER_S: Final = 0.2
LEFTOVER_GRACE_S: Final = 2.0
_RECHECK_FIRST_S: Final = 0.005
_RECHECK_MAX_S: Final = 1.0


def leader_ended(task: RunnerTask, status: int, now_s: float) -> None:
    """Note that the leader was reaped; what it left behind lingers (E3)."""
    task.status = status
    if task.phase != ENDING:
        _enter(task, LINGERING, now_s + LINGER_S, now_s)
    else:
        task.check_s = now_s


def stop(task: RunnerTask, grace_s: float, trees: Trees, now_s: float) -> None:
    """Terminate the whole tree, and kill it after the grace; of several stops the earliest deadline holds (E2, E4)."""
    if task.phase != ENDING:
        task.cause = "stopped"
    elif task.step == KILLED or (task.step == TERMINATED and task.step_until_s <= now_s + grace_s):
        return
    if task.step == TERMINATED and task.phase == ENDING and grace_s > 0:
        task.step_until_s = now_s + grace_s
        task.check_s = min(task.check_s, task.step_until_s)
        return
    if grace_s > 0:
        _terminate(task, trees, grace_s, now_s)
    else:
        _kill(task, trees, now_s)


def lapse(task: RunnerTask, words: str, now_s: float) -> None:
    """Note that the lease is over and the task will be killed together with more of them. E4 holds here too."""
    if task.phase != ENDING:
        task.cause, task.error = "lease_ended", words
    _enter(task, KILLED, now_s, now_s)


def inherit(task: RunnerTask, trees: Trees, now_s: float) -> None:
    """Kill a task that an earlier runner left: its exit code is lost, so nothing of it may go on."""
    _kill(task, trees, now_s)


def advance(task: RunnerTask, trees: Trees, now_s: float) -> bool:
    """Check a task in `ending`: True when it is over; else its `check_s` says when to look again."""
    if trees.gone(task.tree):
        return True
    if task.step == LINGERING and now_s >= task.step_until_s:
        _terminate(task, trees, LEFTOVER_GRACE_S, now_s)
    elif task.step == TERMINATED and now_s >= task.step_until_s:
        _kill(task, trees, now_s)
    elif task.step == KILLED:
        trees.kill(task.tree)
        task.recheck_s = min(2 * task.recheck_s, _RECHECK_MAX_S)
        task.check_s = now_s + task.recheck_s
    else:
        task.recheck_s = min(2 * task.recheck_s, _RECHECK_MAX_S)
        task.check_s = min(now_s + task.recheck_s, task.step_until_s)
    return False


def _terminate(task: RunnerTask, trees: Trees, grace_s: float, now_s: float) -> None:
    _enter(task, TERMINATED, now_s + grace_s, now_s)
    trees.signal(task.tree, signal.SIGTERM, signal.SIGCONT)  # one that is stopped must wake to hear the first


def _kill(task: RunnerTask, trees: Trees, now_s: float) -> None:
    _enter(task, KILLED, now_s, now_s)
    trees.kill(task.tree)


def _enter(task: RunnerTask, step: int, until_s: float, now_s: float) -> None:
    task.phase = ENDING
    task.step = step
    task.step_until_s = until_s
    task.recheck_s = _RECHECK_FIRST_S
    task.check_s = now_s + _RECHECK_FIRST_S if step else now_s
