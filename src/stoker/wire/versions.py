"""Which versions of our contracts with the outside does this program speak?

The path prefix names the REST contract: fields are added under it, never renamed or given a new meaning.
"""

from typing import Final

from stoker import __version__

PRODUCT: Final = __version__
API_PREFIX: Final = "/api/v1"
USER_AGENT: Final = f"stoker/{PRODUCT}"
SERVER: Final = f"stoker/{PRODUCT}"
