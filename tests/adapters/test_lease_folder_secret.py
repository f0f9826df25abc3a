"""What becomes of the secret's file while control planes run, and who notices."""

import asyncio
import os
from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.lease_folder.lease import FileLease
from stoker.adapters.lease_folder.secret import PeerSecret, peer_secret
from tests.contracts.lease import lease_record


class Known:
    """One that has read the secret of a folder, and looks at it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.file = folder / "secret"
        self.text = peer_secret(folder, SystemEntropy())
        self._known = PeerSecret(folder, self.text)

    def standby(self) -> str:
        return self._known.look(put_back=False)

    def active(self) -> str:
        return self._known.look(put_back=True)


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return Known(tmp_path / "marker")


def test_e4_of_a_secret_that_is_as_it_was_nothing_is_said_and_it_is_read_once(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known.standby() == ""
    monkeypatch.setattr(os, "open", None)
    assert [known.standby(), known.active()] == ["", ""]


def test_e4_a_secret_that_others_may_read_is_noticed_and_so_is_that_they_may_no_more(known: Known) -> None:
    known.standby()
    known.file.chmod(0o644)
    told = known.standby()
    assert "others may read it (mode 0644); this control plane goes on with what it read at its start" in told
    assert f"stop every control plane, remove {known.file}, and start them" in told
    assert known.standby() == told
    known.file.chmod(0o600)
    assert known.standby() == ""


def test_e4_a_secret_that_has_become_another_one_is_noticed_and_never_put_back(known: Known) -> None:
    known.standby()
    known.file.write_text("0" * 64 + "\n")
    assert "has become another one" in known.active()
    assert known.file.read_text() == "0" * 64 + "\n"
    known.file.write_text("torn")
    assert "it isn't the 64 hex digits that were written" in known.active()
    assert known.file.read_text() == "torn"


def test_e5_a_secret_that_was_removed_is_put_back_by_whoever_is_active_and_by_nobody_else(known: Known) -> None:
    known.file.unlink()
    assert known.standby().endswith("and the active one puts it back")
    assert not known.file.exists()
    assert known.active() == f"the secret in {known.file} was removed; it was put back"
    assert (known.file.read_text(), known.file.stat().st_mode & 0o777) == (known.text + "\n", 0o600)
    assert [known.standby(), known.active()] == ["", ""]
    assert [path.name for path in known.file.parent.iterdir()] == ["secret"]


def test_e5_where_another_one_was_drawn_meanwhile_that_one_stays(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    known.file.unlink()
    link = os.link

    def late(*args: str) -> None:
        monkeypatch.setattr(os, "link", link)
        peer_secret(known.file.parent, SystemEntropy())
        link(*args)

    monkeypatch.setattr(os, "link", late)
    known.active()
    assert known.file.read_text() != known.text + "\n"
    assert "has become another one" in known.active()


def test_e5_what_cannot_be_put_back_is_said_and_tried_again(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    known.file.unlink()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", full)
        assert "can't be put back: No space left on device" in known.active()
    assert known.active().endswith("it was put back")


def test_it_is_looked_at_with_each_look_and_write_of_the_marker_and_told_once(tmp_path: Path) -> None:
    async def story() -> None:
        folder, told = tmp_path / "marker", list[str]()
        folder.mkdir(mode=0o700)
        lease = FileLease(folder, SystemClock(), timeout_s=5.0)
        text = await lease.secret(SystemEntropy(), told.append)
        (folder / "secret").unlink()
        await lease.read()
        await lease.read()
        assert await lease.put(lease_record(1, by="another"))
        assert await lease.put(lease_record(2, by="another"))
        assert [each.rpartition(" was removed")[2].split()[-3:] for each in told] == [
            ["puts", "it", "back"],
            ["was", "put", "back"],
            [],
        ]
        assert (folder / "secret").read_text() == text + "\n"
        await lease.close()

    asyncio.run(story())


def test_in_a_folder_that_has_lost_the_marker_too_no_secret_is_put_back(tmp_path: Path) -> None:
    async def story() -> None:
        folder, told = tmp_path / "marker", list[str]()
        folder.mkdir(mode=0o700)
        lease = FileLease(folder, SystemClock(), timeout_s=5.0)
        await lease.secret(SystemEntropy(), told.append)
        assert await lease.put(lease_record(1))
        folder.rename(tmp_path / "unmounted")
        folder.mkdir(mode=0o700)
        with pytest.raises(Exception, match="shows no version"):
            await lease.put(lease_record(2))
        assert (list(folder.iterdir()), told) == ([], [])
        await lease.close()

    asyncio.run(story())
