"""Figures of GPUs and clocks of nodes, from their heartbeats.

They are kept in memory alone, for as long as a node is known: after a start or a take-over the next beats tell them.

Rules: H1  figures grow old: a node that falls silent keeps its last ones, with their age
       H2  how far a clock is ahead is told by the beat that took the shortest of the last `BEATS` ones: a beat that is
           late on its way makes a clock look behind, and nothing makes it look ahead
"""

from collections import deque
from typing import Final

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import SECOND_MS, Instant, Mono
from stoker.control.control_ports import NodeFigures

BEATS: Final = 8


class FigureBook:
    """Newest figures and clocks of all nodes."""

    def __init__(self) -> None:
        self._figures: dict[NodeName, tuple[Beat, Mono]] = {}
        self._ahead_ms: dict[NodeName, deque[int]] = {}

    def take(self, node: NodeName, beat: Beat, now: Instant, mono: Mono) -> None:
        """Note what a beat tells that came just now."""
        if beat.gpus:
            self._figures[node] = beat, mono
        if beat.at:
            self._ahead_ms.setdefault(node, deque(maxlen=BEATS)).append(beat.at - now)

    def figures(self, node: NodeName, mono: Mono) -> NodeFigures | None:
        """Return the newest figures of a node (H1)."""
        kept = self._figures.get(node)
        if kept is None:
            return None
        beat, came_at = kept
        age_s = mono - came_at + beat.gpus_age_ms / SECOND_MS
        return NodeFigures({reading.uuid: reading for reading in beat.gpus}, age_s)

    def clock_ahead_ms(self, node: NodeName) -> int:
        """Return by how much its clock is ahead (H2)."""
        return max(self._ahead_ms.get(node, ()), default=0)

    def forget(self, node: NodeName) -> None:
        """Forget a node, and the clock of one that has a new stream."""
        self._figures.pop(node, None)
        self._ahead_ms.pop(node, None)
