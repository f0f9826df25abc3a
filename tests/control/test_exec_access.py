"""Who is let into a job: its owner, leads of its tenant and admins, and nobody to whom it is only shown."""

import pytest

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.tenant import Tenant, Visibility
from stoker.brain.state.commands import PutTenant, Submit
from stoker.control.access import check_enter
from tests.brain.state.story import ANNA, Story, spec

LAB, OTHER = TenantName("lab"), TenantName("other")


def caller(name: str, role: Role = Role.USER, tenant: TenantName = LAB) -> Caller:
    return Caller(principal=Principal(f"user:{name}"), role=role, tenant=tenant, user=name)


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        (caller("anna"), True),
        (Caller(principal=Principal("user:root"), role=Role.ADMIN), True),
        (caller("lea", Role.LEAD), True),
        (caller("lou", Role.LEAD, OTHER), False),
        (caller("bob"), False),
        (caller("vic", Role.VIEWER), False),
        (caller("anna", Role.VIEWER), False),
        (caller("anna", tenant=OTHER), False),
    ],
    ids=["owner", "admin", "lead", "other_lead", "colleague", "viewer", "owner_as_viewer", "elsewhere"],
)
def test_w1_only_the_owner_leads_and_admins_are_let_in_whatever_is_shown_to_others(
    who: Caller, *, allowed: bool
) -> None:
    story = Story()
    for name in (LAB, OTHER):
        story.do(PutTenant(by=ANNA, tenant=Tenant(name=name, visibility=Visibility.TENANT), create=True))
    story.do(Submit(by=ANNA, specs=(spec(tenant=LAB, user="anna"),)))
    (job,) = story.state.jobs.values()
    if allowed:
        check_enter(story.state, who, job)
        return
    with pytest.raises(StokerError) as refused:
        check_enter(story.state, who, job)
    assert (refused.value.refusal.code, bool(refused.value.refusal.hint)) == ("not_allowed", True)
