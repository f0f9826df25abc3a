"""From a token to a process: a job runs as the Unix user of its token, on a node whose agent is root."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError
from stoker.wire.client import Client
from stoker.wire.rest.job import JobView
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess, until
from tests.real.control_process import ControlProcess
from tests.real.tokens import token_in
from tests.real.unix_users import Users, made_users, needs_root

pytestmark = needs_root
UNKNOWN = "nobody-of-this-name"


class Site(NamedTuple):
    control: ControlProcess
    users: Users

    def client(self, user: str = "") -> Client:
        if not user:
            return self.control.client()
        body = NewTokenBody(role=Role.USER, tenant="default", user=user)
        return Client(self.control.url, token=token_in(self.control.folder, body))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with made_users() as users, ControlProcess(tmp_path_factory.mktemp("site") / "control") as control:
        agent = AgentProcess(users.folder / "agent", control, name="gpu-07")
        agent.folder.chmod(0o711)
        agent.environ["STOKER__EXECUTOR__ALLOW_ROOT"] = "false"
        agent.take_jobs_of(users.ann, users.bob, users.toor, UNKNOWN)
        with agent, control.client() as client:
            until(lambda: any(node.online for node in client.nodes()), "the node is there")
            yield Site(control, users)


def ended(client: Client, body: JobBody) -> JobView:
    return client.wait(client.submit(body).id, at_most_s=30)


def why_not_started(job: JobView) -> str:
    ((task,),) = [attempt.tasks for attempt in job.attempts]
    assert (job.state, task.cause) == ("failed", "start_failed")
    return task.error


def test_a_job_runs_as_the_user_of_its_token_in_that_users_home(site: Site) -> None:
    home = site.users.home(site.users.ann)
    with site.client(site.users.ann) as client:
        line = "id -un; echo $HOME; touch here; stat -c %U $STOKER_CHECKPOINT_DIR; grep NoNewPrivs /proc/self/status"
        job = ended(client, JobBody(command=line, workdir=str(home), output="said.txt"))
        assert (job.state, job.user) == ("succeeded", site.users.ann)
        said = client.logs(job.id).data.decode().split()
    assert said == [site.users.ann, str(home), site.users.ann, "NoNewPrivs:", "1"]
    for name in ("here", "said.txt"):
        assert (home / name).owner() == site.users.ann


def test_a_user_without_an_account_on_the_node_is_told_which_and_what_to_do(site: Site) -> None:
    with site.client(UNKNOWN) as client:
        error = why_not_started(ended(client, JobBody(command="id")))
    assert f"no user '{UNKNOWN}' on node gpu-07" in error
    assert f"getent passwd {UNKNOWN}" in error


@pytest.mark.parametrize(("user", "code"), [("", "user_required"), ("root", "root_refused")])
def test_nobody_submits_what_would_run_as_root(site: Site, user: str, code: str) -> None:
    with site.client(user) as client, pytest.raises(StokerError) as refused:
        client.submit(JobBody(command="id"))
    assert refused.value.refusal.code == code
    assert "token create" in refused.value.refusal.hint


def test_root_by_another_name_is_refused_by_the_node(site: Site) -> None:
    with site.client(site.users.toor) as client:
        job = ended(client, JobBody(command=f"touch {site.users.folder}/was-root"))
    assert "runs no job as root" in why_not_started(job)
    assert not Path(site.users.folder, "was-root").exists()


def test_a_node_tells_as_whom_its_jobs_run(site: Site) -> None:
    with site.client() as client:
        node = client.node("gpu-07")
    assert (node.account, node.allow_root) == ("root", False)
