"""Parts of the sentences about reasons that are made of facts: numbers with their nouns, instants, people, clauses.

The rules W1 and W2 stand in `reason`.
"""

from typing import Final

from stoker.brain.domain.errors import Facts, FactValue
from stoker.brain.domain.ids import Principal, account_of
from stoker.brain.domain.units import Instant, counted, utc_text

TAKEN_FOR: Final = {
    "preempted": ", whose priority is higher",
    "reclaimed": ", which got back GPUs that were borrowed",
}
"""Why GPUs were taken back, by the cause of the stop."""
_ENDS: Final = {
    "cancelled": "it was cancelled by {by} and is ending",
    "timeout": "it ran longer than its limit of {limit} and is ending",
    "requeued": "{by} asked for another try, and this one is ending",
    "preempted": "it gives way to job {job}, whose priority is higher",
    "reclaimed": "it gives way to job {job}, which gets back GPUs that were borrowed",
    "member_ended": "one of its ranks has ended{first}, so the others are told to end",
}
"""Why an attempt is ending, by the cause of its stop."""
_WAITS_AGAIN: Final = "it then waits for its turn again, at its old place in the queue"
_THEN: Final = {
    "requeued": f"; {_WAITS_AGAIN}",
    "preempted": f"; {_WAITS_AGAIN}",
    "reclaimed": f"; {_WAITS_AGAIN}",
}
_INSTANTS: Final = frozenset({"until", "since", "begin"})
"""Facts that are instants; records of earlier versions have them as milliseconds since 1970 (W2)."""


class _Value:
    """Value of a fact in a sentence; a format such as `GPU|GPUs` puts the noun behind it (W1)."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self._value)
        one, many = spec.removeprefix("=").split("|")
        word = one if self._value == 1 else many
        return word if spec.startswith("=") else f"{self._value} {word}"


class SentenceFacts(dict[str, _Value]):
    """Values for a sentence, with a mark for each that is missing."""

    def __init__(self, facts: Facts, missing: str = "?") -> None:
        super().__init__({name: _Value(readable(name, value)) for name, value in facts.items()})
        self._missing = missing

    def __missing__(self, key: str) -> _Value:
        return _Value(self._missing or key.upper())


def readable(name: str, value: FactValue) -> FactValue:
    return utc_text(Instant(value)) if name in _INSTANTS and type(value) is int else value


def share_clauses(facts: Facts) -> Facts:
    memory_mb, tasks, best = facts.get("memory_mb"), facts.get("tasks"), facts.get("best")
    within = f" within {memory_mb} MiB" if memory_mb else ""
    if tasks != 1:
        within += f" for each of {tasks} tasks, and there is room for {facts.get('room')} of them"
    if best is None:
        return {"within": within, "rest": ""}
    sharers, most = facts.get("sharers"), facts.get("sharers_max")
    left = f"{best} with {facts.get('best_memory_mb')} MiB"
    others = counted(sharers, "sharer") if isinstance(sharers, int) else "sharers"
    at_most = f" of at most {most}" if sharers == most else ""
    rest = f"; the largest rest is {left} on node {facts.get('node')}, with {others}{at_most}"
    return {"within": within, "rest": rest}


def ending_clauses(facts: Facts) -> Facts:
    cause = str(facts.get("cause"))
    first = f" ({facts['how']})" if facts.get("how") else ""
    named: Facts = {**facts, "by": person(facts), "first": first}
    ends = _ENDS.get(cause, "it is ending").format_map(SentenceFacts(named))
    then = "; it is held then" if facts.get("hold") else _THEN.get(cause, "")
    return {"ends": ends, "then": then}


def person(facts: Facts) -> str:
    return account_of("", Principal(str(facts.get("by", "?"))))
