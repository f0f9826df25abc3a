"""One table says what a code means everywhere."""

import re
from pathlib import Path

import pytest

from stoker.wire.status import STATUSES, SUBMIT_CODES, status_of

SOURCE = Path(__file__).parents[2] / "src" / "stoker"
_DYNAMIC = {"bad_field", "bad_parameter", "unknown_field", "unknown_parameter"}
_REFUSED = r"\b(?:refuse|refusal_error|refuse_unknown|name_fault)\(\s*\"([a-z_]+)\""


def codes_in_source() -> set[str]:
    found = set(_DYNAMIC)
    for path in SOURCE.rglob("*.py"):
        for match in re.finditer(rf"{_REFUSED}|\bcode=\"([a-z_]+)\"", path.read_text()):
            found.add(match[1] or match[2])
    return found


def test_every_code_that_the_source_refuses_with_is_in_the_table() -> None:
    missing = sorted(codes_in_source() - STATUSES.keys())
    assert not missing, f"add these to wire/status.py: {missing}"


def test_the_scan_finds_codes_in_every_spelling() -> None:
    spelled = {"bad_job_id", "bad_time", "queue_full", "demand_unsatisfiable", "no_server"}
    assert {*spelled, "node_unknown", "bad_tenant_name"} <= codes_in_source()


@pytest.mark.parametrize("code", sorted(STATUSES))
def test_every_code_has_a_place_in_each_world(code: str) -> None:
    assert 400 <= status_of(code).http <= 599
    assert re.fullmatch(r"[A-Z_]+", status_of(code).grpc)
    assert status_of(code).exit in range(1, 6)
    assert len(status_of(code).title) > 5


def test_grpc_names_are_those_of_grpc() -> None:
    import grpc

    known = {status.name for status in grpc.StatusCode}
    assert {row.grpc for row in STATUSES.values()} <= known


def test_exit_status_tells_what_isnt_there_from_what_is_refused() -> None:
    codes = ("bad_time", "job_unknown", "queue_full", "no_server", "internal_error")
    assert [status_of(code).exit for code in codes] == [2, 3, 4, 5, 1]


def test_what_a_submit_is_refused_with_is_in_the_table() -> None:
    assert set(SUBMIT_CODES) <= STATUSES.keys()


def test_whatever_the_brain_refuses_a_submit_with_is_named_so() -> None:
    """The OpenAPI document and the reference are drawn from it."""
    brain = SOURCE / "brain"
    judges = [
        brain / "state" / "validation" / f"{name}.py" for name in ("spec", "dependency", "where", "quota", "fields")
    ]
    judges += [brain / "domain" / f"{name}.py" for name in ("output", "where")]
    said = {code for path in judges for code in re.findall(_REFUSED, path.read_text())}
    said |= {"unknown_partition", "unknown_tenant"}
    assert len(said) > 20
    assert sorted(said - set(SUBMIT_CODES)) == []


def test_an_unlisted_code_shows_as_a_defect_of_ours() -> None:
    assert status_of("no_such_code").http == 500


def test_a_label_is_refused_under_a_title_that_fits_jobs_as_well_as_nodes() -> None:
    assert status_of("bad_label").title == "Not a label"
