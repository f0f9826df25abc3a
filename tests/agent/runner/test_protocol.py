"""Frames between agent and runner (rules P1 and P2), and the instructions in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.runner.protocol import FRAME_MAX, BadFrame, Decoder, encode, key_text, parse_key, read_start

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.lists(st.dictionaries(texts, texts, max_size=4), max_size=8)


@given(messages, st.integers(1, 50))
def test_messages_arrive_as_they_were_sent_however_the_stream_is_cut(sent: list[dict[str, str]], step: int) -> None:
    stream = b"".join(encode(message) for message in sent)
    decoder = Decoder()
    received = [m for at in range(0, len(stream), step) for m in decoder.feed(stream[at : at + step])]
    assert received == sent


def test_a_frame_above_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadFrame, match=str(FRAME_MAX)):
        list(Decoder().feed((FRAME_MAX + 1).to_bytes(4, "big")))


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"3", b"\xff"])
def test_a_frame_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadFrame, match="JSON"):
        list(Decoder().feed(len(body).to_bytes(4, "big") + body))


def test_a_key_survives_the_round_trip() -> None:
    assert parse_key(key_text(2**53 - 1, 3, 1023)) == (2**53 - 1, 3, 1023)


@pytest.mark.parametrize(
    "text", ["", "1.1", "1.1.0.0", "../../etc", "1.1.-1", "1.1.x", "1.1.\u0661", " 1.1.0", "1.1." + "9" * 5000]
)
def test_a_key_that_could_be_a_path_is_refused(text: str) -> None:
    with pytest.raises(BadFrame, match="task key"):
        parse_key(text)


CONTAINER: dict[str, object] = {
    "socket": "/run/docker.sock", "owner": "o", "cluster": "c", "epoch": 1, "image": "i", "entrypoint": None,
    "mounts": [], "allowed": ["/data"], "hidden": [], "shm_mb": 1, "network": "host", "cpus": 1, "devices": [],
    "init": True, "in_cgroup": True,
}  # fmt: skip
ORDER: dict[str, object] = {
    "do": "start", "key": "1.1.0", "shell": "true", "argv": [], "env": {"A": "b"}, "workdir": "", "gpus": ["G"],
    "memory_mb": 0, "user": "", "allow_root": True, "probe_port": 0, "output": "a", "error": "", "append": True,
    "folder": "/c", "lease_ms": 600_000, "umask": 0o077, "limits": {"nofile": [1_024, -1]}, "pids_max": 9,
    "gang_port_min": 20_000, "gang_port_max": 29_999, "host_file": "10.0.0.1 slots=2\n",
    "script": "echo",
    "prolog": "/etc/prolog", "epilog": "/etc/epilog", "site_env": {"A": "b"}, "site_timeout_s": 60,
    "gpu_share": 250, "cpus": 2, "cpu_limit": "weight", "denied_devices": [[195, 0]], "cpu_list": [0, 1],
    "private_tmp": True,
    "tty": True, "stays": True, "columns": 100, "rows": 30,
    "container": CONTAINER,
}  # fmt: skip


def test_a_whole_start_is_read_as_it_is() -> None:
    assert read_start(ORDER) == ORDER


def test_a_start_of_an_older_agent_that_knows_no_files_has_none() -> None:
    """P2: a runner outlives the agent that started it, and meets older ones after a step back."""
    meant: dict[str, object] = {"output": "", "error": "", "append": False, "folder": "", "lease_ms": 0}
    meant |= {"umask": 0o022, "limits": {}, "pids_max": 0, "gang_port_min": 0, "gang_port_max": 0, "host_file": ""}
    meant |= {"prolog": "", "epilog": "", "site_env": {}, "site_timeout_s": 0}
    meant |= {"script": "", "gpu_share": 1_000, "cpus": 0, "cpu_limit": "", "denied_devices": [], "cpu_list": []}
    meant |= {"private_tmp": False, "tty": False, "stays": False, "columns": 0, "rows": 0, "container": None}
    older = {name: value for name, value in ORDER.items() if name not in meant}
    assert read_start(older) == {**ORDER, **meant}


@pytest.mark.parametrize("both", [None, 1, [1], [1, 2, 3], ["1", "2"], [True, 2]])
def test_a_limit_that_is_no_two_numbers_is_refused(both: object) -> None:
    with pytest.raises(BadFrame, match="limit nofile"):
        read_start({**ORDER, "limits": {"nofile": both}})


@pytest.mark.parametrize("name", CONTAINER)
def test_a_container_of_which_something_is_missing_or_of_another_kind_is_refused(name: str) -> None:
    for wrong in ({}, {name: 1.5}):
        left = {each: value for each, value in CONTAINER.items() if each != name or name == "entrypoint"}
        if wrong or name != "entrypoint":
            with pytest.raises(BadFrame, match=f"the {name} of a container"):
                read_start({**ORDER, "container": {**left, **wrong}})


def test_an_older_agent_that_says_nothing_of_root_does_not_allow_it() -> None:
    older = {name: value for name, value in ORDER.items() if name != "allow_root"}
    assert read_start(older)["allow_root"] is False


@pytest.mark.parametrize("name", [name for name in ORDER if name != "do"])
@pytest.mark.parametrize("value", [None, -1, {"x": 1}, [-1]])
def test_a_start_with_a_field_of_another_type_is_refused(name: str, value: object) -> None:
    if (name, value) == ("container", None):
        return  # a process
    with pytest.raises(BadFrame):
        read_start({**ORDER, name: value})
