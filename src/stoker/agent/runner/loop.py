"""Event loop of the runner: one thread, one epoll, turns of bounded work.

A turn: hear the agent and the tasks, reap, look after endings; then one fdatasync for all starts and ends of this turn;
then report the ends and launch the starts. So nothing is started or reported before it is on disk, and many that arrive
together share one wait for the disk.

What is over comes first: as soon as a turn has heard what the agent has to say of answered beats, and before anything
is reported, whatever has outlived its lease is killed; once more before anything is started.

The runner ignores SIGHUP and SIGINT, and SIGTERM while it has tasks: a service manager that stops the agent must not
end jobs. After a SIGTERM it leaves as soon as it has none, unless another agent comes first.

`__main__` imports this only behind the fork, so that the guard, which stays there, holds none of it in memory.
"""

from __future__ import annotations

import gc
import os
import select
import signal
from contextlib import suppress

from stoker.agent.runner import clock, protocol
from stoker.agent.runner.files import disk_fault
from stoker.agent.runner.guard import locked
from stoker.agent.runner.journal import Journal, JournalDamaged
from stoker.agent.runner.log import complain
from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.kernel import give_back_memory, reserve
from stoker.agent.runner.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from stoker.agent.runner.guard import Guard
    from stoker.agent.runner.settings import RunnerSettings
    from stoker.agent.runner.task import RunnerTask

_LAUNCHES_PER_TURN: Final = 16
"""About 10 ms; output, stops and ends have their turn in between."""
_EVENTS_PER_TURN: Final = 256
_HOUSEKEEPING_S: Final = 30.0
_REWRITE_AGAIN_S: Final = 1.0
"""Pause before another try when the journal can't be written."""
_LOG_BYTES: Final = 64 * 1024
"""Kept for the runner's log, so that the next runner can say what is wrong with a disk that is full."""
_FAREWELL_S: Final = 2.0
"""How long the last words may take to reach the agent."""


def serve(settings: RunnerSettings, guard: Guard | None) -> int:
    """Be the runner of a data folder until nothing is left to do, and return the exit status."""
    try:
        os.chdir(settings.data_dir)
        lock = _lock()
        if lock < 0:
            return 3
        if guard is not None:
            guard.succeed()
        loop = RunnerLoop(settings, guard)
    except JournalDamaged as error:
        complain(str(error))
        return 4
    except OSError as error:
        complain(f"the data folder {settings.data_dir} can't be used: {error}")
        return 5
    # Forked children must not copy pages only because the collector looked at them.
    gc.collect()
    gc.freeze()
    give_back_memory()
    reserve(2, os.fstat(2).st_size, _LOG_BYTES)
    loop.run()
    return 0


