"""Labels of nodes and jobs and taints of nodes: their grammar, and those that a node has.

Source: labels, selectors and taints of Kubernetes.

Rules: B1  a key is a name of at most 63 letters, digits, dashes, underscores and dots, with a letter or digit at both
           ends; a DNS subdomain of at most 253 characters and a slash may stand before it
       B2  a value is such a name, or empty
       B3  keys that begin with `stoker.io/` are Stoker's own: nobody may set them, and selectors may use them
       B4  labels and taints that people set on a node win over those of its agent; those that they took off stay off
       B5  a node has at most one taint of a key, and NoSchedule is the only effect there is
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.node import CONTAINER, Node

JOB_LABELS_MAX: Final = 32
"""Labels of one job: every list that selects by them looks at them all."""
NAME_MAX: Final = 63
PREFIX_MAX: Final = 253
OWN_PREFIX: Final = "stoker.io/"
HOSTNAME: Final = "stoker.io/hostname"
"""Key of the label with the name of the node."""
GPU_MODEL: Final = "stoker.io/gpu-model"
"""Key of the label with the model of its GPUs, such as `NVIDIA-H100-80GB-HBM3`, where all of them are of one model."""
JOBS_AS: Final = "stoker.io/jobs-as"
"""Key of a label that is `users` on a node that runs only jobs of named Unix users, and none as root; else absent."""
USERS: Final = "users"
JOB_TEXTS: Final = "stoker.io/job-texts"
"""Key of a label that is `utf-8` on a node whose agent is older than other encodings of a job's texts; else absent."""
ONLY_UTF_8: Final = "utf-8"
JOB_SCRIPTS: Final = "stoker.io/job-scripts"
"""Key of a label that is `none` on a node whose agent is older than scripts that are kept with a job; else absent."""
NO_SCRIPTS: Final = "none"
JOB_GPU_SHARES: Final = "stoker.io/job-gpu-shares"
"""Key of a label that is `none` on a node whose agent is older than shares of a GPU; else absent."""
NO_GPU_SHARES: Final = "none"
CONTAINERS: Final = "stoker.io/containers"
"""Key of a label that is `yes` on a node that runs jobs with an image; else absent."""
RUNS_CONTAINERS: Final = "yes"
NO_SCHEDULE: Final = "NoSchedule"
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_NOT_IN_SUBDOMAIN: Final = re.compile(r"[^a-z0-9.-]|[.-](?=[.])|[.](?=[.-])|^[.-]|[.-]$")
_SHOWN_MAX: Final = 80

_JOB_HINT: Final = "write `KEY=VALUE`, such as `team=nlp`, once for each label"

Source = Literal["agent", "people", "stoker"]
"""What put a label or taint on a node."""

Fault = tuple[int, str]
"""Place of a fault in a text (0 = its first character), and the fault in words."""


class Taint(msgspec.Struct, frozen=True):
    """A taint keeps away every job that doesn't tolerate it; its effect is NoSchedule, so running jobs go on."""

    key: str
    value: str = ""


def key_fault(text: str) -> Fault | None:
    """Return why `text` can't be the key of a label or taint (B1)."""
    prefix, slash, name = text.partition("/")
    if not slash:
        return _name_fault(text, "a key") if text else (0, "a key is missing")
    if "/" in name:
        return len(prefix) + 1 + name.index("/"), "a key has at most one `/`"
    if not prefix:
        return 0, "nothing stands before the `/`"
    if not name:
        return len(text), "nothing stands behind the `/`"
    if len(prefix) > PREFIX_MAX:
        return PREFIX_MAX, f"{len(prefix)} characters stand before the `/`; at most {PREFIX_MAX} may"
    if not _SUBDOMAIN.fullmatch(prefix):
        found = _NOT_IN_SUBDOMAIN.search(prefix)
        assert found is not None, f"what spoils {prefix!r}?"
        return found.start(), f"what stands before the `/` must be like `example.com`, and {found[0]!r} spoils it"
    fault = _name_fault(name, "what stands behind the `/`")
    return fault and (len(prefix) + 1 + fault[0], fault[1])


def value_fault(text: str) -> Fault | None:
    """Return why `text` can't be the value of a label or taint (B2)."""
    return _name_fault(text, "a value") if text else None


def pair_fault(key: str, value: str) -> Fault | None:
    """Return why `KEY=VALUE` can't be a label or taint (B1, B2)."""
    fault = value_fault(value)
    return key_fault(key) or (fault and (len(key) + 1 + fault[0], fault[1]))


def syntax_error(code: str, says: str, text: str, fault: Fault, hint: str) -> StokerError:
    """Return the refusal of a text with a fault, whose column it tells; `says` has a hole for the text."""
    at, why = fault
    shown = text[:_SHOWN_MAX]
    message = f"{says.format(repr(shown))} at column {at + 1}: {why}"
    return refusal_error(code, message, hint, got=shown, column=at + 1)


