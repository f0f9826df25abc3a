"""Headers of idempotent submits.

Source: draft-ietf-httpapi-idempotency-key-header; the key is any text without control characters, best a fresh UUID.
"""

from typing import Final

KEY_HEADER: Final = "Idempotency-Key"
REPLAYED_HEADER: Final = "Idempotency-Replayed"
"""`true` in an answer that repeats an earlier one."""
KEY_MAX: Final = 255
"""Characters; the policy's bound counts bytes."""