def _lock() -> int:
    """Lock the data folder until this process ends, however it ends. -1 = another runner holds it."""
    lock = os.open(protocol.LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locked(lock):
        holder = os.read(lock, 32).decode("ascii", "replace").strip()
        complain(f"another runner, process {holder}, holds {os.getcwd()}")
        os.close(lock)
        return -1
    pid = f"{os.getpid()}\n".encode()
    os.pwrite(lock, pid, 0)  # over the former one: a disk that is full may have no block for an emptied file
    os.ftruncate(lock, len(pid))
    return lock


class RunnerLoop:
    """The runner of one data folder."""

    def __init__(self, settings: RunnerSettings, guard: Guard | None) -> None:
        """Raises OSError, JournalDamaged."""
        self._settings = settings
        self._guard = guard
        self._epoll = select.epoll()
        self._watched: dict[int, RunnerTask] = {}
        self._journal = Journal(f"{settings.data_dir}/journal", reserve)
        self._journal.load()
        self._supervisor = Supervisor(settings, self._journal, self._epoll, self._watch, self._close_watched)
        self._woken = self._listen_to_signals()
        if guard is not None:
            self._epoll.register(guard.descriptor, select.EPOLLIN)
        self._channel = protocol.Channel(protocol.SOCKET_NAME, self._epoll)
        self._greet = self._asked = False
        self._closing = False
        self._renounced = False
        self._term = False
        self._unguarded = False
        """It had a guard, and that is gone."""
        self._alone_since_s = clock.boot_s()
        self._housekeeping_at_s = 0.0
        self._rewrite_at_s = 0.0
        self._disk_error = ""

    def run(self) -> None:
        """Serve until nothing is left to do here."""
        self._supervisor.inherit()
        while not self._turn():
            pass
        if self._renounced:
            self._renounce()
        self._channel.say({"say": "bye", "error": ""})
        self._say_farewell()

    # --- a turn -------------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Do one turn, and return True when the runner may leave."""
        events = self._epoll.poll(self._patience_s(), _EVENTS_PER_TURN)
        self._supervisor.trees.look_again()
        for descriptor, what in events:
            self._hear(descriptor, what)
        self._end_leases()
        self._supervisor.reap()
        self._supervisor.advance()
        self._make_durable()
        self._end_leases()  # the disk may have taken its time
        self._supervisor.launch(_LAUNCHES_PER_TURN)
        self._warn_guard()
        self._write_hints()
        self._report()
        self._housekeep()
        return self._may_leave()

    def _end_leases(self) -> None:
        """Kill what has outlived its lease and tell the guard: a thousand kills may take longer than it waits."""
        self._supervisor.end_leases()
        self._warn_guard()

    def _warn_guard(self) -> None:
        """Tell the guard when the next lease is over.

        Before all that may hang on a disk, since it must know what is over meanwhile; and before each wait for events,
        since it takes a runner for stuck that lets a lease pass.
        """
        if self._guard is not None:
            self._guard.expect(self._supervisor.leases.due_s)

    def _patience_s(self) -> float:
        """Seconds that the next turn may wait for something to happen."""
        if self._supervisor.ready or self._supervisor.output_retention.trash.busy or self._greet:
            return 0
        due = [self._supervisor.next_check_s(), self._supervisor.leases.due_s, self._housekeeping_at_s]
        if self._supervisor.overs or self._disk_error:
            due.append(self._rewrite_at_s)
        if self._channel.talking < 0 and self._settings.tether_s and not self._closing:
            due.append(self._alone_since_s + self._settings.tether_s)
        if self._channel.talking < 0 and not self._supervisor.tasks:
            due.append(self._alone_since_s + self._settings.idle_exit_s)
        return max(0.0, min(due) - clock.boot_s())

    def _hear(self, descriptor: int, events: int) -> None:
        if descriptor == self._channel.talking:
            self._hear_agent()
        elif descriptor == self._channel.listening:
            if self._channel.accept():
                self._greet, self._term = True, False
        elif descriptor == self._woken:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        elif self._guard is not None and descriptor == self._guard.descriptor:
            self._guard_is_gone(self._guard)
        elif not self._supervisor.sessions.hear(descriptor, events):
            task = self._watched.get(descriptor)
            if task is not None:
                self._supervisor.hear(descriptor, task)

    def _hear_agent(self) -> None:
        for message in self._channel.receive():
            try:
                self._obey(message)
            except protocol.BadFrame as error:
                self._channel.dismiss(str(error))
                return

    def _obey(self, message: Mapping[str, object]) -> None:
        """Raises protocol.BadFrame."""
        deed = message.get("do")
        if deed == "start":
            if not self._closing:
                self._supervisor.start(protocol.read_start(message))
        elif deed == "stop":
            warning = protocol.read_warning(message)
            self._supervisor.stop(protocol.read_key(message), protocol.read_number(message, "grace_ms"), warning)
        elif deed == "warn":
            warning, once = protocol.read_warning(message), protocol.read_number(message, "once")
            if warning is not None:
                self._supervisor.warn(protocol.read_key(message), warning, once)
        elif deed == "signal":
            self._supervisor.signal(protocol.read_key(message), protocol.read_number(message, "number"))
        elif deed == "settle":
            self._journal.settle(protocol.read_key(message))
        elif deed == "recall":
            self._supervisor.recall(protocol.read_key(message))
        elif deed == "answered":
            self._supervisor.leases.answered(protocol.read_number(message, "at_ms") / 1000, clock.boot_s())
        elif deed == "ask":
            self._asked = True
        elif deed in ("shutdown", "renounce"):
            self._renounced = self._renounced or deed == "renounce"
            self._close()

    def _close(self) -> None:
        """End every task, and leave after that."""
        self._closing = True
        for key in list(self._supervisor.tasks):
            self._supervisor.stop(key, 0)

    # --- the disk -----------------------------------------------------------------------------------------------

    def _make_durable(self) -> None:
        """Write the starts and ends of this turn to disk, in one wait."""
        if not (self._supervisor.recorded or self._supervisor.overs or self._disk_error):
            return
        try:
            if not self._disk_error:
                self._journal.commit(durable=True)
            elif clock.boot_s() >= self._rewrite_at_s:
                self._journal.rewrite()
                self._disk_error = ""
        except OSError as error:
            self._disk_failed(error)
        if self._disk_error:
            self._supervisor.records_failed(self._disk_error)
            return
        self._supervisor.records_are_durable()
        if not self._greet:
            self._supervisor.news += ({"say": "over", **over} for over in self._supervisor.overs)
        self._supervisor.overs.clear()

    def _renounce(self) -> None:
        """Forget every end, now that nothing runs any more: the next runner finds an empty journal."""
        try:
            self._journal.renounce()
        except OSError as error:
            complain(f"the journal can't be written: {error}; what it holds of another cluster stays in it")

    def _write_hints(self) -> None:
        """Write what helps a later search, without a wait."""
        if self._disk_error:
            return
        try:
            self._journal.commit(durable=False)
        except OSError as error:
            self._disk_failed(error)

    def _disk_failed(self, error: OSError) -> None:
        """Nothing starts and no end is reported until the journal can be written anew, from memory."""
        again, self._disk_error = self._disk_error, error.strerror or str(error)
        self._rewrite_at_s = clock.boot_s() + _REWRITE_AGAIN_S
        if self._disk_error != again:
            complain(f"the journal can't be written: {error}; nothing starts here until it can")

    def _fault(self) -> str:
        """What keeps this runner from starting tasks and reporting ends; empty = nothing. The same words each time."""
        if self._disk_error:
            return f"the runner's journal can't be written: {self._disk_error}"
        return disk_fault(".", f"runner's data folder {self._settings.data_dir}")

    # --- the agent ----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._greet and self._channel.talking >= 0:
            self._say_inventory()
        else:
            for news in self._supervisor.news:
                self._channel.say(news)
        if self._asked:
            self._channel.say({"say": "health", "fault": self._fault()})
        self._greet = self._asked = False
        self._supervisor.news.clear()
        self._channel.flush()

    def _say_inventory(self) -> None:
        """Send the inventory in parts (P3 of `protocol`). What isn't durable isn't in `ends`."""
        waiting = {over["key"] for over in self._supervisor.overs}
        ends = [over for over in self._journal.offered_ends() if over["key"] not in waiting]
        tasks = list(self._supervisor.inventory())
        kept = list(self._journal.settled)
        most, kept_most = protocol.INVENTORY_PART_MAX, protocol.KEPT_PART_MAX
        parts = max(-(-max(len(ends), len(tasks)) // most), -(-len(kept) // kept_most), 1)
        for part in range(parts):
            cut, kept_cut = (slice(part * size, (part + 1) * size) for size in (most, kept_most))
            message: dict[str, object] = {
                "say": "inventory",
                "pid": os.getpid(),
                "boot_id": procfs.boot_id(),
                "notes": self._supervisor.cgroups.notes,
                "scripts": True,
                "containers": True,
                "cgroups": self._supervisor.cgroups.tree is not None,
                "guarded": self._guard is not None,
                "fault": self._fault(),
                "tasks_max": self._settings.tasks_max if self._settings.short_of else 0,
                "short_of": self._settings.short_of,
                "tasks": tasks[cut],
                "ends": ends[cut],
                "more": part + 1 < parts,
                "kept": kept[kept_cut],
            }
            self._channel.say(message)

    def _say_farewell(self) -> None:
        until_s = clock.boot_s() + _FAREWELL_S
        while self._channel.waiting and clock.boot_s() < until_s:
            self._channel.flush()
            self._epoll.poll(0.05)
        with suppress(FileNotFoundError):
            os.unlink(protocol.SOCKET_NAME)

    # --- now and then -------------------------------------------------------------------------------------------

    def _housekeep(self) -> None:
        self._supervisor.output_retention.trash.empty()
        now_s = clock.boot_s()
        if self._channel.talking >= 0:
            self._alone_since_s = now_s
        elif self._settings.tether_s and now_s >= self._alone_since_s + self._settings.tether_s and not self._closing:
            self._close()
        kept = len(self._journal.offered) + len(self._journal.settled)
        if now_s >= self._housekeeping_at_s or kept > self._settings.ends_max + 100:
            self._housekeeping_at_s = now_s + _HOUSEKEEPING_S
            oldest_ms = clock.wall_ms() - self._settings.ends_kept_s * 1000
            gone = self._journal.forget(self._settings.ends_max, oldest_ms)
            self._supervisor.output_retention.forget(gone, self._supervisor.tasks)
            give_back_memory()

    def _may_leave(self) -> bool:
        if self._supervisor.tasks or self._supervisor.overs or self._supervisor.recorded:
            return False
        if self._closing or self._term or self._unguarded:
            return True
        return self._channel.talking < 0 and clock.boot_s() - self._alone_since_s >= self._settings.idle_exit_s

    # --- descriptors and signals --------------------------------------------------------------------------------

    def _watch(self, descriptor: int, task: RunnerTask) -> None:
        self._watched[descriptor] = task
        self._epoll.register(descriptor, select.EPOLLIN)

    def _close_watched(self, descriptor: int) -> None:
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)
        os.close(descriptor)

    def _listen_to_signals(self) -> int:
        """Handle signals, and return the descriptor that becomes readable when one came."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, _nothing)
        signal.signal(signal.SIGTERM, self._terminated)
        self._epoll.register(read_end, select.EPOLLIN)
        return read_end

    def _guard_is_gone(self, guard: Guard) -> None:
        """Tell the agent that the guard died (G4 of `guard`). This runner ends once nothing runs: the next has one."""
        complain("the runner's guard was killed: should the runner be killed too, its tasks would run on")
        self._epoll.unregister(guard.descriptor)
        os.close(guard.descriptor)
        self._guard, self._unguarded = None, True
        self._supervisor.news.append({"say": "unguarded"})

    def _terminated(self, number: int, frame: object) -> None:
        self._term = True


def _nothing(number: int, frame: object) -> None:
    """A handler, unlike SIG_IGN, isn't inherited by jobs."""
