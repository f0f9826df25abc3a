"""Versions of the contracts with the outside that this program speaks.

The path prefix names the REST contract: fields are added under it, never renamed or given a new meaning.
"""

from typing import Final

from stoker import __version__
from stoker.wire.endpoints import API_PREFIX as API_PREFIX

PRODUCT: Final = __version__
USER_AGENT: Final = f"stoker/{PRODUCT}"
SERVER: Final = f"stoker/{PRODUCT}"
