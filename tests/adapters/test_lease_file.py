from pathlib import Path

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.lease_file import FileLease
from tests.contracts.lease import LeaseContract


class FolderPlace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)

    def lease(self) -> FileLease:
        return FileLease(self.folder, SystemClock(), timeout_s=5)

    def damage(self) -> None:
        newest = max(self.folder.glob("*.marker"))
        data = bytearray(newest.read_bytes())
        data[-20] ^= 1
        newest.write_bytes(data)


class TestFileLease(LeaseContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> FolderPlace:
        return FolderPlace(tmp_path / "marker")
