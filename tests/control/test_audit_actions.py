"""Every command of a person leaves one row, and which: the rules of `control.audit_actions`."""

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.array import JobRef, parse_array, parse_job_ref
from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.ids import JobId, NodeName, PartitionName, Principal, TenantName
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.job_changes import JobChanges
from stoker.brain.domain.label import Taint
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.quota import Limits, Pools, Quota
from stoker.brain.domain.tenant import NO_TENANT, Tenant, Tier
from stoker.brain.domain.units import DAY_MS, Instant
from stoker.brain.state import commands as told_to
from stoker.brain.state.commands import Command
from stoker.brain.state.events.tenant import tenant_text
from stoker.control.audit_actions import ACTIONS
from stoker.control.feed import Entry
from tests.brain.state.story import secret
from tests.control.audit_stage import rows_of, token, told, written
from tests.control.history_stage import worker
from tests.control.stage import ANNA, Stage, spec, stage, virtual

N1, NOWHERE = NodeName("n1"), NodeName("n9")
OF_OTHERS = (
    *(told_to.Register, told_to.CompareInventory, told_to.ReportStarted, told_to.ReportEnding, told_to.ReportFinished),
    *(told_to.WithholdStart, told_to.TryNotification, told_to.SettleNotification),
    *(told_to.NodeSilent, told_to.LoseSilent, told_to.NodeResponded, told_to.RunDeadlines, told_to.BeginEpoch),
    *(told_to.RestoreCluster, told_to.MoveClock),
)
"""What nodes report and the control plane tells itself; people can't say it."""
RUNS, WAITS, HELD, ENDED, UNKNOWN = (JobRef(JobId(number)) for number in (1, 2, 3, 4, 999))
"""The jobs of `prepare`."""


JOIN = Token(id=TokenId("jjjjjjjj"), digest="of-the-join-token", role=Role.JOIN, node="n*")
KEY = Token(id=TokenId("kkkkkkkk"), digest="of-the-key", role=Role.AGENT, node="n9")
SESSION: dict[str, Any] = {"id": TokenId("ssssssss"), "digest": "of-the-session", "expires_at": Instant(2**50)}


async def prepare(s: Stage) -> None:
    """One job of each kind, and one of each noun."""
    player = await s.join("n1", 1)
    await s.submit()
    start = await player.next_start()
    await player.say_started(start.key)
    await s.submit()
    await s.submit(hold=True)
    await s.cancel(await s.submit())
    for command in (
        told_to.PutPartition(by=ANNA, partition=Partition(name=PartitionName("night")), create=True),
        told_to.PutTenant(by=ANNA, tenant=Tenant(name=TenantName("vision")), create=True),
        told_to.CreateToken(by=ANNA, token=token("aaaaaaaa")),
        told_to.CreateToken(by=ANNA, token=JOIN),
        told_to.SetSecret(by=ANNA, secret=secret("WANDB_API_KEY")),
    ):
        await s.committer.ask(command)


