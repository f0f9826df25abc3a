"""What is wrong with the labels and taints in an agent's settings, and what was probably meant?

One sentence each, with the nearest form that would do. The grammar is `brain/domain/label.py`'s.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.label import Taint, check_label, label_value, parse_taint, taint_text

LABELS_MAX: Final = 256
TAINTS_MAX: Final = 256
"""Above what a control plane takes by default, which says so itself; more are the wrong file."""


def label_faults(labels: Mapping[str, str]) -> list[str]:
    if len(labels) > LABELS_MAX:
        return [f"labels: {len(labels)} labels are more than {LABELS_MAX}"]
    found = []
    for key, value in labels.items():
        fault = _label_fault(key, value)
        if fault:
            near = f"{_near_key(key)}: {label_value(value)}"
            better = near != f"{key}: {value}" and not _label_fault(_near_key(key), label_value(value))
            found.append(f"labels: {fault}" + (f" (nearest: `{near}`)" if better else ""))
    return found


def taint_faults(taints: Iterable[str]) -> list[str]:
    texts = list(taints)
    if len(texts) > TAINTS_MAX:
        return [f"taints: {len(texts)} taints are more than {TAINTS_MAX}"]
    found, keys = [], dict[str, str]()
    for text in texts:
        fault = _taint_fault(text)
        if fault:
            near = _near_taint(text)
            found.append(f"taints: {fault}" + ("" if _taint_fault(near) else f" (nearest: `{near}`)"))
            continue
        key = parse_taint(text).key
        if key in keys:
            found.append(f"taints: {keys[key]!r} and {text!r} have one key; a node has one taint of a key")
        keys.setdefault(key, text)
    return found


def normal_taints(taints: Iterable[str]) -> tuple[str, ...]:
    """Taints without faults in the one form of each, by key: the order in a file means nothing."""
    return tuple(sorted(taint_text(parse_taint(text)) for text in taints))


def _label_fault(key: str, value: str) -> str:
    try:
        check_label(key, value)
    except StokerError as error:
        return error.refusal.message
    return ""


def _taint_fault(text: str) -> str:
    try:
        parse_taint(text)
    except StokerError as error:
        return error.refusal.message
    return ""


def _near_key(key: str) -> str:
    prefix, slash, name = key.strip().rpartition("/")
    return f"{prefix.lower()}{slash}{label_value(name)}"


def _near_taint(text: str) -> str:
    key, _, value = text.partition(":")[0].partition("=")
    return taint_text(Taint(_near_key(key), label_value(value)))
