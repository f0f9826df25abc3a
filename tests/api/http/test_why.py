"""What `why` answers over REST: the place in the queue, and who holds the GPUs of a guarantee."""

from stoker.api.http.jobs import HOLDERS_NAMED_MAX, lent_view
from stoker.brain.state.quota_report import Holder, LentGuarantee
from tests.api.http.plane import Plane

JOBS = "/api/v1/jobs"


async def test_why_of_an_array_tells_the_place_of_its_next_member(plane: Plane) -> None:
    await plane.ask("POST", JOBS, {"command": "true"})
    await plane.ask("POST", JOBS, {"command": "true", "array": "0-9"})
    why = (await plane.get(f"{JOBS}/2/why")).json
    assert (why["position"], why["waiting"], why["similar_ahead"]) == (2, 11, 1)
    assert (await plane.get(f"{JOBS}/2_4/why")).json["position"] == 6


def test_the_sentence_about_lent_gpus_names_the_guarantees_and_a_few_of_the_holders() -> None:
    of_class = LentGuarantee("class", "online", 0, 7, [Holder("class", "batch", 6)])
    of_tenant = LentGuarantee("tenant", "vision", 1, 4, [Holder("tenant", f"t{number}", 9) for number in range(20)])
    shown = lent_view([of_class, of_tenant])
    assert shown is not None
    assert shown.guarantees == ["class online", "tenant vision"]
    assert len(shown.holders) == 21
    assert "online jobs (0 of 7 GPU(s) used) and tenant vision (1 of 4 GPU(s) used)" in shown.message
    assert "batch jobs hold 6 beyond theirs, tenant t0 holds 9 beyond its own" in shown.message
    assert f"{21 - HOLDERS_NAMED_MAX} other tenant(s) the rest" in shown.message
    assert "as those jobs end" in shown.message
    assert lent_view([]) is None
