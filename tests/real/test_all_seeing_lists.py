"""An all-seeing list: what others get of somebody's jobs, through every face of a real control plane."""

import http.client
from collections.abc import Iterator
from typing import Final, NamedTuple

import grpc
import pytest

from stoker.brain.domain.access import Role
from stoker.brain.domain.tenant import Visibility
from stoker.wire.client import Client
from stoker.wire.gen import job_pb2 as pb
from stoker.wire.gen.job_pb2_grpc import JobServiceStub
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.tenant import NewTenantBody, TenantBody
from stoker.wire.rest.token import NewTokenBody
from stoker.wire.token import bearer
from tests.real.agent_process import AgentProcess, until
from tests.real.control_process import ControlProcess
from tests.real.rpc_stage import problem_of, shows
from tests.real.tokens import token_in

PRIVATE: Final = "pr1vate-of-hers"
NAMED: Final = "name-of-hers"
LAST: Final = "that-was-all"
REST: Final = (
    *("jobs", "jobs?full=true", "jobs?members=true", "jobs/1", "jobs/2", "jobs/1/why", "jobs/2/why"),
    *("jobs/2/events", "tasks", "tasks/1", "tasks/2", "gpus", "nodes", "nodes/node-1", "cluster/status", "tenants"),
    *("usage?by=user", "usage?by=job", "usage?by=node", "partitions", "quota"),
)
"""Faces of REST that have no end, beside which are output, stream and gRPC."""
OUTPUT: Final = ("jobs/1/logs", "jobs/1/logs?tail=1", "jobs/1/logs?wait_s=1")


class Site(NamedTuple):
    control: ControlProcess
    owner: str

    def token(self, role: Role, tenant: str | None = None) -> str:
        return token_in(self.control.folder, NewTokenBody(role=role, tenant=tenant))

    def get(self, token: str, target: str) -> tuple[int, str]:
        line = http.client.HTTPConnection("127.0.0.1", self.control.http_port, timeout=20)
        line.request("GET", target if target.startswith("/") else f"/api/v1/{target}", headers=_headers(token))
        answer = line.getresponse()
        text = answer.read().decode(errors="replace")
        line.close()
        return answer.status, text

    def heard(self, token: str) -> str:
        """All that the event stream tells from the beginning up to a last fact that everybody hears."""
        line = http.client.HTTPConnection("127.0.0.1", self.control.http_port, timeout=20)
        line.request("GET", "/api/v1/events?after=1", headers=_headers(token))
        answer = line.getresponse()
        text = ""
        while answer.status == 200 and LAST not in text:
            text += answer.readline().decode()
        line.close()
        return text

    def said(self, token: str) -> str:
        """What gRPC says of the same."""
        with grpc.insecure_channel(f"127.0.0.1:{self.control.grpc_port}") as channel:
            stub = JobServiceStub(channel)
            calls = (
                *((stub.List, pb.ListRequest(full=full, limit=1_000)) for full in (False, True)),
                *((stub.Get, pb.GetRequest(id=job)) for job in ("1", "2")),
            )
            return "".join(_answer(call, request, token) for call, request in calls)


def _answer(call: object, request: object, token: str) -> str:
    try:
        return str(call(request, metadata=shows(token), timeout=20))  # type: ignore[operator]  # a call of a stub
    except grpc.RpcError as fault:
        return str(problem_of(fault))


def _headers(token: str) -> dict[str, str]:
    return {"authorization": bearer(token)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with (
        ControlProcess(folder / "control") as control,
        AgentProcess(folder / "agent", control),
        control.client() as root,
    ):
        for name in ("vision", "speech"):
            root.create_tenant(NewTenantBody(name=name))
        owner = token_in(control.folder, NewTokenBody(role=Role.USER, tenant="vision"))
        with Client(control.url, token=owner) as hers:
            hers.submit(_job(["sh", "-c", f"echo {PRIVATE}; sleep 600"]))
            hers.submit(_job([f"/nowhere/{PRIVATE}"]))
            until(lambda: hers.job("2").state == "failed", "the job that can't start")
            until(lambda: PRIVATE in Site(control, owner).get(owner, OUTPUT[0])[1], "the output")
            assert PRIVATE in hers.why("2").message
            root.create_tenant(NewTenantBody(name=LAST))
            yield Site(control, owner)
            hers.cancel("1")
            until(lambda: hers.job("1").state == "cancelled", "the end of the job")


def _job(command: list[str]) -> JobBody:
    return JobBody(command=command, name=NAMED, env={"KEY": PRIVATE}, comment=PRIVATE)


def everything(site: Site, token: str) -> str:
    return "".join(site.get(token, face)[1] for face in (*REST, *OUTPUT)) + site.heard(token) + site.said(token)


@pytest.mark.parametrize(
    ("role", "tenant"),
    [(Role.USER, "vision"), (Role.VIEWER, None), (Role.VIEWER, "vision"), (Role.USER, "speech"), (Role.LEAD, "speech")],
)
def test_a_token_lists_no_program_variable_or_output_of_others_through_any_face(
    site: Site, role: Role, tenant: str | None
) -> None:
    token = site.token(role, tenant)
    for face in REST:
        assert PRIVATE not in site.get(token, face)[1], face
    for face in OUTPUT:
        status, text = site.get(token, face)
        assert (status, PRIVATE in text) == (403, False), face
    told, said = site.heard(token), site.said(token)
    assert PRIVATE not in told
    assert PRIVATE not in said
    assert LAST in told
    names = tenant != "speech"
    assert (NAMED in told, NAMED in said, NAMED in site.get(token, "jobs")[1]) == (names, names, names)


@pytest.mark.parametrize("role", [Role.METRICS, Role.AGENT, Role.JOIN])
def test_a_token_of_a_machine_reads_nothing_of_anybody(site: Site, role: Role) -> None:
    body = NewTokenBody(role=role, nodes="x" if role is Role.JOIN else None)
    token = token_in(site.control.folder, body)
    for face in (*REST, *OUTPUT):
        assert site.get(token, face)[0] == 403, face
    assert site.heard(token) == ""
    assert site.said(token).count("errors#not_allowed") == 4
    assert site.get(token, "/metrics")[0] == (200 if role is Role.METRICS else 403)


def test_whose_the_jobs_are_the_lead_and_admins_see_them_whole(site: Site) -> None:
    for token in (site.owner, site.token(Role.LEAD, "vision"), site.control.tokens.admin):
        for face in ("jobs?full=true", "jobs/1", "jobs/2/why", "jobs/2/events", "tasks/1", *OUTPUT):
            assert PRIVATE in site.get(token, face)[1], face
        assert PRIVATE in site.heard(token)
        assert PRIVATE in site.said(token)


def test_a_tenant_may_let_its_people_see_each_others_jobs_and_take_it_back(site: Site) -> None:
    colleague, guest = site.token(Role.USER, "vision"), site.token(Role.VIEWER, "vision")
    others = (site.token(Role.VIEWER), site.token(Role.USER, "speech"))
    with site.control.client() as root, Client(site.control.url, token=colleague) as his:
        root.change_tenant("vision", TenantBody(visibility=Visibility.TENANT))
        for token in (colleague, guest):
            for text in (site.get(token, "jobs/1")[1], site.get(token, OUTPUT[0])[1], site.said(token)):
                assert PRIVATE in text
        assert [job.state for job in his.signal("1", "CONT").jobs] == ["running"]
        for token in others:
            assert PRIVATE not in everything(site, token)
        root.change_tenant("vision", TenantBody(visibility=Visibility.OWNER))
        for token in (colleague, guest):
            assert PRIVATE not in everything(site, token)
