"""Rule C1 of `domain/container.py`, and what can name an image."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.container import (
    MOUNTS_MAX,
    BindMount,
    ContainerOptions,
    check_image,
    check_options,
    mount_text,
    parse_mount,
)
from stoker.brain.domain.errors import StokerError

paths = st.lists(
    st.text("abc.-_ ", min_size=1, max_size=5).filter(lambda part: part not in (".", "..")), max_size=4
).map(lambda parts: "/" + "/".join(parts))


@given(paths, paths, st.booleans())
def test_a_mount_reads_back_as_it_was_written(source: str, target: str, read_only: bool) -> None:
    mount = BindMount(source, target, read_only)
    assert parse_mount(mount_text(mount)) == mount


def test_a_source_alone_is_mounted_where_it_is_and_dots_are_taken_out() -> None:
    assert parse_mount("/a/../b") == BindMount("/b", "/b")
    assert parse_mount("/a:ro") == BindMount("/a", "/a", True)
    assert parse_mount("/a:/b:rw") == BindMount("/a", "/b")


@pytest.mark.parametrize("text", ["", "a:/b", "/a:b", "/a:/b:rx", "/a:/b:/c", ":/b", "/a\0:/b"])
def test_what_is_no_mount_is_refused_with_how_one_is_written(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse_mount(text)
    assert caught.value.refusal.code == "bad_mount"
    assert "SOURCE:TARGET" in caught.value.refusal.hint


@pytest.mark.parametrize(
    "image", ["ubuntu", "a/b:1.0", "ghcr.io:5000/a/b@sha256:0af3", "nvidia/cuda:12.0-base", "a--b"]
)
def test_a_name_of_an_image_is_taken(image: str) -> None:
    check_image(image)


@pytest.mark.parametrize(
    "image", ["-v", "a b", "../containers/x", "a//b", "a/../b", "a?x=1", "a/", "/a", "a\nb", "a#b", "%2e"]
)
def test_what_could_be_an_option_or_a_path_of_the_engines_api_names_no_image(image: str) -> None:
    with pytest.raises(StokerError) as caught:
        check_image(image)
    assert caught.value.refusal.code == "bad_image"


def test_mounts_are_bounded_and_no_target_is_named_twice() -> None:
    for mounts in (
        (BindMount("/a", "/x"), BindMount("/b", "/x")),
        tuple(BindMount("/a", f"/{at}") for at in range(MOUNTS_MAX + 1)),
    ):
        with pytest.raises(StokerError, match="bad_mount"):
            check_options(ContainerOptions(mounts=mounts))
    with pytest.raises(StokerError, match="bad_shm_size"):
        check_options(ContainerOptions(shm_mb=-1))
