"""Notifications as facts of the log: what is due, what is told once, and what is tried again."""

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, JobId, TenantName
from stoker.brain.domain.notify import (
    ERROR_MAX,
    NOBODY,
    PAUSES_MS,
    TARGETS_MAX,
    TRIES_MAX,
    NoticeState,
    Notify,
    NotifyEvent,
    parse_target,
    target_shown,
    unique_targets,
)
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import PutTenant, Requeue, SettleNotification, Submit, TryNotification
from stoker.brain.state.events.job import NotificationSettled, NotificationTried
from tests.brain.state.story import ANNA, Story, spec

START, END, FAIL, WAIT = NotifyEvent.START, NotifyEvent.END, NotifyEvent.FAIL, NotifyEvent.WAIT
TEAM, ADA = "webhook:team", "mail:ada@example.org"
LAB = TenantName("lab")


def wanted(*on: NotifyEvent, to: tuple[str, ...] = (TEAM,), wait_ms: int = 0) -> Notify:
    return Notify(on=tuple(sorted(on)), to=to, wait_ms=wait_ms)


def one(*on: NotifyEvent, **fields: int) -> tuple[Story, JobId]:
    story = Story()
    story.node("n1")
    return story, story.submit(spec(notify=wanted(*on, **fields)))  # type: ignore[arg-type]  # wait_ms alone


def tried(story: Story, job: JobId) -> list[tuple[NotifyEvent, str]]:
    """Each that is due now, tried and sent."""
    told: list[tuple[NotifyEvent, str]] = []
    while events := story.do(TryNotification(by=CONTROL, job=job)):
        (event,) = events
        assert isinstance(event, NotificationTried)
        told.append((event.event, event.to))
        settle(story, job, event, NoticeState.SENT)
    return told


def settle(story: Story, job: JobId, event: NotificationTried, outcome: NoticeState, error: str = "") -> None:
    command = SettleNotification(by=CONTROL, job=job, event=event.event, to=event.to, outcome=outcome, error=error)
    story.do(command)


def next_at(story: Story) -> int | None:
    return story.state.indexes.notices.next_at()


def test_n1_each_event_is_told_once_to_each_target() -> None:
    story = Story()
    story.node("n1")
    job = story.submit(spec(notify=wanted(START, END, to=(TEAM, ADA))))
    assert tried(story, job) == []
    story.run(job, ("n1", 0))
    assert tried(story, job) == [(START, ADA), (START, TEAM)]
    story.end(job)
    assert tried(story, job) == [(END, ADA), (END, TEAM)]
    assert next_at(story) is None


def test_n1_a_job_that_a_person_runs_once_more_is_told_of_once_more_when_it_ends() -> None:
    story, job = one(START, END)
    story.run(job, ("n1", 0))
    story.end(job, exit_code=1)
    assert tried(story, job) == [(START, TEAM), (END, TEAM)]
    story.tell(Requeue, str(job))
    assert tried(story, job) == []
    story.run(job, ("n1", 0))
    story.end(job)
    assert tried(story, job) == [(END, TEAM)]


def test_n2_an_array_is_told_of_as_one_and_its_failure_at_the_first_failed_member() -> None:
    story = Story()
    story.node("n1")
    array = story.submit_array("0-2", notify=wanted(START, END, FAIL))
    assert story.decide() == ["1_0", "1_1", "1_2"]
    members = [story.run_named(f"1_{index}") for index in range(3)]
    assert tried(story, array) == [(START, TEAM)]
    story.end(members[0])
    assert tried(story, array) == []
    story.end(members[1], exit_code=1)
    assert tried(story, array) == [(FAIL, TEAM)]
    story.end(members[2], exit_code=1)
    story.all_due()
    assert tried(story, array) == [(END, TEAM)]
    assert [tried(story, member) for member in members] == [[], [], []]


def test_n2_a_cancelled_member_is_no_failed_one() -> None:
    story = Story()
    story.node("n1")
    array = story.submit_array("0-1", notify=wanted(FAIL))
    story.cancel(array)
    story.all_due()
    assert tried(story, array) == []


@pytest.mark.parametrize(
    ("on", "exit_code", "told"),
    [((END, FAIL), 1, [FAIL]), ((END, FAIL), 0, [END]), ((END,), 1, [END]), ((FAIL,), 0, [])],
    ids=["both_and_fails", "both_and_succeeds", "end_alone_and_fails", "fail_alone_and_succeeds"],
)
def test_n3_the_end_of_a_failed_job_is_told_once(
    on: tuple[NotifyEvent, ...], exit_code: int, told: list[NotifyEvent]
) -> None:
    story, job = one(*on)
    story.run(job, ("n1", 0))
    story.end(job, exit_code=exit_code)
    assert tried(story, job) == [(event, TEAM) for event in told]