def _name_fault(text: str, what: str) -> Fault | None:
    found = _NOT_IN_NAME.search(text)
    if found:
        return found.start(), f"{found[0]!r} may not stand in {what}: only letters, digits, `-`, `_` and `.` may"
    if len(text) > NAME_MAX:
        return NAME_MAX, f"{what} has {len(text)} characters; at most {NAME_MAX} are taken"
    if _NAME.fullmatch(text):
        return None
    at = 0 if not text[0].isalnum() else len(text) - 1
    return at, f"{what} begins and ends with a letter or digit, not with {text[at]!r}"


def check_label(key: str, value: str) -> None:
    """Check that this label may be set on a node.

    Raises: StokerError `bad_label`.
    """
    check_label_key(key)
    fault = pair_fault(key, value)
    if fault:
        raise _bad_label(f"{key}={value}", fault)


def check_label_key(key: str) -> None:
    """Check that a label of this key may be set or taken off. Raises: StokerError `bad_label`."""
    fault = key_fault(key)
    if fault:
        raise _bad_label(key, fault)
    if key.startswith(OWN_PREFIX):
        message = f"{key!r} can't be set or taken off: keys that begin with `{OWN_PREFIX}` are Stoker's own"
        raise refusal_error("bad_label", message, "choose another prefix, or none", key=key)


def _bad_label(text: str, fault: Fault) -> StokerError:
    hint = "write `KEY=VALUE`, such as `zone=a` or `example.com/rack=r12`; `KEY-` takes one off"
    return syntax_error("bad_label", "{} is not a label,", text, fault, hint)


def check_job_labels(labels: Mapping[str, str]) -> None:
    """Check that a job may have these labels (B1, B2, B3).

    Raises: StokerError `bad_label`.
    """
    if len(labels) > JOB_LABELS_MAX:
        message = f"the job has {len(labels)} labels; at most {JOB_LABELS_MAX} are taken"
        raise refusal_error("bad_label", message, "leave some out; `comment` takes longer texts", labels=len(labels))
    for key, value in labels.items():
        fault = pair_fault(key, value)
        if fault:
            raise syntax_error("bad_label", "{} is not a label,", f"{key}={value}", fault, _JOB_HINT)
        check_label_key(key)


def parse_job_labels(words: Iterable[str]) -> dict[str, str]:
    """Read labels of a job such as `team=nlp`, one a word.

    Raises: StokerError `bad_label`.
    """
    labels: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            fault = len(word), "`=` and a value are missing"
            raise syntax_error("bad_label", "{} is not a label,", word, fault, _JOB_HINT)
        if labels.setdefault(key, value) != value:
            message = f"{key!r} would get two values, {labels[key]!r} and {value!r}"
            raise refusal_error("bad_label", message, "a job has one label of a key", key=key)
    check_job_labels(labels)
    return labels


