"""Tokens as facts of the log: what may be made, what is kept, and when they go."""

import pytest

from stoker.brain.domain.access import OWNER, Caller, Role, Token, TokenId
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import DEFAULT_TENANT, NodeName, Position, Principal, TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.tenant import NO_TENANT, Tenant
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import CreateToken, JoinNode, PutTenant, RevokeToken
from stoker.brain.state.events.access import NodeJoined, NodeKeyReplaced, TokenCreated, TokenRevoked
from tests.brain.state.story import ANNA, Story

LAB = TenantName("lab")


def token(text: str, role: Role = Role.ADMIN, tenant: TenantName = NO_TENANT, **fields: object) -> Token:
    return Token(id=TokenId(text), digest=f"digest-of-{text}", role=role, tenant=tenant, **fields)  # type: ignore[arg-type]  # by name


def create(story: Story, wanted: Token) -> str:
    """ "" when it was made, else the code of the refusal."""
    answer = story.ask(CreateToken(by=ANNA, token=wanted))
    return answer.code if isinstance(answer, Refusal) else ""


def with_lab() -> Story:
    story = Story()
    story.do(PutTenant(by=ANNA, tenant=Tenant(name=LAB), create=True))
    return story


# -- K1 ----------------------------------------------------------------------------------------------------------


def test_k1_a_token_of_a_user_is_bound_to_a_tenant_that_is_there() -> None:
    story = with_lab()
    assert create(story, token("a", Role.USER)) == "bad_token"
    assert create(story, token("a", Role.USER, TenantName("labs"))) == "unknown_tenant"
    assert create(story, token("a", Role.USER, LAB)) == ""
    assert create(story, token("b", Role.USER, DEFAULT_TENANT)) == ""


@pytest.mark.parametrize("role", [Role.AGENT, Role.METRICS])
def test_k1_a_token_of_a_program_or_machine_has_neither_tenant_nor_user(role: Role) -> None:
    story = with_lab()
    assert create(story, token("a", role, LAB)) == "bad_token"
    assert create(story, token("a", role, user="anna")) == "bad_token"
    assert create(story, token("a", role)) == ""


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMIN])
def test_k1_other_tokens_may_be_bound_and_need_not(role: Role) -> None:
    story = with_lab()
    assert create(story, token("a", role)) == ""
    assert create(story, token("b", role, LAB)) == ""
    assert create(story, token("c", role, TenantName("nobody"))) == "unknown_tenant"


# -- K2 ----------------------------------------------------------------------------------------------------------


def test_k2_an_expiry_lies_ahead() -> None:
    story = Story()
    for past in (1, story.now - 1, story.now):
        refusal = story.refused(CreateToken(by=ANNA, token=token("a", expires_at=Instant(past))))
        assert (refusal.code, refusal.facts["expires_ms"]) == ("bad_token", past)
    assert create(story, token("a", expires_at=Instant(story.now + 1))) == ""
    assert create(story, token("b", expires_at=NEVER)) == ""


# -- K3 ----------------------------------------------------------------------------------------------------------


def test_k3_there_are_as_many_tokens_as_the_policy_says_and_one_that_is_revoked_makes_room() -> None:
    story = Story(Policy(tokens_max=2))
    assert [create(story, token(text)) for text in "abc"] == ["", "", "too_many_tokens"]
    story.do(RevokeToken(by=ANNA, id=TokenId("a")))
    assert create(story, token("c")) == ""


def test_k3_those_that_have_expired_make_room_and_leave() -> None:
    story = Story(Policy(tokens_max=2))
    create(story, token("a", expires_at=Instant(story.now + 10)))
    create(story, token("b", expires_at=Instant(story.now + 20)))
    story.wait(9)
    assert create(story, token("c")) == "too_many_tokens"
    story.wait(1)
    events = story.do(CreateToken(by=ANNA, token=token("c")))
    assert events == (TokenRevoked(id=TokenId("a")), TokenCreated(token=token("c")))
    assert list(story.state.tokens) == ["b", "c"]


