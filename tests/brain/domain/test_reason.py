"""Sentences of reasons: numbers agree with nouns, instants are times, and hints name what is at hand (W1 to W3)."""

import re
from string import Formatter

import pytest

from stoker.brain.domain import reason as words
from stoker.brain.domain.errors import Facts
from stoker.brain.domain.reason import Reason, ReasonCode, describe, hint_for
from stoker.brain.domain.units import counted

NOUNS = "GPU|CPU|node|task|job|member|time|attempt"
WRONG = re.compile(
    rf"\((?:s|es)\)|\b1 (?:suitable )?(?:{NOUNS})s\b|\b(?:0|2) (?:suitable )?(?:{NOUNS})\b|\b1 are\b|\b(?:0|2) is\b"
)
TEXTS = {"among", "pool", "address", "asked", "largest", "tenant", "what", "ails", "by"}
"""Facts that are texts."""
AT = 1_795_910_597_113


def facts_of(code: ReasonCode, number: int) -> Facts:
    """Return every fact that the sentence and the hint of a reason name, each this number."""
    names = {name for text in words._SENTENCES[code] for _, name, _, _ in Formatter().parse(text) if name}
    return {name: "some" if name in TEXTS else number for name in sorted(names)}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_number_agrees_with_its_noun(code: ReasonCode, number: int) -> None:
    reason = Reason(code, facts_of(code, number))
    for said in (describe(reason), hint_for(reason)):
        assert not WRONG.search(said), said


@pytest.mark.parametrize("said", ["1 GPUs", "2 node", "0 suitable GPU", "3 task(s)", "at most 1 are", "at most 2 is"])
def test_a_number_that_does_not_agree_would_be_seen(said: str) -> None:
    assert WRONG.search(f"it has {said} free")


