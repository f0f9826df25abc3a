"""No row holds a secret: neither of what was carried out, nor of what was refused (D3 of `control.audit_actions`)."""

from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.audit import AuditQuery, AuditRow
from stoker.brain.domain.errors import refuse
from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.state.commands import Cancel, Command, CreateToken, DrainNode, RevokeToken, Submit
from stoker.control.audit_actions import AuditAction
from stoker.live.settings.control import ControlSettings
from stoker.wire.token import is_token
from tests.control.audit_stage import rows_of, token, told
from tests.control.stage import ANNA, spec, stage, virtual

SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=43, max_size=43)
PLACES = ("env", "command", "workdir", "comment", "output", "digest", "key", "token")


def commands(secret: dict[str, str], text: str) -> Iterator[Command]:
    """Each secret wherever it may be said, and the text of a token wherever a person may type one by mistake."""
    job = spec(
        env={"API_KEY": secret["env"]},
        command=("train", secret["command"]),
        workdir=f"/{secret['workdir']}",
        comment=secret["comment"],
        output=f"/{secret['output']}",
    )
    yield Submit(by=ANNA, specs=(job,), key=secret["key"], digest=secret["digest"])
    yield Submit(by=ANNA, specs=(job, job), key=secret["key"], digest="another")  # idempotency_key_reused
    yield Submit(by=ANNA, specs=(msgspec.structs.replace(job, tenant="nobody"),))
    yield CreateToken(by=ANNA, token=token(digest=secret["token"]))
    yield CreateToken(by=ANNA, token=token("aaaaaaaa", tenant="nobody", digest=secret["token"] + "x"))  # type: ignore[arg-type]  # a name
    yield RevokeToken(by=ANNA, id=text)  # type: ignore[arg-type]  # a mistake
    yield DrainNode(by=ANNA, node=NodeName("n1"), reason=f"see {text}, {text} and {text}")
    yield DrainNode(by=ANNA, node=NodeName(text), reason="")
    yield Cancel(by=ANNA, target=JobRef(JobId(1)))


@settings(max_examples=25, deadline=None)
@given(st.lists(SECRETS, min_size=len(PLACES) + 1, max_size=len(PLACES) + 1, unique=True))
def test_no_row_holds_an_environment_a_command_a_digest_or_the_text_of_a_token(drawn: list[str]) -> None:
    secret = dict(zip(PLACES, drawn, strict=False))
    text = f"stoker_k3j5h7x2_{drawn[-1]}"
    assert is_token(text)

    @virtual
    async def scene() -> None:
        async with stage(settings=ControlSettings()) as s:
            await s.join("n1", 1)
            for command in commands(secret, text):
                assert len(await told(s, command)) == 1, command
            denied = refuse("not_allowed", f"no {text}", f"nor {text}")
            for asked in (AuditAction("ask", f"/jobs/{text}"), AuditAction("node_drain", text)):
                s.control.audit_trail.refused(Principal("user:bob"), asked, denied, s.committer.now())
            check(await rows_of(s, AuditQuery()))

    def check(rows: list[AuditRow]) -> None:
        said = msgspec.json.encode(rows).decode()
        assert len(rows) == 11
        for place, value in secret.items():
            assert value not in said, place
        assert drawn[-1] not in said
        # Nor the beginning of what was cut off.
        assert drawn[-1][:12] not in said

    scene()
