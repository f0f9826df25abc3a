"""Figures of GPUs and clocks of nodes, from their heartbeats, and the nodes whose figures somebody looks at now.

They are kept in memory alone, for as long as a node is known: after a start or a take-over the next beats tell them,
and the last hour begins anew.

Rules: H1  figures grow old: a node that falls silent keeps its last ones, with their age
       H2  how far a clock is ahead is told by the beat that took the shortest of the last `BEATS` ones: a beat that is
           late on its way makes a clock look behind, and nothing makes it look ahead
       H3  of the last hour a point of each GPU is kept, one every `POINT_STEP_S` at most: less than 6 KiB a GPU
       H4  a GPU that isn't told of any more loses its points as they grow older than the hour
       H5  a node whose figures are read is watched: for `WATCH_S` its agent looks every second. Each read renews that,
           so it lasts as long as a page is open, and ends by itself
       H6  an agent is told no sooner than half of that has passed, whoever and how many read
Limits: WATCHED_MAX nodes at once; whoever reads the figures of more nodes together has them as heartbeats tell them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from stoker.brain.domain.gpu_telemetry import FigureWatch, GpuReading
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import SECOND_MS, Instant, Mono
from stoker.control.control_ports import POINT_STEP_S, FigurePoint, NodeFigures

BEATS: Final = 8
WATCHED_MAX: Final = 16
"""Heartbeats of 200 agents, 40 a second, cost 3 % of a core: 16 more a second cost 1.2 %, whoever and how many look."""
WATCH_S: Final = 10.0
"""Pages ask every second or two, and a page that was closed costs its node nothing after that."""
WATCH: Final = FigureWatch(every_ms=SECOND_MS, for_ms=round(WATCH_S * SECOND_MS))
HOUR_S: Final = 3_600
_ROW: Final = Struct("<ihhii")
"""Second of the monotonic clock, percent, degrees, MiB, milliwatts; NOT_TOLD where the driver told none."""
_NOT_TOLD: Final = -1
_POINTS_MAX: Final = HOUR_S // POINT_STEP_S


class _Trail:
    """Points of the GPUs of one node, the oldest first."""

    def __init__(self) -> None:
        self._points: dict[GpuUuid, bytearray] = {}
        self._at_s = 0

    def take(self, readings: tuple[GpuReading, ...], at_s: int) -> None:
        """Keep a point of each GPU, unless the last one is too near (H3)."""
        if self._points and at_s - self._at_s < POINT_STEP_S:
            return
        self._at_s = at_s
        for reading in readings:
            row = (reading.utilization_percent, reading.temperature_c, reading.memory_used_mb, reading.power_mw)
            points = self._points.setdefault(reading.uuid, bytearray())
            points += _ROW.pack(at_s, *(_NOT_TOLD if each is None else each for each in row))
        for uuid, points in list(self._points.items()):
            self._shorten(uuid, points, at_s - HOUR_S)

    def _shorten(self, uuid: GpuUuid, points: bytearray, since_s: int) -> None:
        rows = len(points) // _ROW.size
        old = max(0, rows - _POINTS_MAX)
        while old < rows and _ROW.unpack_from(points, old * _ROW.size)[0] <= since_s:
            old += 1
        del points[: old * _ROW.size]
        if not points:
            del self._points[uuid]

    def points(self, at_s: int) -> Mapping[GpuUuid, list[FigurePoint]]:
        """Return the points of each GPU, with their ages."""
        return {uuid: [_point(row, at_s) for row in _ROW.iter_unpack(each)] for uuid, each in self._points.items()}


def _point(row: tuple[int, ...], at_s: int) -> FigurePoint:
    return FigurePoint(at_s - row[0], *(None if each == _NOT_TOLD else each for each in row[1:]))


class FigureBook:
    """Newest figures and clocks of all nodes."""

    def __init__(self) -> None:
        self._figures: dict[NodeName, tuple[Beat, Mono]] = {}
        self._trails: dict[NodeName, _Trail] = {}
        self._ahead_ms: dict[NodeName, deque[int]] = {}

    def take(self, node: NodeName, beat: Beat, now: Instant, mono: Mono) -> None:
        """Note what a beat tells that came just now."""
        if beat.gpus:
            self._figures[node] = beat, mono
            self._trails.setdefault(node, _Trail()).take(beat.gpus, int(mono - beat.gpus_age_ms / SECOND_MS))
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

    def last_hour(self, node: NodeName, mono: Mono) -> Mapping[GpuUuid, list[FigurePoint]]:
        """Return the points of the last hour of each GPU of a node, the oldest first (H3)."""
        trail = self._trails.get(node)
        return {} if trail is None else trail.points(int(mono))

    def clock_ahead_ms(self, node: NodeName) -> int:
        """Return by how much its clock is ahead (H2)."""
        return max(self._ahead_ms.get(node, ()), default=0)

    def forget(self, node: NodeName) -> None:
        """Forget a node, and the clock of one that has a new stream."""
        self._figures.pop(node, None)
        self._trails.pop(node, None)
        self._ahead_ms.pop(node, None)


class FigureWatches:
    """Nodes that are watched (H5)."""

    def __init__(self) -> None:
        self._until: dict[NodeName, Mono] = {}

    def take(self, nodes: Iterable[NodeName], mono: Mono) -> list[NodeName]:
        """Note that the figures of these nodes are read; return those of them whose agents are to be told (H6)."""
        due = [name for name in nodes if self._until.get(name, mono) - mono <= WATCH_S / 2]
        if not due:
            return []
        self._until = {name: until for name, until in self._until.items() if until > mono}
        told = []
        for name in due:
            if name in self._until or len(self._until) < WATCHED_MAX:
                self._until[name] = Mono(mono + WATCH_S)
                told.append(name)
        return told

    def forget(self, node: NodeName) -> None:
        """Forget a node, whose next stream has to be told anew."""
        self._until.pop(node, None)