# -- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["anna", "_svc", "A.b-c_9", "machine$", "x" * 31])
def test_the_name_of_an_account_is_taken(user: str) -> None:
    assert create(Story(), token("a", user=user)) == ""


@pytest.mark.parametrize("user", ["9a", "-x", "a b", "a:b", "ä", "a/../b", "x" * 40, "root\n", "$", "a\0"])
def test_what_can_be_no_account_is_refused_with_a_way_to_look_it_up(user: str) -> None:
    refusal = Story().refused(CreateToken(by=ANNA, token=token("a", user=user)))
    assert refusal.code == "bad_user"
    assert "getent" in refusal.hint


def test_a_comment_is_as_long_as_the_policy_says_and_no_longer() -> None:
    story = Story(Policy(text_bytes_max=10))
    assert create(story, token("a", comment="x" * 10)) == ""
    assert create(story, token("b", comment="ä" * 6)) == "text_too_long"


# -- what is kept ------------------------------------------------------------------------------------------------


def test_the_event_says_who_made_it_and_when() -> None:
    story = Story().wait(5)
    story.do(CreateToken(by=ANNA, token=token("a", created_by=Principal("user:mallory"), created_at=Instant(1))))
    kept = story.state.tokens[TokenId("a")]
    assert (kept.created_at, kept.created_by) == (story.now, ANNA)


def test_a_digest_finds_its_token_until_it_is_revoked() -> None:
    story = Story()
    create(story, token("a"))
    create(story, token("b"))
    assert story.state.token_of_digest == {"digest-of-a": "a", "digest-of-b": "b"}
    assert story.do(RevokeToken(by=ANNA, id=TokenId("a"))) == (TokenRevoked(id=TokenId("a")),)
    assert story.state.token_of_digest == {"digest-of-b": "b"}
    assert list(story.state.tokens) == ["b"]


def test_what_was_never_there_or_was_revoked_before_cannot_be_revoked() -> None:
    story = Story()
    create(story, token("a"))
    story.do(RevokeToken(by=ANNA, id=TokenId("a")))
    for gone in ("a", "never"):
        refusal = story.refused(RevokeToken(by=ANNA, id=TokenId(gone)))
        assert gone in refusal.message


def test_a_whole_token_in_the_place_of_its_id_is_not_repeated() -> None:
    story = Story()
    for text in ("stoker_abcdefgh_c2VjcmV0c2VjcmV0", "c2VjcmV0c2VjcmV0"):
        refusal = story.refused(RevokeToken(by=ANNA, id=TokenId(text)))
        assert "c2VjcmV0" not in repr(refusal)


def test_tokens_and_tenants_survive_a_replay_and_a_snapshot() -> None:
    story = with_lab()
    create(story, token("a", Role.USER, LAB, user="anna", comment="laptop", expires_at=Instant(story.now + 5)))
    create(story, token("b"))
    story.do(RevokeToken(by=ANNA, id=TokenId("b")))
    replayed = ClusterState()
    for record in story.log:
        apply(replayed, decode_fact(record), Position(replayed.position + 1))
    for other in (replayed, load_snapshot(list(snapshot_chunks(story.state)))):
        assert other.tokens == story.state.tokens
        assert other.token_of_digest == story.state.token_of_digest == {"digest-of-a": "a"}
        assert other.tenants == story.state.tenants


# -- who a token speaks for --------------------------------------------------------------------------------------


def test_commands_are_logged_under_the_unix_account_and_else_under_the_token() -> None:
    assert token("a", user="anna").principal == "user:anna"
    assert token("a").principal == "token:a"


def test_who_names_no_tenant_submits_to_his_own_and_who_has_none_to_the_default() -> None:
    assert Caller(principal=ANNA, role=Role.USER, tenant=LAB).home == LAB
    assert OWNER.home == DEFAULT_TENANT


# -- K4 ----------------------------------------------------------------------------------------------------------