def test_n3_a_cancelled_job_ended_and_did_not_fail() -> None:
    story, job = one(END, FAIL)
    story.cancel(job)
    assert tried(story, job) == [(END, TEAM)]


def test_n4_what_failed_is_tried_again_after_growing_pauses_and_then_given_up() -> None:
    story, job = one(END)
    story.cancel(job)
    for pause_ms in PAUSES_MS:
        (event,) = story.do(TryNotification(by=CONTROL, job=job))
        assert isinstance(event, NotificationTried)
        settle(story, job, event, NoticeState.RETRYING, "it answered 500")
        assert next_at(story) == story.now + pause_ms
        assert story.wait(pause_ms - 1).do(TryNotification(by=CONTROL, job=job)) == ()
        story.wait(1)
    (event,) = story.do(TryNotification(by=CONTROL, job=job))
    assert isinstance(event, NotificationTried)
    settle(story, job, event, NoticeState.RETRYING, "it answered 500" + "!" * ERROR_MAX)
    (notice,) = story.job(job).notices
    assert (notice.state, notice.tries, len(notice.error)) == (NoticeState.FAILED, TRIES_MAX, ERROR_MAX)
    assert next_at(story) is None
    assert story.wait(HOUR_MS).do(TryNotification(by=CONTROL, job=job)) == ()


@pytest.mark.parametrize("outcome", [NoticeState.UNKNOWN, NoticeState.FAILED, NoticeState.SENT])
def test_n4_what_may_have_arrived_or_was_refused_is_never_tried_again(outcome: NoticeState) -> None:
    story, job = one(END)
    story.cancel(job)
    (event,) = story.do(TryNotification(by=CONTROL, job=job))
    assert story.do(TryNotification(by=CONTROL, job=job)) == ()
    assert list(story.state.indexes.notices.trying) == [job]
    assert isinstance(event, NotificationTried)
    settle(story, job, event, outcome)
    assert story.do(TryNotification(by=CONTROL, job=job)) == ()
    assert list(story.state.indexes.notices.trying) == []


def test_m3_how_a_try_went_is_taken_once() -> None:
    story, job = one(END)
    story.cancel(job)
    (event,) = story.do(TryNotification(by=CONTROL, job=job))
    assert isinstance(event, NotificationTried)
    settle(story, job, event, NoticeState.UNKNOWN)
    settle(story, job, event, NoticeState.SENT)
    assert story.job(job).notices[0].state is NoticeState.UNKNOWN


def test_what_is_dropped_is_noted_and_not_tried() -> None:
    story, job = one(END)
    story.cancel(job)
    (event,) = story.do(TryNotification(by=CONTROL, job=job, drop=True))
    assert isinstance(event, NotificationSettled)
    assert (event.state, story.job(job).notices[0].tries) == (NoticeState.DROPPED, 0)
    assert story.do(TryNotification(by=CONTROL, job=job)) == ()


def test_n5_a_job_that_waits_for_so_long_is_told_of_once() -> None:
    story, job = one(WAIT, wait_ms=HOUR_MS)
    assert next_at(story) == story.now + HOUR_MS
    assert tried(story.wait(HOUR_MS - 1), job) == []
    assert tried(story.wait(1), job) == [(WAIT, TEAM)]
    assert tried(story.wait(HOUR_MS), job) == []


def test_n5_a_job_that_is_held_or_has_started_does_not_wait() -> None:
    story, job = one(WAIT, wait_ms=HOUR_MS)
    story.run(job, ("n1", 0))
    assert next_at(story) is None
    held = story.submit(spec(hold=True, notify=wanted(WAIT, wait_ms=HOUR_MS)))
    assert tried(story.wait(2 * HOUR_MS), held) == []


def test_n5_a_job_with_a_time_to_begin_waits_from_then() -> None:
    story = Story()
    begin = story.now + HOUR_MS
    job = story.submit(spec(begin=begin, notify=wanted(WAIT, wait_ms=MINUTE_MS)))
    assert next_at(story) == begin + MINUTE_MS
    assert tried(story.wait(HOUR_MS), job) == []


def test_what_was_told_outlives_a_snapshot() -> None:
    story, job = one(END)
    story.cancel(job)
    story.do(TryNotification(by=CONTROL, job=job))
    again = load_snapshot(snapshot_chunks(story.state))
    assert again.jobs[job].notices == story.job(job).notices
    assert list(again.indexes.notices.trying) == [job]