def test_a_counted_noun_takes_its_plural_from_the_number() -> None:
    assert [counted(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert counted(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize("code", list(ReasonCode))
def test_no_sentence_says_an_instant_as_a_number_also_of_records_of_earlier_versions(code: ReasonCode) -> None:
    facts = {**facts_of(code, 1), **dict.fromkeys(("until", "since", "begin"), AT)}
    reason = Reason(code, facts)
    assert str(AT) not in describe(reason) + hint_for(reason)


def test_a_job_that_waits_for_its_next_try_is_told_when_that_is() -> None:
    old = Reason(ReasonCode.RETRY_BACKOFF, {"attempt": 1, "outcome": "failed", "why": "", "until": AT})
    assert describe(old) == "attempt 1 ended (failed); the next try waits until 2026-11-29 00:03:17 UTC"


@pytest.mark.parametrize("code", list(ReasonCode))
def test_a_hint_names_the_job_it_is_about_and_none_where_none_is_known(code: ReasonCode) -> None:
    assert "ID" not in hint_for(Reason(code), job="7_3").split("`")[1::2]
    assert not re.search(r"stoker (?:status|logs|release|requeue) ID", hint_for(Reason(code), job="7_3"))
    assert "{" not in hint_for(Reason(code)) + describe(Reason(code))


@pytest.mark.parametrize(
    ("facts", "said", "hint"),
    [
        ({"needed": 1, "tasks": 1, "per_task": 1, "free": 0, "best": 0}, "it needs 1 GPU", "holds such a GPU ends"),
        ({"needed": 2, "tasks": 1, "per_task": 2, "free": 2, "best": 1}, "2 that suit are free", "`--tasks`"),
        (
            {"needed": 4, "tasks": 1, "per_task": 4, "free": 1, "best": 1},
            "1 that suits is free",
            "fewer GPUs per task",
        ),
        ({"needed": 4, "tasks": 4, "per_task": 1, "free": 1, "best": 1}, "for 4 tasks of 1", "fewer `--tasks`"),
    ],
)
def test_a_job_that_waits_for_gpus_is_told_only_what_it_could_ask_less_of(facts: Facts, said: str, hint: str) -> None:
    reason = Reason(ReasonCode.INSUFFICIENT_GPUS, facts)
    assert said in describe(reason)
    assert hint in hint_for(reason)
    assert ("--tasks" in hint_for(reason)) is ("--tasks" in hint)
    assert ("per task" in hint_for(reason)) is ("per task" in hint)


def test_nodes_that_are_not_available_are_counted_by_what_ails_them_and_who_drains_one_is_named() -> None:
    ails: Facts = {"unreachable": 0, "faulty": 1, "draining": 1, "paused": 0, "forgotten": 0}
    drained: Facts = {"node": "gpu-1", "drained": "gpu-1 drained by user:ada: replace fan"}
    reason = Reason(ReasonCode.NODES_UNAVAILABLE, {"fitting": 2, **ails, **drained})
    assert describe(reason) == (
        "2 nodes could run it, but none is available: 1 faulty, 1 draining (gpu-1 drained by user:ada: replace fan)"
    )
    assert "`stoker node resume gpu-1`" in hint_for(reason)


def test_a_held_job_says_who_holds_it_and_one_held_before_that_was_noted_that_somebody_does() -> None:
    by: Facts = {"by": "user:ada", "since": "2026-11-29 00:03:17 UTC", "since_ms": AT}
    assert describe(Reason(ReasonCode.HELD, by)) == "ada holds it since 2026-11-29 00:03:17 UTC"
    assert describe(Reason(ReasonCode.HELD, {"by": ""})) == "a person holds it"
    assert hint_for(Reason(ReasonCode.HELD, by), job="7") == "`stoker release 7` lets it run"


@pytest.mark.parametrize("code", [ReasonCode.EXITED, ReasonCode.KILLED_BY_SIGNAL])
def test_the_hint_of_a_gang_that_failed_leads_to_the_lines_of_the_rank_that_failed_first(code: ReasonCode) -> None:
    first: Facts = {"exit_code": 3, "signal": 9, "rank": 2, "node": "gpu-4", "tasks": 3}
    assert hint_for(Reason(code, first), job="7").startswith("`stoker logs 7.2` ")
    assert hint_for(Reason(code, {"exit_code": 3, "signal": 9}), job="7").startswith("`stoker logs 7` ")


@pytest.mark.parametrize("failed", [0, 1])
def test_the_hint_of_an_array_that_has_ended_names_that_array(failed: int) -> None:
    ended = Reason(ReasonCode.MEMBERS_ENDED, {"succeeded": 2, "failed": failed, "cancelled": 0, "others": failed})
    assert "`stoker list 7`" in hint_for(ended, job="7")
    told = hint_for(ended, job="7", name="a b", forgotten=True)
    assert told == "`stoker list --members --name 'a b'` shows them", "a list of what is forgotten is refused"


@pytest.mark.parametrize("code", [ReasonCode.CANCELLED, ReasonCode.REQUEUED, ReasonCode.HELD])
def test_a_person_who_gave_an_order_is_named_as_lists_name_people(code: ReasonCode) -> None:
    assert "ada" in describe(Reason(code, {"by": "user:ada"}))
    assert "user:" not in describe(Reason(code, {"by": "user:ada"}))
    assert "token:" in describe(Reason(code, {"by": "token:abc"})), "who has no name keeps the kind"


def test_a_peak_of_memory_that_a_node_can_not_tell_is_left_out() -> None:
    used: Facts = {"limit_mb": 64, "peak_mb": 0, "node": "n1"}
    assert describe(Reason(ReasonCode.OUT_OF_MEMORY, used)) == "it used up its memory limit of 64 MiB on n1"
    gang = describe(Reason(ReasonCode.OUT_OF_MEMORY, {**used, "rank": 1, "tasks": 2}))
    assert gang == "rank 1 on n1 used up its memory limit of 64 MiB first, of 2 ranks"
    assert describe(Reason(ReasonCode.OUT_OF_MEMORY, {**used, "peak_mb": 63})).endswith("(peak 63 MiB)")