def join(story: Story, node: str, key: str, by: str) -> str:
    """The code of the refusal; else which events there were, by their names."""
    wanted = Token(id=TokenId(f"key-{key}"), digest=f"digest-of-{key}", role=Role.AGENT, node=node)
    answer = story.ask(JoinNode(by=ANNA, token=wanted, join=TokenId(by)))
    return answer.code if isinstance(answer, Refusal) else ",".join(type(event).__name__ for event in answer)


def test_k5_nodes_that_join_leave_places_for_the_tokens_of_people() -> None:
    story = Story(Policy(tokens_max=20))
    assert create(story, token("j", Role.JOIN, node="gpu-*")) == ""
    said = [join(story, f"gpu-{number}", f"k{number}", "j") for number in range(18)]
    assert said == ["NodeJoined"] * 17 + ["too_many_tokens"]
    assert [create(story, token(f"a{number}")) for number in range(3)] == ["", "", "too_many_tokens"]


def test_k1_a_join_token_names_nodes_and_no_other_token_does() -> None:
    story = with_lab()
    assert create(story, token("a", Role.JOIN)) == "bad_token"
    assert create(story, token("a", Role.JOIN, node="gpu/1")) == "bad_token"
    assert create(story, token("a", Role.JOIN, LAB, node="gpu-*")) == "bad_token"
    assert create(story, token("a", Role.JOIN, node="gpu-*")) == ""
    assert create(story, token("b", Role.ADMIN, node="gpu-*")) == "bad_token"
    assert create(story, token("b", Role.AGENT, node="gpu-1")) == "bad_token"


def test_k4_a_node_joins_with_a_token_for_its_name_and_is_known_by_its_key() -> None:
    story = Story()
    assert create(story, token("j", Role.JOIN, node="gpu-*")) == ""
    assert join(story, "cpu-1", "k", "j") == "not_allowed"
    assert join(story, "gpu-1", "k", "nobody") == "not_allowed"
    assert join(story, "gpu-1", "k", "j") == NodeJoined.__name__
    known = story.state.key_of(NodeName("gpu-1"))
    assert known is not None
    assert known.principal == "node:gpu-1"
    assert join(story, "gpu-1", "k", "j") == "", "the same key again: only the answer was lost"
    assert join(story, "gpu-2", "k", "j") == "key_in_use"
    assert join(story, "gpu-2", "k2", "j") == NodeJoined.__name__


def test_k4_an_admins_token_and_an_expired_one_join_nothing() -> None:
    story = Story()
    assert create(story, token("a")) == ""
    assert join(story, "gpu-1", "k", "a") == "not_allowed"
    assert create(story, token("j", Role.JOIN, node="gpu-1", expires_at=Instant(story.now + 10))) == ""
    story.now = Instant(story.now + 10)
    assert join(story, "gpu-1", "k", "j") == "not_allowed"


def test_k4_another_key_wants_a_join_token_that_was_made_after_the_node_joined() -> None:
    story = Story()
    assert create(story, token("old", Role.JOIN, node="*")) == ""
    assert join(story, "gpu-1", "k", "old") == NodeJoined.__name__
    assert join(story, "gpu-1", "thief", "old") == "node_has_joined"
    story.now = Instant(story.now + 1)
    assert create(story, token("new", Role.JOIN, node="*")) == ""
    assert join(story, "gpu-1", "anew", "new") == NodeKeyReplaced.__name__
    known = story.state.key_of(NodeName("gpu-1"))
    assert known is not None
    assert known.digest == "digest-of-anew"
    assert "digest-of-k" not in story.state.token_of_digest


def test_k4_after_a_reset_any_join_token_for_its_name_will_do() -> None:
    story = Story()
    assert create(story, token("old", Role.JOIN, node="*")) == ""
    assert join(story, "gpu-1", "k", "old") == NodeJoined.__name__
    story.do(RevokeToken(by=ANNA, id=TokenId("key-k")))
    assert join(story, "gpu-1", "k2", "old") == NodeJoined.__name__
