"""What does a story tell a failover machine, and what does it answer?

A file is prose with blocks in it; a block begins with one of the words below and a colon at the start of a line, and
its lines are indented by two. What the machine answers stands below each line, indented by six.

    machine:  whose it is: `b peers=1 fast shared async`
    told:     what it is told, and when: `TIME WORDS`. Words are
                log E:P [unfit]        its log ends at position P, with a record of epoch E
                seen V HOLDER e=E in=a,b at=P     a look has come back; also `seen nothing`, `seen ours` (what we put
                                       last), `seen same` (what was known before). More words: `acks=alone` (mode
                                       async), `lossy=yes`, `lease=S`
                won | beaten | lost    what became of the put under way; `lost` also of a look
                said b active E:P      a peer has spoken (or `standby`)
                caught_up b | fell_behind b | promised E | force | resign | tick
                until                  nothing but time passes: ticks when they are due; each look shows the same
                ?                      what others read: role, epoch, whom it waits for, and why

A member is written as its name; `a'` has that name and another data folder. The time of a look is the time before, when
it was asked for. Pings are left out, and so are looks while `until` answers them.

`pytest tests/brain/failover --rewrite` writes the answers into the files, for review.
"""

import re
from pathlib import Path
from typing import Final

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover import effects, inputs
from stoker.brain.failover.effects import Effect
from stoker.brain.failover.inputs import ControlRole, Input
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import Membership
from stoker.brain.failover.timing import DEFAULT, FAST

FOLDER: Final = Path(__file__).parent / "stories"
TICKS_MAX: Final = 1_000
_TOLD: Final = re.compile(r"  (\d+(?:\.\d+)?) (\S.*)")
_ANSWER: Final = "      "


class BadStory(Exception):
    """The line that can't be read, and why."""


def answered(text: str) -> str:
    """The story with the machine's answers. Equal to `text` when it says what it should."""
    story, block, out = _Story(), "", []
    for number, line in enumerate(text.splitlines(), start=1):
        heading = re.fullmatch(r"(machine|told):(.*)", line)
        if heading:
            block = heading.group(1)
        elif not line.startswith("  "):
            block = ""
        if block == "told" and line.startswith(_ANSWER):
            continue
        out.append(line)
        try:
            if heading and block == "machine":
                story.begin(heading.group(2).split())
            elif block == "told" and not heading:
                out += [_ANSWER + said for said in story.tell(line)]
        except (ValueError, KeyError, IndexError, AssertionError) as problem:
            raise BadStory(f"line {number}: {line.strip()!r}: {problem}") from problem
    return "\n".join(out) + "\n"


