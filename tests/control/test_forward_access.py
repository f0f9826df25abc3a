"""Who is let through to the ports of a job: its owner and admins, and nobody to whom it is only shown."""

import pytest

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.tenant import Tenant, Visibility
from stoker.brain.state.commands import PutTenant, Submit
from stoker.control.access import check_change, check_owner
from tests.brain.state.story import ANNA, Story, spec

LAB = TenantName("lab")


def caller(name: str, role: Role = Role.USER, tenant: TenantName = LAB) -> Caller:
    return Caller(principal=Principal(f"user:{name}"), role=role, tenant=tenant, user=name)


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        (caller("anna"), True),
        (Caller(principal=Principal("user:root"), role=Role.ADMIN), True),
        (caller("bob"), False),
        (caller("lea", Role.LEAD), False),
        (caller("vic", Role.VIEWER), False),
        (caller("anna", Role.VIEWER), False),
        (caller("anna", tenant=TenantName("default")), False),
    ],
    ids=["owner", "admin", "colleague", "lead", "viewer", "owner_as_viewer", "elsewhere"],
)
def test_f1_only_the_owner_and_admins_are_let_through(who: Caller, *, allowed: bool) -> None:
    story = Story()
    lab = Tenant(name=LAB, visibility=Visibility.TENANT)
    story.do(PutTenant(by=ANNA, tenant=lab, create=True))
    story.do(Submit(by=ANNA, specs=(spec(tenant=LAB, user="anna"),)))
    (job,) = story.state.jobs.values()
    if allowed:
        check_owner(story.state, who, job)
        return
    with pytest.raises(StokerError) as refused:
        check_owner(story.state, who, job)
    assert (refused.value.refusal.code, bool(refused.value.refusal.hint)) == ("not_allowed", True)


def test_f1_a_colleague_who_may_change_a_job_is_still_not_let_through() -> None:
    story = Story()
    story.do(PutTenant(by=ANNA, tenant=Tenant(name=LAB, visibility=Visibility.TENANT), create=True))
    story.do(Submit(by=ANNA, specs=(spec(tenant=LAB, user="anna"),)))
    (job,) = story.state.jobs.values()
    check_change(story.state, caller("bob"), job)
    with pytest.raises(StokerError):
        check_owner(story.state, caller("bob"), job)
