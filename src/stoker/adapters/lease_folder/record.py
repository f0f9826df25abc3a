"""The file format of one version of the lease record.

One line of JSON: `{"v":1,"sha256":"...","marker":{...}}`. The digest is of the marker's own bytes, fields in declared
order, so that a version that was cut off, altered or renamed is noticed. A person reads it with any JSON tool.
"""

import hashlib
from typing import Final

import msgspec

from stoker.adapters.log_policy import too_new
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.lease_record import LeaseRecord

FORMAT: Final = 1
BYTES_MAX: Final = 64 * 1024
"""What can't be a marker isn't read to its end."""


class LeaseRecordDamaged(Exception):
    """A lease record isn't what was written. The message says how that shows."""


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    sha256: str
    marker: msgspec.Raw


class _RecordVersion(msgspec.Struct, frozen=True):
    v: int


def sealed(marker: LeaseRecord) -> bytes:
    """The bytes to keep."""
    body = msgspec.json.encode(marker)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode(_Sealed(v=FORMAT, sha256=digest, marker=msgspec.Raw(body))) + b"\n"


def unsealed(kept: bytes, version: int) -> LeaseRecord:
    """The marker of that version. Raises: MarkerDamaged, StokerError `store_too_new`."""
    if len(kept) > BYTES_MAX:
        raise LeaseRecordDamaged(f"it has more than {BYTES_MAX} bytes")
    try:
        if (format_ := msgspec.json.decode(kept, type=_RecordVersion).v) > FORMAT:
            raise StokerError(too_new(f"version {version} of the marker", format_, FORMAT, "format"))
        outer = msgspec.json.decode(kept, type=_Sealed)
        if hashlib.sha256(outer.marker).hexdigest() != outer.sha256:
            raise LeaseRecordDamaged("its checksum doesn't agree with its content")
        marker = msgspec.json.decode(outer.marker, type=LeaseRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise LeaseRecordDamaged(f"it isn't a marker: {fault}" if kept else "it is empty") from fault
    if marker.version != version:
        raise LeaseRecordDamaged(f"it says that it is version {marker.version}")
    return marker


def damaged(where: str, fault: LeaseRecordDamaged, hint: str) -> StokerError:
    """Return the refusal of a lease record that can't be read."""
    return refusal_error("marker_damaged", f"{where} can't be trusted: {fault}", hint)