CASES: dict[type, tuple[Command, Command, str]] = {
    told_to.Submit: (
        told_to.Submit(by=ANNA, specs=(spec(),)),
        told_to.Submit(by=ANNA, specs=(spec(tenant="nobody"),)),
        "unknown_tenant",
    ),
    told_to.Cancel: (told_to.Cancel(by=ANNA, target=WAITS), told_to.Cancel(by=ANNA, target=ENDED), "job_ended"),
    told_to.Hold: (told_to.Hold(by=ANNA, target=WAITS), told_to.Hold(by=ANNA, target=RUNS), "job_live"),
    told_to.Release: (told_to.Release(by=ANNA, target=HELD), told_to.Release(by=ANNA, target=RUNS), "not_held"),
    told_to.Requeue: (told_to.Requeue(by=ANNA, target=ENDED), told_to.Requeue(by=ANNA, target=WAITS), "job_waits"),
    told_to.SignalJob: (
        told_to.SignalJob(by=ANNA, target=RUNS, signal=10),
        told_to.SignalJob(by=ANNA, target=UNKNOWN, signal=10),
        "job_unknown",
    ),
    told_to.UpdateJob: (
        told_to.UpdateJob(by=ANNA, target=RUNS, changes=JobChanges(comment="mine")),
        told_to.UpdateJob(by=ANNA, target=ENDED, changes=JobChanges(comment="mine")),
        "job_ended",
    ),
    told_to.ForwardPort: (
        told_to.ForwardPort(by=ANNA, target=RUNS, rank=0, port=8888),
        told_to.ForwardPort(by=ANNA, target=RUNS, rank=1, port=8888),
        "attempt_unknown",
    ),
    told_to.EnterTask: (
        told_to.EnterTask(by=ANNA, target=RUNS, rank=0, program="bash"),
        told_to.EnterTask(by=ANNA, target=RUNS, rank=1, program="bash"),
        "attempt_unknown",
    ),
    told_to.DrainNode: (
        told_to.DrainNode(by=ANNA, node=N1, reason="fans"),
        told_to.DrainNode(by=ANNA, node=NOWHERE, reason="fans"),
        "node_unknown",
    ),
    told_to.ResumeNode: (
        told_to.ResumeNode(by=ANNA, node=N1),
        told_to.ResumeNode(by=ANNA, node=NOWHERE),
        "node_unknown",
    ),
    told_to.ForgetNode: (
        told_to.ForgetNode(by=ANNA, node=N1, force=True),
        told_to.ForgetNode(by=ANNA, node=N1, force=False),
        "node_in_use",
    ),
    told_to.LabelNode: (
        told_to.LabelNode(by=ANNA, node=N1, labels={"zone": "a"}),
        told_to.LabelNode(by=ANNA, node=NOWHERE, labels={"zone": "a"}),
        "node_unknown",
    ),
    told_to.TaintNode: (
        told_to.TaintNode(by=ANNA, node=N1, taints=(Taint("night"),)),
        told_to.TaintNode(by=ANNA, node=NOWHERE, taints=(Taint("night"),)),
        "node_unknown",
    ),
    told_to.PutPartition: (
        told_to.PutPartition(by=ANNA, partition=Partition(name=PartitionName("day")), create=True),
        told_to.PutPartition(by=ANNA, partition=Partition(name=PartitionName("night")), create=True),
        "partition_exists",
    ),
    told_to.DeletePartition: (
        told_to.DeletePartition(by=ANNA, name=PartitionName("night")),
        told_to.DeletePartition(by=ANNA, name=PartitionName("dusk")),
        "partition_unknown",
    ),
    told_to.PutTenant: (
        told_to.PutTenant(by=ANNA, tenant=Tenant(name=TenantName("speech")), create=True),
        told_to.PutTenant(by=ANNA, tenant=Tenant(name=TenantName("vision")), create=True),
        "tenant_exists",
    ),
    told_to.DeleteTenant: (
        told_to.DeleteTenant(by=ANNA, name=TenantName("vision")),
        told_to.DeleteTenant(by=ANNA, name=TenantName("default")),
        "tenant_in_use",
    ),
    told_to.SetPools: (
        told_to.SetPools(by=ANNA, pools=Pools(online=500_000, batch=500_000)),
        told_to.SetPools(by=ANNA, pools=Pools(online=700_000, batch=700_000)),
        "bad_share",
    ),
    told_to.CreateToken: (
        told_to.CreateToken(by=ANNA, token=token("bbbbbbbb")),
        told_to.CreateToken(by=ANNA, token=token("bbbbbbbb", tenant=NO_TENANT)),
        "bad_token",
    ),
    told_to.OpenSession: (
        told_to.OpenSession(by=ANNA, shown=TokenId("aaaaaaaa"), **SESSION),
        told_to.OpenSession(by=ANNA, shown=JOIN.id, **SESSION),
        "not_allowed",
    ),
    told_to.RevokeToken: (
        told_to.RevokeToken(by=ANNA, id=TokenId("aaaaaaaa")),
        told_to.RevokeToken(by=ANNA, id=TokenId("zzzzzzzz")),
        "token_not_found",
    ),
    told_to.SetSecret: (
        told_to.SetSecret(by=ANNA, secret=secret("HF_TOKEN")),
        told_to.SetSecret(by=ANNA, secret=secret("HF-TOKEN")),
        "bad_secret",
    ),
    told_to.DeleteSecret: (
        told_to.DeleteSecret(by=ANNA, secret=secret("WANDB_API_KEY").id),
        told_to.DeleteSecret(by=ANNA, secret=secret("NOBODY_SET_IT").id),
        "secret_unknown",
    ),
    told_to.JoinNode: (
        told_to.JoinNode(by=ANNA, token=KEY, join=JOIN.id),
        told_to.JoinNode(by=ANNA, token=KEY, join=TokenId("zzzzzzzz")),
        "not_allowed",
    ),
}
"""Of each command of a person one that is carried out, one that is refused, and by which code."""
KINDS = [kind for kind in get_args(Command) if kind not in OF_OTHERS]


