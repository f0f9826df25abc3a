"""Secrets as facts of the log: what may be set, what is kept, and when it goes."""

import pytest

from stoker.brain.domain.ids import CONTROL, Position, Principal, TenantName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.secret import (
    SECRETS_BYTES_MAX,
    SECRETS_MAX,
    SHARED,
    TENANT_SECRETS_BYTES_MAX,
    TENANT_SECRETS_MAX,
    VALUE_BYTES_MAX,
    Secret,
    SecretName,
    find_secret,
)
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import Instant
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import DeleteSecret, DeleteTenant, PutTenant, SetSecret, WithholdStart
from stoker.brain.state.events.secret import SecretDeleted, SecretSet
from stoker.brain.state.events.tenant import TenantDeleted
from tests.brain.state.story import ANNA, Story, secret

LAB = TenantName("lab")


def with_lab() -> Story:
    story = Story()
    story.do(PutTenant(by=ANNA, tenant=Tenant(name=LAB), create=True))
    return story


def put(story: Story, record: Secret) -> None:
    story.do(SetSecret(by=ANNA, secret=record))


@pytest.mark.parametrize("name", ["", "HF-TOKEN", "1ST", "A B", "A=B", "Ä", "x" * 65, "../key"])
def test_x1_a_secret_is_called_as_a_variable_may_be(name: str) -> None:
    assert Story().refused(SetSecret(by=ANNA, secret=secret(name))).code == "bad_secret"


def test_x1_a_secret_belongs_to_a_tenant_that_is_there() -> None:
    assert Story().refused(SetSecret(by=ANNA, secret=secret("A", tenant=LAB))).code == "unknown_tenant"


def test_x1_a_value_is_neither_empty_nor_too_long() -> None:
    story = Story()
    assert story.refused(SetSecret(by=ANNA, secret=secret("A", size=0))).code == "bad_secret"
    assert story.refused(SetSecret(by=ANNA, secret=secret("A", size=VALUE_BYTES_MAX + 1))).code == "text_too_long"
    put(story, secret("A", size=VALUE_BYTES_MAX))


def test_x2_a_tenant_has_so_many_and_may_still_replace_each() -> None:
    story = with_lab()
    for number in range(TENANT_SECRETS_MAX):
        put(story, secret(f"S{number}"))
    assert story.refused(SetSecret(by=ANNA, secret=secret("ONE_MORE"))).code == "too_many_secrets"
    put(story, secret("S0", text="YW5vdGhlcg=="))
    put(story, secret("ONE_MORE", tenant=LAB))


