"""Refusals by thousands, from a stranger with a token of another tenant, beside the work of others."""

import http.client
from contextlib import closing
from pathlib import Path

from stoker.brain.domain.access import Role
from stoker.wire.endpoints import API_PREFIX
from stoker.wire.rest.tenant import NewTenantBody
from stoker.wire.rest.token import NewTokenBody
from tests.real.control_process import ControlProcess, ask_on
from tests.real.tokens import token_in

ORDERS = 3_000
JOBS = f"{API_PREFIX}/jobs"


def test_a_stranger_whose_orders_are_refused_by_thousands_leaves_a_jobs_story_and_the_rows_of_others_whole(
    tmp_path: Path,
) -> None:
    with ControlProcess(tmp_path / "control") as control:
        with control.client() as admin:
            admin.create_tenant(NewTenantBody(name="rivals"))
        token = token_in(control.folder, NewTokenBody(role=Role.USER, tenant="rivals", user="mallory"))
        status, job = control.ask("POST", JOBS, {"command": "true", "gpu_count": 1, "hold": True})
        assert status == 201
        told = [("POST", "release"), ("POST", "hold"), ("DELETE", "")]
        assert [control.ask(method, f"{JOBS}/{job['id']}/{word}".rstrip("/"))[0] for method, word in told[:2]] == [
            200
        ] * 2
        shown = {"authorization": f"Bearer {token}"}
        with closing(http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)) as stranger:
            path = f"{JOBS}/{job['id']}"
            statuses = [ask_on(stranger, "DELETE", path, None, shown)[0] for _ in range(ORDERS)]
        assert not set(statuses) - {403, 429}
        assert control.ask("DELETE", f"{JOBS}/{job['id']}")[0] == 200
        _, story = control.ask("GET", f"{JOBS}/{job['id']}/events?limit=1000")
        assert [event["event"] for event in story["events"]] == ["submitted", "release", "hold", "cancel", "finished"]
        assert not story["partial"]
        _, trail = control.ask("GET", f"{API_PREFIX}/audit?limit=1000")
        strangers = [row for row in trail["rows"] if row["by"] == "user:mallory"]
        assert len(strangers) < 10
        assert sum(row["times"] for row in strangers) == ORDERS
        theirs = [row["action"] for row in trail["rows"] if row["job"] == job["id"] and row not in strangers]
        assert theirs == ["cancel", "hold", "release", "submit"]