def test_every_command_is_a_persons_and_has_an_action_or_is_of_nodes_and_the_control_plane() -> None:
    assert list(ACTIONS) == KINDS
    assert len(dict.fromkeys(ACTIONS.values())) == len(ACTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_is_carried_out_leaves_one_row(kind: type) -> None:
    @virtual
    async def scene() -> None:
        async with stage() as s:
            await prepare(s)
            if kind is told_to.ResumeNode:
                await s.committer.ask(told_to.DrainNode(by=ANNA, node=N1, reason="fans"))
            command, _, _ = CASES[kind]
            (row,) = await told(s, command)
            assert (row.by, row.action, row.outcome, row.times) == (ANNA, ACTIONS[kind], "ok", 1)
            assert row.at == s.state.last_at
            await s.pause()
            assert written(s)[-1] == row

    scene()


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_is_refused_leaves_one_row_with_the_code(kind: type) -> None:
    @virtual
    async def scene() -> None:
        async with stage() as s:
            await prepare(s)
            _, command, code = CASES[kind]
            (row,) = await told(s, command)
            assert (row.by, row.action, row.outcome) == (ANNA, ACTIONS[kind], code)
            await s.pause()
            assert written(s)[-1] == row

    scene()


TWICE = [kind for kind in KINDS if kind not in (told_to.CreateToken, told_to.OpenSession, told_to.ResumeNode)]


@pytest.mark.parametrize("kind", TWICE)
def test_a_command_that_comes_twice_leaves_two_rows(kind: type) -> None:
    """The second is carried out again, refused, or finds everything as it was. No two tokens are alike."""

    @virtual
    async def scene() -> None:
        async with stage() as s:
            await prepare(s)
            command, _, _ = CASES[kind]
            rows = [*await told(s, command), *await told(s, command)]
            assert [(row.by, row.action) for row in rows] == [(ANNA, ACTIONS[kind])] * 2
            await s.pause()
            assert written(s)[-2:] == rows

    scene()


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_is_refused_again_and_again_within_a_minute_is_counted_in_its_row(kind: type) -> None:
    @virtual
    async def scene() -> None:
        async with stage() as s:
            await prepare(s)
            _, command, code = CASES[kind]
            for _ in range(5):
                await told(s, command)
                await s.pause(1)
            assert [(row.outcome, row.times) for row in written(s)[-1:]] == [(code, 5)]
            await s.pause(60)
            assert [row.times for row in await told(s, command)] == [1]

    scene()


@virtual
async def test_a_drain_of_a_node_that_drains_already_is_told_as_unchanged() -> None:
    async with stage() as s:
        await prepare(s)
        command = told_to.DrainNode(by=ANNA, node=N1, reason="fans")
        assert [row.outcome for row in await told(s, command)] == ["ok"]
        (again,) = await told(s, command)
        assert (again.outcome, again.target) == ("unchanged", "n1")


@virtual
async def test_nodes_and_the_control_plane_leave_no_rows() -> None:
    async with stage() as s, worker(s):
        await s.pause(20)
        assert await rows_of(s) == []


@virtual
async def test_a_node_whose_prolog_fails_is_written_down_as_having_drained_itself() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        await s.submit()
        start = await player.next_start()
        before = len(await rows_of(s))
        fault = "prolog of job 1 exited 3: no scratch disk"
        await player.end(start.key, cause=EndCause.NEVER_STARTED, node_fault=fault)
        rows = await rows_of(s)
        assert len(rows) == before + 1
        (row,) = [row for row in rows if row.action == "node_drain"]
        assert (row.by, row.target, row.details) == ("node:n1", "n1", fault)


@virtual
async def test_d1_a_bulk_of_many_jobs_is_one_row() -> None:
    async with stage() as s:
        (row,) = await told(s, told_to.Submit(by=ANNA, specs=(spec(),) * 300, key="k", digest="d"))
        assert (row.job, row.last_job, row.count) == (1, 300, 300)


@virtual
async def test_two_submits_in_one_millisecond_are_two_rows() -> None:
    async with stage() as s:
        one, other = s.committer.tell(told_to.Submit(by=ANNA, specs=(spec(),))), s.committer.now()
        s.committer.tell(told_to.Submit(by=ANNA, specs=(spec(), spec())))
        rows = await rows_of(s)
        assert one
        assert [(row.at, row.job, row.last_job) for row in rows] == [(other, 1, 0), (other, 2, 3)]
        await s.committer.settled()


@virtual
async def test_d1_a_node_that_is_forgotten_is_one_row_whatever_ended_with_it() -> None:
    async with stage() as s:
        await prepare(s)
        await s.cancel(JobId(1))
        (row,) = await told(s, told_to.ForgetNode(by=ANNA, node=N1, force=True))
        assert s.job(JobId(1)).state is JobState.CANCELLED
        assert (row.action, row.target, row.job, row.members) == ("node_forget", "n1", 0, "")


@virtual
async def test_d1_tokens_that_expired_and_make_room_for_another_are_not_told_of() -> None:
    async with stage() as s:
        soon = Instant(s.committer.now() + 5)
        brief = replace(token("cccccccc"), expires_at=soon)
        await s.committer.ask(told_to.CreateToken(by=ANNA, token=brief))
        await s.pause()
        (row,) = await told(s, told_to.CreateToken(by=ANNA, token=token("dddddddd")))
        assert (row.action, row.target) == ("token_create", "dddddddd")


def _of_array(orders: list[tuple[Callable[[JobRef], Command], str]]) -> list[AuditRow]:
    found: list[AuditRow] = []

    @virtual
    async def scene() -> None:
        async with stage() as s:
            await s.submit(array=parse_array("0-9"))
            for order, text in orders:
                found.extend(await told(s, order(parse_job_ref(text))))

    scene()
    return found


def _cancel(target: JobRef) -> Command:
    return told_to.Cancel(by=ANNA, target=target)


def _hold(target: JobRef) -> Command:
    return told_to.Hold(by=ANNA, target=target)


def _release(target: JobRef) -> Command:
    return told_to.Release(by=ANNA, target=target)


def _requeue(target: JobRef) -> Command:
    return told_to.Requeue(by=ANNA, target=target)


@pytest.mark.parametrize(
    ("orders", "members", "count"),
    [
        ([(_cancel, "1_3")], "3", 1),
        ([(_cancel, "5")], "3", 1),  # the bare id of that member
        ([(_cancel, "1_[2-4,7]")], "2-4,7", 4),
        ([(_cancel, "1")], "0-9", 10),
        ([(_hold, "1_3")], "3", 1),
        ([(_hold, "1")], "", 10),
        ([(_hold, "1_3"), (_cancel, "1_[3-4]")], "3-4", 2),  # one is a record, the other isn't
        ([(_hold, "1"), (_release, "1_[2-3]")], "2-3", 2),
        ([(_hold, "1"), (_release, "1")], "", 10),
        ([(_cancel, "1_[2-4]"), (_requeue, "1_[2-3]")], "2-3", 2),
        ([(_hold, "1_3"), (_hold, "1_3")], "3", 1),  # unchanged
        ([(_cancel, "1_3"), (_cancel, "1_3")], "3", 1),  # refused
        ([(_cancel, "1_[3,77]")], "3,77", 2),  # refused
    ],
)
def test_d2_orders_to_members_are_filed_under_their_array(
    orders: list[tuple[Callable[[JobRef], Command], str]], members: str, count: int
) -> None:
    rows = _of_array(orders)
    assert len(rows) == len(orders)
    assert (rows[-1].job, rows[-1].members, rows[-1].count) == (1, members, count)
    assert rows[-1].action == orders[-1][0].__name__.removeprefix("_")


@virtual
async def test_who_told_what_is_kept_in_the_order_in_which_it_was_carried_out() -> None:
    people = [Principal(f"user:p{number}") for number in range(8)]
    async with stage() as s:
        facts: list[Entry] = []
        s.committer.on_durable(facts.extend)

        async def one(by: Principal) -> None:
            for turn in range(20):
                await s.committer.ask(told_to.Submit(by=by, specs=(spec(),)))
                await s.committer.ask(told_to.SetPools(by=by, pools=Pools(online=turn, batch=0)))

        await asyncio.gather(*map(one, people))
        rows = await rows_of(s)
        # Whoever shares the GPUs as they are shared already leaves no fact, but is counted all the same.
        assert sum(row.times for row in rows) == len(people) * 40
        done = [(row.position, row.at, row.by) for row in rows if row.outcome == "ok"]
        assert done == [(position, fact.at, fact.by) for position, fact in facts if fact.by in people]
        assert [row.key for row in rows] == sorted(row.key for row in rows)


def test_all_that_a_tenant_may_is_in_the_row_in_words_of_the_command_line() -> None:
    limits = Limits(gpus=4, time_ms=DAY_MS)
    quota = Quota(guaranteed=2, limits=limits, borrow=False, lend=False)
    vision = Tenant(
        name=TenantName("vision"), parent=TenantName("lab"), quota=quota, tier=Tier.HIGH, nodes=("a*", "b1")
    )
    said = tenant_text(vision)
    assert said == (
        "beneath lab, 2 GPUs guaranteed, gpus at most 4, time at most 1d, doesn't borrow, doesn't lend, tier high, "
        "nodes a* b1"
    )
