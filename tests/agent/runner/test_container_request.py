"""Rules Q1 to Q4 of `container/request.py` and H1 to H5 of `container/mounts.py`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.runner.container.client import is_of_the_node
from stoker.agent.runner.container.mounts import AllowedMounts, fabric_devices, once_each
from stoker.agent.runner.container.request import create_request, variables
from stoker.agent.runner.process.account import CannotStart
from stoker.agent.runner.protocol import read_start
from tests.agent.runner.test_protocol import CONTAINER, ORDER

if TYPE_CHECKING:
    from stoker.agent.runner.container.request import ContainerUser
    from stoker.agent.runner.protocol import MountFields

ADA: "ContainerUser" = {"uid": 1_000, "gid": 1_000, "groups": [1_000, 27], "devices": []}
ROOT: "ContainerUser" = {"uid": 0, "gid": 0, "groups": [0], "devices": []}
MARK = "1.1.0.abcd"


def request(who: "ContainerUser" = ADA, **fields: object) -> dict[str, Any]:
    start = read_start({**ORDER, **fields})
    assert start["container"] is not None
    return create_request(start, start["container"], who, [], MARK, "/stoker-1")


def test_a_container_has_no_privilege_and_no_way_to_gain_one() -> None:
    """Q1."""
    host = request()["HostConfig"]
    assert (host["Privileged"], host["CapDrop"], host["CapAdd"]) == (False, ["ALL"], [])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["GroupAdd"] == ["27"]
    assert request()["User"] == "1000:1000"
    assert not {"SYS_ADMIN", "NET_RAW", "MKNOD", "SYS_PTRACE"} & set(request(ROOT)["HostConfig"]["CapAdd"])


def test_it_has_the_device_nodes_of_a_fabric_that_its_account_may_use_and_no_other(tmp_path: Path) -> None:
    """Q5, H6."""
    (tmp_path / "uverbs1").symlink_to("/dev/null")
    (tmp_path / "uverbs0").symlink_to("/dev/zero")
    (tmp_path / "notes").write_text("no device")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    devices = fabric_devices(str(tmp_path))
    assert devices == [f"{tmp_path}/uverbs0", f"{tmp_path}/uverbs1"]
    assert fabric_devices(str(tmp_path / "none")) == []
    asked = request({**ADA, "devices": devices})["HostConfig"]["Devices"]
    assert asked[0] == {"PathOnHost": devices[0], "PathInContainer": devices[0], "CgroupPermissions": "rw"}
    assert request()["HostConfig"]["Devices"] == []


def test_an_engine_neither_restarts_nor_logs_it() -> None:
    """Q2."""
    host = request()["HostConfig"]
    assert (host["RestartPolicy"], host["LogConfig"]["Type"], host["AutoRemove"]) == ({"Name": "no"}, "none", False)


def test_it_is_named_by_labels_and_by_the_mark_in_its_environment() -> None:
    """Q3."""
    made = request()
    assert made["Labels"]["stoker.io/task"] == MARK
    assert {made["Labels"][f"stoker.io/{name}"] for name in ("job", "attempt", "rank")} == {"1", "0"}
    assert f"STOKER_TASK_MARK={MARK}" in made["Env"]
    assert made["HostConfig"]["CgroupParent"] == "/stoker-1"


@pytest.mark.parametrize("fields", [{"env": {"A": "\udcff"}}, {"env": {"A": "\0"}}, {"shell": "", "argv": ["\udce4"]}])
def test_bytes_that_an_engine_can_not_be_told_are_a_failure_to_start(fields: dict[str, object]) -> None:
    """Q4."""
    with pytest.raises(CannotStart):
        request(**fields)


def test_a_command_takes_the_place_of_the_images_own_and_an_entry_point_that_of_its() -> None:
    assert request()["Cmd"] == ["/bin/sh", "-c", "true"]
    assert request(shell="", argv=["a", "b"])["Cmd"] == ["a", "b"]
    assert "Cmd" not in request(shell="", argv=[])
    assert "Entrypoint" not in request()
    assert request(container={**CONTAINER, "entrypoint": ""})["Entrypoint"] == []
    assert request(container={**CONTAINER, "entrypoint": "/x"})["Entrypoint"] == ["/x"]


def test_a_home_is_told_only_where_it_is_mounted() -> None:
    home: list[MountFields] = [{"source": "/home", "target": "/home", "read_only": False}]
    assert variables({}, "ada", "/home/ada", home)["HOME"] == "/home/ada"
    assert variables({"USER": "eve"}, "ada", "/home/ada", []) == {"USER": "ada", "LOGNAME": "ada"}


# --- mounts ---------------------------------------------------------------------------------------------------------


def mount(source: object, target: str = "/x", *, read_only: bool = False) -> "MountFields":
    return {"source": str(source), "target": target, "read_only": read_only}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("data/a", "data/ro", "other", "engine"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/out").symlink_to(tmp_path / "other")
    (tmp_path / "data/hidden").symlink_to(tmp_path / "engine")
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    (tmp_path / "engine/sock").touch()
    os.mkfifo(tmp_path / "data/pipe")
    return tmp_path


def allowed(tree: Path, *paths: str) -> AllowedMounts:
    return AllowedMounts([f"{tree}/{path}" for path in paths], [f"{tree}/engine/sock"])


def test_what_lies_in_an_allowed_folder_is_mounted_as_what_it_really_is(tree: Path) -> None:
    """H1, H3."""
    checks = allowed(tree, "linked", "data/ro:ro")
    assert checks.checked(mount(tree / "linked/a"))["source"] == f"{tree}/data/a"
    assert checks.checked(mount(tree / "data/ro"))["read_only"] is True
    assert checks.checked(mount(tree / "data/a", read_only=True))["read_only"] is True


@pytest.mark.parametrize("path", ["other", "data/out", "data/../other", "data/none", "data/pipe", "databases", ""])
def test_what_lies_or_leads_outside_is_not(tree: Path, path: str) -> None:
    """H1."""
    (tree / "databases").mkdir()
    with pytest.raises(CannotStart, match="can't be mounted"):
        allowed(tree, "data").checked(mount(tree / path))


@pytest.mark.parametrize("path", ["engine", "engine/sock", "", "data/hidden"])
def test_what_holds_the_socket_of_an_engine_or_is_in_its_folders_is_not_even_where_it_is_allowed(
    tree: Path, path: str
) -> None:
    """H2."""
    with pytest.raises(CannotStart, match="belongs to a container engine"):
        allowed(tree, "").checked(mount(tree / path))


@pytest.mark.parametrize("target", ["/", "/proc", "/proc/x", "/sys", "/dev/shm", "x", "/a/../proc"])
def test_a_target_that_the_engine_fills_is_refused(tree: Path, target: str) -> None:
    """H4."""
    with pytest.raises(CannotStart, match="nothing can be mounted at"):
        allowed(tree, "data").checked(mount(tree / "data", target))
    with pytest.raises(CannotStart, match="would be"):
        once_each([mount("/a", "/x"), mount("/b", "/x")])


def test_a_working_directory_is_mounted_if_the_node_allows_it_and_refused_if_it_has_it_and_does_not(tree: Path) -> None:
    """H5."""
    checks = allowed(tree, "data")
    assert checks.workdir(f"{tree}/data/a", []) == mount(f"{tree}/data/a", f"{tree}/data/a")
    assert checks.workdir("/only/of/the/image", []) is None
    assert checks.workdir("/", []) is None
    assert checks.workdir("/x/below", [mount("/a", "/x")]) is None
    with pytest.raises(CannotStart, match="containers may not see it"):
        checks.workdir(f"{tree}/other", [])


@given(
    st.lists(st.sampled_from(["data", "a", "out", "hidden", "..", ".", "other", "engine", "sock", "ro"]), max_size=6)
)
def test_whatever_path_is_named_what_is_mounted_lies_in_an_allowed_folder(parts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("data/a", "data/ro", "other", "engine"):
            (tree / name).mkdir(parents=True)
        (tree / "data/out").symlink_to(tree / "other")
        (tree / "data/hidden").symlink_to(tree / "engine")
        (tree / "engine/sock").touch()
        try:
            found = allowed(tree, "data").checked(mount(tree.joinpath(*parts)))
        except CannotStart:
            return
        assert os.path.realpath(found["source"]) == found["source"]
        assert f"{found['source']}/".startswith(f"{os.path.realpath(tree)}/data/")


@pytest.mark.parametrize(
    ("words", "of_the_node"),
    [
        ("mkdir /var/lib/docker/overlay2/x: no space left on device", True),
        ('could not select device driver "" with capabilities: [[gpu]]', True),
        ("nvidia-container-cli: device error: GPU-1: unknown device", True),
        ('exec: "nope": executable file not found in $PATH', False),
        ("invalid mount config for type bind", False),
    ],
)
def test_what_a_node_lacks_is_not_the_jobs_fault(words: str, of_the_node: bool) -> None:
    assert is_of_the_node(words) is of_the_node
