"""What do the meters of a control plane say?

Reads as much of Prometheus' text form as a doctor needs: samples with their labels, and the quantile of a histogram.

Source: Prometheus' exposition formats, text format 0.0.4.
"""

import re
from collections.abc import Mapping, Sequence
from math import inf, isinf
from typing import Final, NamedTuple

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([^\s]+)(?:\s+[0-9]+)?")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
SAMPLES_MAX: Final = 200_000


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class Meters:
    """All samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for line in text.splitlines()[:SAMPLES_MAX]:
            sample = None if line.startswith("#") else _read(line)
            if sample is not None:
                self._samples.setdefault(sample.name, []).append(sample)

    def all(self, name: str) -> Sequence[Sample]:
        return self._samples.get(name, ())

    def value(self, name: str) -> float | None:
        """Of a metric without labels; None where this control plane has none of that name."""
        found = self.all(name)
        return found[0].value if found else None

    def at_most(self, histogram: str, share: float) -> float | None:
        """The upper bound of the bucket in which that share of all observations has been reached; None without any."""
        buckets = sorted((_bound(each), each.value) for each in self.all(f"{histogram}_bucket"))
        if not buckets or buckets[-1][1] == 0:
            return None
        return next(bound for bound, count in buckets if count >= share * buckets[-1][1])


def _bound(sample: Sample) -> float:
    text = sample.labels.get("le", "+Inf")
    return inf if text == "+Inf" else float(text)


def _read(line: str) -> Sample | None:
    found = _SAMPLE.fullmatch(line.strip())
    if found is None:
        return None
    try:
        return Sample(found[1], dict(_LABEL.findall(found[2] or "")), float(found[3]))
    except ValueError:
        return None


def shown_s(seconds: float) -> str:
    return "more than an hour" if isinf(seconds) else f"{seconds * 1_000:g} ms" if seconds < 1 else f"{seconds:g} s"
