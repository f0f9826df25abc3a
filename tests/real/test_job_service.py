"""JobService seen from outside: jobs by token, whose they are, keys, bounds, and a token that is revoked."""

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stoker.api.rpc import jobs as live_jobs
from stoker.brain.domain.access import Role
from stoker.wire.gen import job_pb2 as pb
from tests.real.job_apis import JOBS, job_apis, problem_from
from tests.real.rpc_stage import rpc_stage, shows

TRUE = pb.NewJob(shell="true")
HELD = pb.NewJob(shell="secret --key 1", hold=True, name="secret", env={"KEY": "secret"}, comment="secret", gpu_count=1)
HIDDEN = ("secret", "anna")


async def test_a_job_is_submitted_found_listed_and_cancelled(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        submitted = await at.submit(at.user, pb.NewJob(argv=["sleep", "60"], name="nap", hold=True))
        (job,) = submitted.jobs
        assert list(submitted.ids) == [job.id] == ["1"]
        assert (job.name, list(job.argv), job.state) == ("nap", ["sleep", "60"], "held")
        assert (job.tenant, job.user, job.submitted_by) == ("mine", "anna", "user:anna")
        assert await at.get(at.user, "1") == job
        page = await at.list(at.user, state="held", full=True)
        assert (list(page.jobs), page.total, page.limit, page.next) == ([job], 1, 50, "")
        assert [each.argv[:] for each in (await at.list(at.user, state="held")).jobs] == [[]]
        told = await at.cancel(at.user, "1")
        assert [each.state for each in told.jobs] == ["cancelled"]
        assert (await problem_from(at.cancel(at.user, "1")))["code"] == "job_ended"


async def test_many_jobs_are_taken_in_order_and_members_of_an_array_are_told_apart(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        answer = await at.submit(at.user, *(pb.NewJob(shell="true", name=f"j{i}", hold=True) for i in range(5)))
        assert [job.name for job in answer.jobs] == [f"j{i}" for i in range(5)]
        assert list(answer.ids) == [job.id for job in answer.jobs]
        (array,) = (await at.submit(at.user, pb.NewJob(shell="true", array="0-9", hold=True))).jobs
        assert (array.array, array.members.total, array.members.held) == ("0-9", 10, 10)
        metadata = shows(at.user)
        some = await at.stub.Get(pb.GetRequest(id=f"{array.id}_[2-4]"), metadata=metadata)
        assert ([job.array_index for job in some.jobs], some.total) == ([2, 3, 4], 3)
        told = await at.cancel(at.user, f"{array.id}_[2-4]")
        assert ([job.state for job in told.jobs], told.total, told.changed) == (["cancelled"] * 3, 3, 3)
        page = await at.list(at.user, members=True, limit=4)
        more = await at.list(at.user, members=True, limit=100, after=page.next)
        assert len(page.jobs) + len(more.jobs) == 15
        assert page.total == 15


async def test_another_tenants_job_is_seen_reduced_and_told_nothing(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        job_id = (await at.submit(at.user, HELD)).ids[0]
        for job in (await at.get(at.stranger, job_id), (await at.list(at.stranger)).jobs[0]):
            assert job.reduced
            assert (job.id, job.tenant, job.state, job.gpu_count) == (job_id, "mine", "held", 1)
            assert not any(word in str(job) for word in HIDDEN)
        assert (await problem_from(at.cancel(at.stranger, job_id)))["code"] == "not_allowed"
        assert not (await at.list(at.stranger, name="secret")).jobs
        assert not (await at.list(at.stranger, user="anna")).jobs
        for token in (at.user, at.admin):
            assert (await at.get(token, job_id)).env == {"KEY": "secret"}
        for job in (await at.get(at.viewer, job_id), (await at.list(at.viewer, full=True)).jobs[0]):
            assert (job.outline, dict(job.env), job.user) == (True, {}, "anna")
        assert (await at.get(at.user, job_id)).state == "held"


async def test_nobody_submits_to_another_tenant_or_as_another_account_but_an_admin(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        into, under = pb.NewJob(shell="true", tenant="theirs"), pb.NewJob(shell="true", user="bob")
        assert (await problem_from(at.submit(at.user, into)))["code"] == "not_allowed"
        assert (await problem_from(at.submit(at.user, under)))["code"] == "user_not_yours"
        for token in (at.viewer, at.agent):
            assert (await problem_from(at.submit(token, TRUE)))["code"] == "not_allowed"
        (job,) = (await at.submit(at.admin, pb.NewJob(shell="true", tenant="theirs", user="bob"))).jobs
        assert (job.tenant, job.user) == ("theirs", "bob")


async def test_an_agents_token_does_nothing_here(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        job_id = (await at.submit(at.user, HELD)).ids[0]
        for call in (
            at.submit(at.agent, TRUE),
            at.get(at.agent, job_id),
            at.list(at.agent),
            at.cancel(at.agent, job_id),
        ):
            assert (await problem_from(call))["code"] == "not_allowed"


async def test_a_revoked_token_is_refused_from_then_on(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        token = await at.stage.token(Role.ADMIN)
        await at.submit(token, TRUE)
        await at.stage.revoke(token)
        for call in (at.submit(token, TRUE), at.list(token)):
            with pytest.raises(aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert len(at.stage.control.committer.state.jobs) == 1


async def test_the_same_key_twice_is_one_job_and_another_job_under_it_is_refused(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        first = await at.submit(at.user, HELD, TRUE, key="k")
        await at.cancel(at.user, first.ids[0])
        again = await at.submit(at.user, HELD, TRUE, key="k")
        assert (again.ids, again.replayed, first.replayed) == (first.ids, True, False)
        assert again.jobs[0].state == "cancelled"
        assert len(at.stage.control.committer.state.jobs) == 2
        assert (await problem_from(at.submit(at.user, TRUE, key="k")))["code"] == "idempotency_key_reused"
        others = await at.submit(at.stranger, HELD, TRUE, key="k")
        assert not others.replayed
        for bad in ("", "a\nb", "x" * 300):
            assert (await problem_from(at.submit(at.user, TRUE, key=bad)))["code"] == "bad_idempotency_key"


async def test_a_key_holds_whatever_the_order_in_which_variables_were_given(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        one = pb.NewJob(shell="true", env={f"V{i}": "x" for i in range(50)})
        other = pb.NewJob(shell="true", env={f"V{i}": "x" for i in reversed(range(50))})
        first, again = await at.submit(at.user, one, key="k"), await at.submit(at.user, other, key="k")
        assert (again.ids, again.replayed) == (first.ids, True)


# --- bounds -----------------------------------------------------------------------------------------------------


async def test_a_message_beyond_the_bound_of_a_body_is_refused_and_a_huge_one_too(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        large = [pb.NewJob(shell="x" * 100_000) for _ in range(90)]
        problem = await problem_from(at.submit(at.user, *large))
        assert (problem["code"], problem["status"]) == ("body_too_large", 413)
        with pytest.raises(aio.AioRpcError) as refused:
            await at.submit(at.user, *large, *large)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        too_many = [TRUE] * 10_001
        assert (await problem_from(at.submit(at.user, *too_many)))["code"] == "too_many_jobs"
        assert not at.stage.control.committer.state.jobs


async def test_an_answer_fits_what_every_client_takes_and_pages_lose_no_job(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        jobs = [pb.NewJob(shell="x" * 100_000, hold=True) for _ in range(40)]
        answer = await at.submit(at.user, *jobs)
        assert len(answer.ids) == 40
        assert [job.shell for job in answer.jobs] == [""] * 40
        found: list[str] = []
        after = ""
        while not found or after:
            page = await at.list(at.user, limit=1_000, after=after, full=True)
            assert (page.limit, page.total) == (1_000, 40)
            assert page.ByteSize() < 4 << 20
            assert 1 < len(page.jobs) < 40
            found += [job.id for job in page.jobs]
            after = page.next
        assert found == sorted(answer.ids, key=int, reverse=True)


async def test_a_page_is_never_longer_than_a_thousand(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        await at.submit(at.user, *[pb.NewJob(shell="true", hold=True)] * 1_500)
        page = await at.list(at.user, limit=10**9)
        assert (page.limit, len(page.jobs), page.total) == (1_000, 1_000, 1_500)
        rest = await at.list(at.user, limit=1_000, after=page.next)
        assert (len(rest.jobs), rest.next) == (500, "")


async def test_more_calls_than_may_be_under_way_are_told_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_jobs, "CALLS_MAX", 0)
    async with job_apis(tmp_path) as at:
        with pytest.raises(aio.AioRpcError) as refused:
            await at.list(at.user)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ())["retry-after"] == "1"


async def test_a_call_without_a_deadline_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def select(*given: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(live_jobs, "DEADLINE_S", 0.2)
    monkeypatch.setattr(live_jobs, "select", select)
    async with job_apis(tmp_path) as at:
        with pytest.raises(aio.AioRpcError) as refused:
            await at.list(at.user)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await problem_from(at.list(at.user)))["code"] == "took_too_long"


async def test_a_defect_is_answered_without_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def select(*given: object) -> None:
        raise RuntimeError("a secret of another tenant")

    monkeypatch.setattr(live_jobs, "select", select)
    async with job_apis(tmp_path) as at:
        with pytest.raises(aio.AioRpcError) as refused:
            await at.list(at.user)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in f"{refused.value.details()}{refused.value.trailing_metadata()}"
        monkeypatch.undo()
        await at.list(at.user)


async def test_what_a_newer_program_says_is_refused_rather_than_overlooked(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        newer = pb.NewJob.FromString(TRUE.SerializeToString() + b"\xf8\x07\x01")
        problem = await problem_from(at.submit(at.user, newer))
        assert problem["code"] == "unknown_field"
        assert "127" in problem["message"]


async def test_a_refusal_too_long_for_metadata_still_arrives(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        problem = await problem_from(at.submit(at.user, pb.NewJob(shell="true", array="\U0001f4a5" * 3_000)))
        assert problem["code"] == "bad_array"
        assert problem["hint"]


# --- the face ---------------------------------------------------------------------------------------------------


async def test_a_token_in_the_place_of_an_id_is_not_repeated(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        with pytest.raises(aio.AioRpcError) as refused:
            await at.get(at.user, at.admin)
        assert at.admin[-20:] not in f"{refused.value.details()} {refused.value.trailing_metadata()}"
        assert "is not a job id" in (refused.value.details() or "")


async def test_reflection_tells_a_stranger_all_that_it_needs_to_call(tmp_path: Path) -> None:
    """What grpcurl does before it calls: the list of services, then the file of one."""
    async with job_apis(tmp_path) as at:
        stub = reflection_pb2_grpc.ServerReflectionStub(at.stage.channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="stoker.v1.JobService"),
        ]
        call = stub.ServerReflectionInfo(iter(asked))
        listed, described = await call.read(), await call.read()
        assert "stoker.v1.JobService" in {each.name for each in listed.list_services_response.service}
        (file,) = map(FileDescriptorProto.FromString, described.file_descriptor_response.file_descriptor_proto)
        (service,) = file.service
        assert [method.name for method in service.method] == ["Submit", "Get", "List", "Cancel"]
        assert not file.dependency
        call.cancel()


async def test_without_tokens_wanted_the_owner_submits_with_none(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        from stoker.wire.gen.job_pb2_grpc import JobServiceStub

        (job,) = (await JobServiceStub(stage.channel).Submit(pb.SubmitRequest(jobs=[TRUE]))).jobs
        assert (job.tenant, job.submitted_by) == ("default", "user:local")


async def test_rest_and_grpc_show_one_and_the_same_record(tmp_path: Path) -> None:
    async with job_apis(tmp_path) as at:
        job_id = (await at.submit(at.user, HELD)).ids[0]
        shown = (await at.rest(at.user, "GET", f"{JOBS}/{job_id}")).json
        job = await at.get(at.user, job_id)
        assert (job.uid, job.submitted_at, job.shell) == (shown["uid"], shown["submitted_at"], shown["command"])
