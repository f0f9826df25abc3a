"""Is a text that people give a thing short enough to be kept?"""

from stoker.brain.domain.errors import Refusal, refuse


def text_fault(field: str, text: str, bytes_max: int, *, called: str = "") -> Refusal | None:
    """Why it is too long. `called` is what the sentence names it, where that isn't the field."""
    size = len(text.encode(errors="replace"))
    if size <= bytes_max:
        return None
    return refuse(
        "text_too_long",
        f"{called or field} has {size} bytes; at most {bytes_max} are taken",
        "say it in fewer words",
        field=field,
        bytes=size,
        bytes_max=bytes_max,
    )


def comment_fault(comment: str, bytes_max: int) -> Refusal | None:
    return text_fault("comment", comment, bytes_max, called="the comment")
