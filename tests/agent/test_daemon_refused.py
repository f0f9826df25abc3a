"""What an agent says while the control plane won't have it: rule A11 of `agent/daemon.py`, on virtual time."""

import asyncio

from tests.agent.twins import Node, TwinControl, on_virtual_time


@on_virtual_time
async def test_a_refused_agent_says_why_and_goes_on_trying() -> None:
    control = TwinControl()
    control.refusal = "node node-1 holds work and belongs to another agent's data folder"
    async with Node(control) as node:
        await asyncio.sleep(10)
        assert any("belongs to another agent" in line for line in node.notes.lines)
        control.refusal = ""
        await node.connected()


@on_virtual_time
async def test_a_refusal_is_logged_once_until_its_words_change_or_the_agent_was_let_in() -> None:
    """A token that was revoked is refused for as long as nobody replaces it: one line says so, not one per try."""
    control = TwinControl()
    control.refusal = "this token is unknown"
    async with Node(control) as node:

        def said() -> list[str]:
            return [line for line in node.notes.lines if "registration_refused" in line]

        await asyncio.sleep(600)
        assert len(control.tries_at) > 10
        assert len(said()) == 1
        control.refusal = "the token file is empty"
        await asyncio.sleep(60)
        assert len(said()) == 2
        control.refusal = ""
        await node.connected()
        control.refusal = "the token file is empty"
        control.break_stream()
        await asyncio.sleep(60)
        assert len(said()) == 3