def test_x2_a_cluster_keeps_so_many_and_so_many_bytes() -> None:
    story = Story()
    for number in range(SECRETS_MAX // TENANT_SECRETS_MAX):
        name = TenantName(f"t{number}")
        story.do(PutTenant(by=ANNA, tenant=Tenant(name=name), create=True))
        for each in range(TENANT_SECRETS_MAX):
            record = secret(f"S{each}", tenant=name)
            story.state.secrets[record.id] = record
    assert story.refused(SetSecret(by=ANNA, secret=secret("A"))).facts["secrets_max"] == SECRETS_MAX
    story = with_lab()
    each = TENANT_SECRETS_BYTES_MAX // VALUE_BYTES_MAX
    for number in range(SECRETS_BYTES_MAX // VALUE_BYTES_MAX):
        name = TenantName(f"t{number // each}")
        if number % each == 0:
            story.do(PutTenant(by=ANNA, tenant=Tenant(name=name), create=True))
        put(story, secret(f"S{number}", tenant=name, size=VALUE_BYTES_MAX))
    full = story.refused(SetSecret(by=ANNA, secret=secret("A", tenant=LAB, size=1)))
    assert full.facts["bytes_max"] == SECRETS_BYTES_MAX
    put(story, secret("S0", tenant=TenantName("t0"), size=VALUE_BYTES_MAX))


def test_x2_a_tenant_fills_its_own_share_of_the_bytes_and_not_those_of_others() -> None:
    story = with_lab()
    for number in range(TENANT_SECRETS_BYTES_MAX // VALUE_BYTES_MAX):
        put(story, secret(f"S{number}", size=VALUE_BYTES_MAX))
    refusal = story.refused(SetSecret(by=ANNA, secret=secret("A", size=1)))
    assert refusal.code == "too_many_secrets"
    assert refusal.facts["bytes_max"] == TENANT_SECRETS_BYTES_MAX
    put(story, secret("S0", size=VALUE_BYTES_MAX))
    put(story, secret("A", tenant=LAB, size=VALUE_BYTES_MAX))


def test_a_deleted_secret_is_as_one_that_never_was() -> None:
    story = Story()
    put(story, secret("WANDB_API_KEY"))
    story.do(DeleteSecret(by=ANNA, secret=secret("WANDB_API_KEY").id))
    assert story.state.secrets == {}
    refusal = story.refused(DeleteSecret(by=ANNA, secret=secret("WANDB_API_KEY").id))
    assert refusal.code == "secret_unknown"
    assert "of user:anna in tenant default" in refusal.message


def test_a_mistyped_name_is_answered_with_the_nearest_of_the_same_owner() -> None:
    story = Story()
    put(story, secret("WANDB_API_KEY"))
    put(story, secret("WANDB_API_KAY", owner="user:bert"))
    refusal = story.refused(DeleteSecret(by=ANNA, secret=secret("WANDB_API_KEX").id))
    assert refusal.hint == "did you mean `WANDB_API_KEY`?"


def test_who_set_it_and_when_is_told_by_the_log_and_not_by_the_command() -> None:
    story = Story()
    put(story, secret("A"))
    (record,) = story.state.secrets.values()
    assert (record.set_by, record.set_at) == (ANNA, Instant(1_000_000))


def test_the_own_secret_of_a_name_goes_before_the_shared_one_and_nobody_gets_anothers() -> None:
    story = Story()
    put(story, secret("A", text="bWluZQ=="))
    put(story, secret("A", text="c2hhcmVk", owner=SHARED))
    put(story, secret("B", owner="user:bert"))
    tenant, anna, carl = TenantName("default"), ANNA, Principal("user:carl")

    def found(by: Principal, name: str) -> str:
        record = find_secret(story.state.secrets, tenant, by, SecretName(name))
        return record.sealed.text if record else ""

    assert [found(anna, "A"), found(carl, "A"), found(anna, "B")] == ["bWluZQ==", "c2hhcmVk", ""]


def test_t5_the_secrets_of_a_tenant_go_with_it() -> None:
    """Whoever makes a tenant of that name later must not find them."""
    story = with_lab()
    put(story, secret("A", tenant=LAB))
    put(story, secret("B", tenant=LAB, owner=SHARED))
    put(story, secret("A"))
    events = story.do(DeleteTenant(by=ANNA, name=LAB))
    assert [type(event) for event in events] == [SecretDeleted, SecretDeleted, TenantDeleted]
    assert [each.tenant for each in story.state.secrets] == ["default"]


def test_secrets_are_in_a_snapshot_and_come_again_from_the_log() -> None:
    story = with_lab()
    put(story, secret("A", tenant=LAB))
    put(story, secret("B", owner=SHARED))
    put(story, secret("C"))
    story.do(DeleteSecret(by=ANNA, secret=secret("C").id))
    assert load_snapshot(snapshot_chunks(story.state)).secrets == story.state.secrets
    replayed = ClusterState()
    for record in story.log:
        apply(replayed, decode_fact(record), Position(replayed.position + 1))
    assert replayed.secrets == story.state.secrets
    assert len(replayed.secrets) == 2


def test_readers_of_events_see_no_encrypted_value_either() -> None:
    story = Story()
    (event,) = story.do(SetSecret(by=ANNA, secret=secret("A", text="c2VhbGVk")))
    assert isinstance(event, SecretSet)
    assert SecretSet.row.public is not None
    shown = SecretSet.row.public(event).secret
    assert (shown.sealed.text, shown.sealed.key, shown.size) == ("", "", 0)


def test_only_a_start_that_has_not_been_confirmed_is_withheld() -> None:
    story = Story()
    story.node("n1")
    job = story.submit()
    story.place(job, ("n1", 0))
    withheld = WithholdStart(by=CONTROL, key=TaskKey(job, 1, 0), error="its secret is gone")
    story.do(withheld)
    assert story.job(job).state is JobState.PENDING
    runs = story.submit()
    story.run(runs, ("n1", 0))
    story.do(WithholdStart(by=CONTROL, key=TaskKey(runs, 1, 0), error="its secret is gone"))
    assert story.job(runs).state is JobState.RUNNING
