"""Which values of the policy may an operator tune, under which keys and within which range?

The section `policy` is drawn from `brain.domain.policy`: names, defaults and sentences are written there once. What
isn't here is set by Linux or by the size of a message, and no cluster would be better off with another value.

Rules: Q1  a duration is in milliseconds inside and in seconds for people: `stop_grace_ms` is `stop_grace_s` here
       Q2  what isn't given keeps the policy's own default
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import msgspec

from stoker.brain.domain.policy import Policy
from stoker.brain.domain.units import DAY_MS, SECOND_MS

_DAY_S: Final = DAY_MS // SECOND_MS

RANGES: Final[dict[str, tuple[int, int]]] = {
    "time_limit_default_ms": (1, 3_650 * _DAY_S),
    "time_limit_max_ms": (1, 3_650 * _DAY_S),
    "priority_max": (2_000, 1_000_000_000),
    "pending_jobs_max": (1, 10_000_000),
    "tenant_pending_jobs_max": (1, 10_000_000),
    "ended_jobs_max": (1, 1_000_000),
    "jobs_per_submit_max": (1, 100_000),
    "array_members_max": (1, 1_000_000),
    "dependencies_max": (1, 10_000),
    "dependencies_per_submit_max": (1, 1_000_000),
    "submit_keys_max": (1, 1_000_000),
    "begin_ahead_max_ms": (60, 3_650 * _DAY_S),
    "partitions_max": (1, 10_000),
    "node_labels_max": (1, 1_000),
    "selector_terms_max": (1, 1_000),
    "aging_per_hour": (0, 1_000_000),
    "aging_max": (0, 1_000_000_000),
    "tasks_max": (1, 16_384),
    "gpus_per_task_max": (1, 16_384),
    "retries_max": (0, 10_000),
    "requeues_max": (0, 10_000),
    "attempts_max": (1, 10_000),
    "port_retries_max": (0, 1_000),
    "port_min": (1_024, 65_535),
    "port_max": (1_024, 65_535),
    "backoff_first_ms": (0, _DAY_S),
    "backoff_max_ms": (0, _DAY_S),
    "stop_grace_ms": (0, _DAY_S),
    "placements_per_pass_max": (1, 100_000),
}
"""Field of the policy -> least and most, in the unit of the key."""

_RISING: Final = (
    ("time_limit_default_s", "time_limit_max_s"),
    ("tenant_pending_jobs_max", "pending_jobs_max"),
    ("backoff_first_s", "backoff_max_s"),
    ("port_min", "port_max"),
)
"""The first of each pair must not exceed the second."""

Section = TypeVar("Section")


def policy_field(key: str) -> str:
    """The policy's name for a key of this section (Q1)."""
    return f"{key.removesuffix('_s')}_ms" if key.endswith("_s") else key


def policy_key(name: str) -> str:
    """The key of this section for a field of the policy (Q1)."""
    return f"{name.removesuffix('_ms')}_s" if name.endswith("_ms") else name


def _drawn(cls: type[Section]) -> type[Section]:
    """The class with one key per tunable of the policy, in the policy's order."""
    keys = [(each.name, each.default) for each in msgspec.structs.fields(Policy) if each.name in RANGES]
    assert len(keys) == len(RANGES), "a range is named of which the policy knows nothing"
    cls.__annotations__ = {policy_key(name): int for name, _ in keys}
    for name, default in keys:
        setattr(cls, policy_key(name), default // SECOND_MS if name.endswith("_ms") else default)
    return dataclass(frozen=True, kw_only=True)(cls)


@_drawn
class PolicySettings:
    """Policy: part of the log, and replayed."""

    def faults(self) -> list[str]:
        given = dict(self._given())
        found = []
        for key, value in given.items():
            least, most = RANGES[policy_field(key)]
            if not least <= value <= most:
                unit = " seconds" if key.endswith("_s") else ""
                found.append(f"{key}: {value} isn't between {least} and {most}{unit}")
        found += [
            f"{low} ({given[low]}) must not exceed {high} ({given[high]})"
            for low, high in _RISING
            if given[low] > given[high]
        ]
        return found

    def as_policy(self) -> Policy:
        """The policy that these settings ask for."""
        return Policy(
            **{
                policy_field(key): value * SECOND_MS if policy_field(key) != key else value
                for key, value in self._given()
            }
        )

    def _given(self) -> Iterator[tuple[str, int]]:
        section: Any = self  # its fields are drawn at run time
        return ((each.name, getattr(section, each.name)) for each in fields(section))