class _Story:
    def __init__(self) -> None:
        self.begin(["b", "peers=1"])

    def begin(self, words: list[str]) -> None:
        settings = dict(word.split("=") for word in words[1:] if "=" in word)
        self._machine = Machine(
            Membership(
                me=member(words[0]),
                peers=int(settings.get("peers", 1)),
                shared_log="shared" in words,
                sync="async" not in words,
            ),
            timing=FAST if "fast" in words else DEFAULT,
            tenure_id=words[0],
            http="",
        )
        self._shown: LeaseRecord | None = None
        self._ours: LeaseRecord | None = None
        self._asked_at = self._now = Mono(0.0)
        self._under_way = ""

    def tell(self, line: str) -> list[str]:
        told = _TOLD.fullmatch(line)
        if told is None:
            raise ValueError("write `  TIME WORDS`")
        now, words = Mono(float(told.group(1))), told.group(2).split()
        if words == ["?"]:
            return [self._read_by_others(now)]
        if words == ["until"]:
            return self._until(now)
        return [
            describe(effect) for effect in self._step(self._read(words), now) if not isinstance(effect, effects.Ping)
        ]

    def _step(self, told: Input, now: Mono) -> tuple[Effect, ...]:
        self._now = now
        done = self._machine.step(told, now)
        for effect in done:
            if isinstance(effect, effects.WriteLeaseRecord):
                self._ours, self._under_way = effect.record, "put"
            elif isinstance(effect, effects.ReadLeaseRecord):
                self._asked_at, self._under_way = now, "look"
        return done

    def _until(self, end: Mono) -> list[str]:
        out: list[str] = []
        for _ in range(TICKS_MAX):
            if self._under_way == "look":
                self._under_way = ""
                now, told = self._now, self._same()
            else:
                now, told = self._machine.next_tick, inputs.Tick()
            if now > end:
                return out
            out += [
                f"{now:.2f} {describe(effect)}" for effect in self._step(told, now) if not isinstance(effect, _QUIET)
            ]
        raise ValueError("it spins")

    def _same(self) -> Input:
        return inputs.LeaseRecordRead(record=self._shown, asked_at=self._asked_at)

    def _read(self, words: list[str]) -> Input:
        match words:
            case ["log", end, *rest]:
                epoch, position = _end(end)
                return inputs.LogState(epoch=epoch, position=position, fit=rest != ["unfit"])
            case ["seen", *rest]:
                self._answers("look")
                self._shown = self._marker(rest)
                return self._same()
            case ["said", who, role, end]:
                epoch, position = _end(end)
                return inputs.PeerState(member=member(who), role=ControlRole(role), epoch=epoch, position=position)
            case ["promised", epoch]:
                return inputs.Promised(Epoch(int(epoch)))
            case ["caught_up", who]:
                return inputs.CaughtUp(member(who))
            case ["fell_behind", who]:
                return inputs.FellBehind(member(who))
            case ["lost"]:
                self._answers("look", "put")
                return inputs.LeaseRecordFailed("no answer")
            case ["won" | "beaten" as outcome]:
                self._answers("put")
                assert self._ours is not None
                return inputs.LeaseRecordWritten(record=self._ours, won=outcome == "won")
            case [word] if word in _PLAIN:
                return _PLAIN[word]
        raise ValueError("not known; the words stand at the head of loader.py")

    def _answers(self, *asked: str) -> None:
        if self._under_way not in asked:
            raise ValueError(f"no {' or '.join(asked)} is under way")
        self._under_way = ""

    def _marker(self, words: list[str]) -> LeaseRecord | None:
        if words == ["nothing"]:
            return None
        if words in (["ours"], ["same"]):
            return self._ours if words == ["ours"] else self._machine.lease_record
        said = dict(word.split("=") for word in words[2:])
        return LeaseRecord(
            version=int(words[0]),
            epoch=Epoch(int(said["e"])),
            holder=None if words[1] == "nobody" else member(words[1]),
            in_sync=tuple(member(name) for name in said.get("in", words[1]).split(",")),
            position=Position(int(said.get("at", 0))),
            sync=said.get("acks") != "alone",
            lossy="lossy" in said,
            lease_s=float(said.get("lease", 0)),
            mark=f"{words[1]}.{words[0]}",
        )

    def _read_by_others(self, now: Mono) -> str:
        machine = self._machine
        waits = f" for {_names(machine.in_sync)}" if machine.role is ControlRole.ACTIVE else ""
        lease = f", holds until {machine.lease_until:g}" if machine.holds(now) else ""
        return f"{machine.role} {machine.epoch}{waits}{lease}{': ' + machine.why if machine.why else ''}"


_QUIET: Final = (effects.Ping, effects.ReadLeaseRecord)
_PLAIN: Final[dict[str, Input]] = {
    "tick": inputs.Tick(),
    "force": inputs.ForcePromotion(),
    "resign": inputs.Resign(),
}


def describe(effect: Effect) -> str:
    """One effect, in words."""
    match effect:
        case effects.ReadLeaseRecord():
            return "look"
        case effects.WriteLeaseRecord(marker):
            holder = marker.holder.name if marker.holder else "nobody"
            said = f"put {marker.version} {holder} e={marker.epoch} in={_names(marker.in_sync)} at={marker.position}"
            more = ("" if marker.sync else " acks=alone") + (" lossy=yes" if marker.lossy else "")
            return f"{said}{more} ({marker.mark})"
        case effects.Promise(epoch):
            return f"promise {epoch}"
        case effects.Follow(epoch):
            return f"follow {epoch}"
        case effects.Lead(epoch=epoch, forced=forced):
            return f"lead {epoch}{' by force' if forced else ''}"
        case effects.InSyncChanged(in_sync):
            return f"wait for {_names(in_sync)}"
        case effects.StepDown(code=code, why=why):
            return f"step down, {code}: {why}"
    return "ping"


def member(word: str) -> Member:
    """`a`, or `a'` for one of that name whose data folder is another."""
    return Member(name=word.rstrip("'"), uid=f"{word.rstrip(chr(39))}{1 + word.count(chr(39))}")


def _names(members: tuple[Member, ...]) -> str:
    return ",".join(one.name + "'" * (int(one.uid[len(one.name) :]) - 1) for one in members)


def _end(text: str) -> tuple[Epoch, Position]:
    epoch, position = text.split(":")
    return Epoch(int(epoch)), Position(int(position))
