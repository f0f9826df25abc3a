"""Names and numbers of signals.

Names as `kill -l` shows them on Linux, where jobs run, with or without `SIG`: a client on another system means the
same signal by the same name. Numbers from 1 to 64 are read too.
"""

from typing import Final

from stoker.brain.domain.errors import StokerError, refuse

_NAMES: Final = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"),
    *("TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"),
    *("WINCH", "IO", "PWR", "SYS"),
)
"""From 1. Source: signal(7), the column of x86 and ARM."""
SIGNAL_MAX: Final = 64
_RT_MIN: Final = 34
_RT_MAX: Final = SIGNAL_MAX
_ALIASES: Final = {"IOT": 6, "CLD": 17, "POLL": 29, "UNUSED": 31, "RTMIN": _RT_MIN, "RTMAX": _RT_MAX}
_NUMBERS: Final = {name: number for number, name in enumerate(_NAMES, start=1)} | _ALIASES


def parse_signal(value: str | int) -> int:
    """The number of `USR1`, `SIGUSR1`, `usr1`, `RTMIN+3` or `10`.

    Raises: StokerError `bad_signal`.
    """
    number = value if isinstance(value, int) else _number(value.strip().upper())
    if number is None or not 1 <= number <= SIGNAL_MAX:
        shown = str(value)[:40]
        hint = f"write a name such as USR1, SIGTERM or RTMIN+3, or a number from 1 to {SIGNAL_MAX}"
        raise StokerError(refuse("bad_signal", f"{shown!r} is not a signal", hint, got=shown))
    return number


def _number(word: str) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word[:9])
    name = word.removeprefix("SIG")
    for sign in "+-":
        base, found, offset = name.partition(sign)
        if found and base == ("RTMIN" if sign == "+" else "RTMAX") and offset.isascii() and offset.isdigit():
            number = _RT_MIN + int(offset[:9]) if sign == "+" else _RT_MAX - int(offset[:9])
            return number if _RT_MIN <= number <= _RT_MAX else None
    return _NUMBERS.get(name)