def test_tenants_are_due_each_for_itself() -> None:
    story = Story()
    story.do(PutTenant(by=ANNA, tenant=Tenant(name=LAB), create=True))
    mine = [story.submit(spec(notify=wanted(END))) for _ in range(3)]
    theirs = story.submit(spec(tenant=LAB, notify=wanted(END)))
    for job in (*mine, theirs):
        story.cancel(job)
    notices = story.state.indexes.notices
    assert list(notices.due(story.now, 2)) == [("default", mine[:2], 3), (LAB, [theirs], 1)]
    assert notices.latest_due(TenantName("default"), story.now, beyond=1, most=1) == [mine[1]]


# --- defaults of tenants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "becomes"),
    [
        (None, wanted(FAIL)),
        (NOBODY, NOBODY),
        (Notify(on=(START,)), wanted(START)),
        (Notify(to=(ADA,)), wanted(FAIL, to=(ADA,))),
        (wanted(END, to=(ADA,)), wanted(END, to=(ADA,))),
    ],
    ids=["nothing_said", "none", "events_alone", "targets_alone", "both"],
)
def test_what_a_job_does_not_say_its_tenant_says(own: Notify | None, becomes: Notify) -> None:
    story = Story()
    story.do(PutTenant(by=ANNA, tenant=Tenant(name=LAB, notify=wanted(FAIL)), create=True))
    beneath = Tenant(name=TenantName("vision"), parent=LAB)
    story.do(PutTenant(by=ANNA, tenant=beneath, create=True))
    assert story.job(story.submit(spec(tenant="vision", notify=own))).spec.notify == becomes


def test_without_a_tenants_word_targets_alone_are_told_of_the_end() -> None:
    story = Story()
    assert story.job(story.submit(spec(notify=Notify(to=(ADA,))))).spec.notify == wanted(END, to=(ADA,))


def test_events_that_nobody_would_be_told_of_are_refused() -> None:
    story = Story()
    refusal = story.refused(Submit(by=ANNA, specs=(spec(notify=Notify(on=(END,))),)))
    assert (refusal.code, "nobody" in refusal.message) == ("bad_notify", True)
    lab = Tenant(name=LAB, notify=Notify(on=(END,)))
    assert story.refused(PutTenant(by=ANNA, tenant=lab, create=True)).code == "bad_notify"


# --- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("team", "webhook:team"),
        ("webhook:team", "webhook:team"),
        ("mail:ada.l+jobs@example.org", "mail:ada.l+jobs@example.org"),
        ("https://hooks.example.org/a/b?c=d", "https://hooks.example.org/a/b?c=d"),
        ("slack:https://hooks.slack.com/services/T/B/x", "slack:https://hooks.slack.com/services/T/B/x"),
    ],
)
def test_a_target_is_kept_in_one_form(text: str, kept: str) -> None:
    assert parse_target(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        *("", "mail:", "mail:ada", "mail:ada@", "mail:a@b@c", "mail:ada@example.org\nBcc: x@y.z", "mail:a b@c.d"),
        *("mail:ada@example.org,bob@example.org", "mail:<ada@example.org>", "webhook:", "webhook:a/b", "te am"),
        *("ftp://x.org/", "file:///etc/passwd", "https://", "https://u:p@x.org/", "https://x.org/#f", "slack:team"),
        *(
            "https://x.org/a b",
            "https://x.org/a/../b",
            "https://x.org\\@y.org/",
            "https://x.org:99999/",
            "https://ä.de/",
        ),
        f"https://x.org/{'a' * 500}",
    ],
)
def test_what_can_be_told_nothing_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(StokerError) as refused:
        parse_target(text)
    assert (refused.value.refusal.code, bool(refused.value.refusal.hint)) == ("bad_notify", True)


def test_so_many_targets_are_taken_and_each_once() -> None:
    assert unique_targets(("team", "webhook:team")) == ("webhook:team",)
    unique_targets(tuple(f"t{number}" for number in range(TARGETS_MAX)))
    with pytest.raises(StokerError) as refused:
        unique_targets(tuple(f"t{number}" for number in range(TARGETS_MAX + 1)))
    assert refused.value.refusal.facts == {"targets": TARGETS_MAX + 1, "targets_max": TARGETS_MAX}


def test_of_a_url_only_the_machine_is_shown() -> None:
    assert target_shown("slack:https://hooks.slack.com/services/T/B/x") == "slack:hooks.slack.com"
    assert target_shown("https://ci.example.org:8443/hook?token=x") == "url:ci.example.org:8443"
    assert target_shown(ADA) == ADA