def parse_label_changes(words: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read changes such as `zone=a` and `disk-`: return the labels to set, and the keys of the labels to take off.

    Raises: StokerError `bad_label`.
    """
    wanted: dict[str, str] = {}
    unwanted: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            check_label(key, value)
        elif word.endswith("-"):
            key = word[:-1]
            check_label_key(key)
        else:
            raise _bad_label(word, (len(word), "`=` and a value are missing"))
        if key in wanted or key in unwanted:
            raise refusal_error("bad_label", f"{key!r} is named twice", "say once what its value is", key=key)
        if equals:
            wanted[key] = value
        else:
            unwanted.append(key)
    return wanted, tuple(unwanted)


@lru_cache(maxsize=4_096)
def parse_taint(text: str) -> Taint:
    """Read `KEY=VALUE:NoSchedule` or `KEY:NoSchedule`.

    Raises: StokerError `bad_taint`.
    """
    said, colon, effect = text.partition(":")
    key, _, value = said.partition("=")
    fault = pair_fault(key, value)
    if fault is None and not colon:
        fault = len(text), f"`:{NO_SCHEDULE}` is missing"
    if fault:
        raise _bad_taint(text, fault)
    if effect != NO_SCHEDULE:
        raise _bad_effect(text, len(said) + 1, effect)
    return Taint(key, value)


def _bad_taint(text: str, fault: Fault) -> StokerError:
    hint = f"write `KEY=VALUE:{NO_SCHEDULE}` or `KEY:{NO_SCHEDULE}`; `KEY-` takes one off"
    return syntax_error("bad_taint", "{} is not a taint,", text, fault, hint)


def _bad_effect(text: str, at: int, effect: str) -> StokerError:
    hint = f"{NO_SCHEDULE} is the only effect here"
    if effect == "NoExecute":
        hint += "; `stoker cancel ID` ends what runs there already"
    elif effect == "PreferNoSchedule":
        hint += "; it keeps away every job without `--tolerate`"
    return syntax_error("bad_taint", "{} is not a taint,", text, (at, f"the effect {effect[:40]!r} is not known"), hint)


def parse_taint_changes(words: Iterable[str]) -> tuple[tuple[Taint, ...], tuple[str, ...]]:
    """Read changes such as `gpu=old:NoSchedule` and `gpu-`: return the taints to put on, and the keys to take off.

    Raises: StokerError `bad_taint`.
    """
    wanted: list[Taint] = []
    unwanted: list[str] = []
    seen: dict[str, None] = {}
    for word in words:
        if word.endswith("-"):
            key = taint_key(word[:-1])
            unwanted.append(key)
        else:
            wanted.append(parse_taint(word))
            key = wanted[-1].key
        if key in seen:
            raise refusal_error("bad_taint", f"{key!r} is named twice", "a node has one taint of a key", key=key)
        seen[key] = None
    return tuple(wanted), tuple(unwanted)


def taint_key(text: str) -> str:
    """Return the key that `KEY`, or a whole taint, names.

    Raises: StokerError `bad_taint`.
    """
    if ":" in text:
        return parse_taint(text).key
    check_taint_key(text)
    return text


def check_taint(taint: Taint) -> None:
    """Check that key and value are well-formed. Raises: StokerError `bad_taint`."""
    check_taint_key(taint.key)
    fault = pair_fault(taint.key, taint.value)
    if fault:
        raise _bad_taint(taint_text(taint), fault)


def check_taint_key(key: str) -> None:
    """Check that a key is well-formed. Raises: StokerError `bad_taint`."""
    fault = key_fault(key)
    if fault:
        raise _bad_taint(key, fault)


def taint_text(taint: Taint) -> str:
    """Return a taint as people write it; the inverse of `parse_taint`."""
    return f"{taint.key}={taint.value}:{NO_SCHEDULE}" if taint.value else f"{taint.key}:{NO_SCHEDULE}"


@lru_cache(maxsize=1_024)
def label_value(text: str) -> str:
    """Return the label value that stands for any text: `NVIDIA-H100-80GB-HBM3` for `NVIDIA H100 80GB HBM3`."""
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-_.")
    return made[:NAME_MAX].rstrip("-_.")


def labels_of(node: Node) -> dict[str, str]:
    """Return every label of a node that a selector may ask for (B3, B4), in a new dictionary."""
    labels = labels_set_on(node.inventory.labels, node.labels)
    for key in (HOSTNAME, GPU_MODEL, JOBS_AS, JOB_TEXTS, JOB_SCRIPTS, JOB_GPU_SHARES, CONTAINERS):
        labels.pop(key, None)
        own = label_of(node, key)
        if own is not None:
            labels[key] = own
    return labels


def label_of(node: Node, key: str) -> str | None:
    """Return the value of one label of a node; None = it has no label of that key."""
    if key == HOSTNAME:
        return node.name
    if key == GPU_MODEL:
        return _gpu_model(node)
    if key == JOBS_AS:
        return USERS if node.inventory.only_users else None
    if key == JOB_TEXTS:
        return None if node.inventory.reads_latin_1 else ONLY_UTF_8
    if key == JOB_SCRIPTS:
        return None if node.inventory.keeps_scripts else NO_SCRIPTS
    if key == JOB_GPU_SHARES:
        return None if node.inventory.shares_gpus else NO_GPU_SHARES
    if key == CONTAINERS:
        return RUNS_CONTAINERS if CONTAINER in node.inventory.executors else None
    if key in node.labels:
        return node.labels[key]
    return node.inventory.labels.get(key)


def _gpu_model(node: Node) -> str | None:
    models = dict.fromkeys(gpu.model for gpu in node.mended.gpus)
    return (label_value(next(iter(models))) or None) if len(models) == 1 else None


def labels_set_on(agents: Mapping[str, str], peoples: Mapping[str, str | None]) -> dict[str, str]:
    """Return the labels of an inventory with those that people set over them (B4)."""
    both = {**agents, **peoples}
    return {key: value for key, value in both.items() if value is not None}


def taints_of(node: Node) -> tuple[Taint, ...]:
    """Return the taints of a node that keep jobs away (B4, B5), in order of key."""
    texts = (*node.inventory.taints, *node.taints)
    if not texts:
        return ()
    found = {taint.key: taint for taint in map(parse_taint, node.inventory.taints) if taint.key not in node.taints_off}
    found.update((taint.key, taint) for taint in map(parse_taint, node.taints))
    return tuple(found[key] for key in sorted(found))


def label_sources(node: Node) -> dict[str, Source]:
    """Return what put each label on a node, by key."""
    agents = node.inventory.labels
    return {
        key: "people" if node.labels.get(key) is not None else "agent" if key in agents else "stoker"
        for key in labels_of(node)
    }


def taint_sources(node: Node) -> dict[str, Source]:
    """Return what put each taint on a node, by key."""
    peoples = {parse_taint(text).key for text in node.taints}
    return {taint.key: "people" if taint.key in peoples else "agent" for taint in taints_of(node)}
