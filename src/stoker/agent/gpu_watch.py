"""Which GPUs does this node offer, when the driver may come up after the agent?

Rules: W1  a probe that fails never stops the agent: the node joins with what there is
       W2  while no GPU, or not every GPU, could be read, the agent looks again and again, and offers more once it sees
           more
       W3  a look that sees less than before changes nothing: a driver that hiccups must not take GPUs from under
           running jobs (watching their health is a later step)
"""

from collections.abc import Awaitable, Callable
from typing import Final

from stoker.ports import Clock, ProbeResult, Telemetry

Probe = Callable[[], Awaitable[ProbeResult]]
NOTHING: Final = ProbeResult(gpus=())


class GpuWatch:
    """Remembers the best look so far."""

    def __init__(self, probe: Probe, telemetry: Telemetry) -> None:
        self._probe = probe
        self._telemetry = telemetry
        self._seen = NOTHING
        self._told = ""

    async def look(self) -> ProbeResult:
        """The GPUs to offer now."""
        try:
            found = await self._probe()
        except OSError as error:
            self._tell(str(error))
            return self._seen
        self._tell("; ".join(f"{fault.where}: {fault.error}" for fault in found.faults))
        if {gpu.uuid for gpu in self._seen.gpus} <= {gpu.uuid for gpu in found.gpus}:
            self._seen = found
        return self._seen

    async def until_settled(self, clock: Clock, every_s: float, changed: Callable[[ProbeResult], None]) -> None:
        """Look until every GPU could be read (W2)."""
        while not self._seen.gpus or self._seen.faults:
            await clock.sleep(every_s)
            before = self._seen
            after = await self.look()
            if after.gpus != before.gpus:
                changed(after)

    def _tell(self, trouble: str) -> None:
        """Once per trouble: a broken driver shouldn't fill the log."""
        if trouble and trouble != self._told:
            self._telemetry.warn("gpu_probe_failed", error=trouble)
        self._told = trouble
