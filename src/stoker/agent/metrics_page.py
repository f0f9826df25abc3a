"""Page `/metrics` of an agent: the figures of its GPUs under the names of NVIDIA's dcgm-exporter.

Dashboards and alerts that are made for that exporter read this page as they are. `hpc_job` is the job that holds a GPU,
as dcgm-exporter's own mapping of jobs has it; of one that several share all of them, with commas. A MIG instance has
the number of its GPU, a UUID of its own, and the labels `GPU_I_ID` and `GPU_I_PROFILE`; its temperature, power and
errors are those of its GPU.

Rules: M1  figures that are so old that they may say nothing of now have no lines, as of an exporter that is down: only
           their age has

Limits: `CONNECTIONS_MAX` connections at once, `REQUEST_BYTES_MAX` bytes of a request, `ANSWER_S` seconds for each.
Source: dcgm-exporter, etc/default-counters.csv; Prometheus, "Text-based format".
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from stoker.agent.gpu_monitor import DeviceLook, MetricsSource
from stoker.brain.domain.gpu import index_parts, mig_profile
from stoker.brain.domain.gpu_telemetry import GpuSample
from stoker.ports import ProbedGpu

CONNECTIONS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 8_192
ANSWER_S: Final = 5.0


class _Figure(NamedTuple):
    name: str
    help: str
    value: Callable[[GpuSample, ProbedGpu | None], object]
    kind: str = "gauge"


def _free_mb(sample: GpuSample, gpu: ProbedGpu | None) -> int | None:
    return None if gpu is None or sample.memory_used_mb is None else max(0, gpu.memory_mb - sample.memory_used_mb)


def _watts(sample: GpuSample, gpu: ProbedGpu | None) -> str | None:
    return None if sample.power_mw is None else f"{sample.power_mw / 1_000:.3f}"


def _of_rows(name: str) -> Callable[[GpuSample, ProbedGpu | None], object]:
    return lambda sample, _: None if sample.rows is None else int(getattr(sample.rows, name))


_COLUMNS: Final = (
    _Figure("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda sample, _: sample.utilization_percent),
    _Figure("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda sample, _: sample.memory_used_mb),
    _Figure("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", _free_mb),
    _Figure("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda sample, _: sample.temperature_c),
    _Figure("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", _watts),
    _Figure(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrected ECC errors since the driver was loaded.",
        lambda sample, _: sample.ecc_errors,
    ),
    _Figure("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda sample, _: sample.sm_clock_mhz),
    _Figure("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", lambda sample, _: sample.memory_clock_mhz),
    _Figure(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy used since the driver was loaded (in mJ).",
        lambda sample, _: sample.energy_mj,
        "counter",
    ),
    _Figure(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "What bounds the clocks, as bits: 0x08 hardware, 0x20 and 0x40 heat, 0x80 power brake, 0x04 power limit.",
        lambda sample, _: sample.clock_events,
    ),
    _Figure(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Rows of memory replaced for correctable errors.",
        _of_rows("correctable"),
        "counter",
    ),
    _Figure(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Rows of memory replaced for uncorrectable errors.",
        _of_rows("uncorrectable"),
        "counter",
    ),
    _Figure("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether a reset would replace a row (0 or 1).", _of_rows("pending")),
    _Figure("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether a row can't be replaced (0 or 1).", _of_rows("failed")),
)


def page(source: MetricsSource) -> str:
    """Return the text of the page; a figure that the driver doesn't tell has no line."""
    figures = source.figures
    if figures is None:
        return ""
    known = {gpu.uuid: gpu for gpu in source.gpus}
    age_s = source.mono() - figures.at
    lines: list[str] = []
    for column in _COLUMNS if age_s <= source.stale_s else ():  # M1
        told = [(sample, column.value(sample, known.get(sample.uuid))) for sample in figures.samples if sample.uuid]
        if any(value is not None for _, value in told):
            lines += [f"# HELP {column.name} {column.help}", f"# TYPE {column.name} {column.kind}"]
            lines += [
                f"{column.name}{{{_labels(source.node, sample, known.get(sample.uuid), figures)}}} {value}"
                for sample, value in told
                if value is not None
            ]
    lines += [
        "# HELP stoker_gpu_figures_age_seconds Seconds since the GPUs were looked at.",
        "# TYPE stoker_gpu_figures_age_seconds gauge",
        f"stoker_gpu_figures_age_seconds {age_s:.1f}",
    ]
    return "\n".join([*lines, ""])


def _labels(node: str, sample: GpuSample, gpu: ProbedGpu | None, figures: DeviceLook) -> str:
    jobs = dict.fromkeys(str(key.job) for key in figures.holders.get(sample.uuid, ()))
    whole, slot = index_parts(sample.index)
    own = gpu.gpu_instance if gpu and gpu.gpu_instance >= 0 else slot
    instance = {} if slot is None else {"GPU_I_ID": own, "GPU_I_PROFILE": mig_profile(gpu.model) if gpu else ""}
    labels: Mapping[str, object] = {
        "gpu": whole,
        "UUID": sample.uuid,
        "device": f"nvidia{whole}",
        "modelName": gpu.model if gpu else "",
        **instance,
        "Hostname": node,
        "hpc_job": ",".join(jobs),
        **({"simulated": "true"} if figures.simulated else {}),
    }
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsPage:
    """Server of the page on one address."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._open = 0

    async def serve(self, host: str, port: int) -> None:
        """Serve until cancelled. Raises: OSError when nothing can listen there."""
        server = await asyncio.start_server(self._take, host, port, limit=REQUEST_BYTES_MAX)
        async with server:
            await server.serve_forever()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(ANSWER_S):
                        writer.write(_response(*await self._answer(reader)))
                        await writer.drain()
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, str]:
        """Status and body for the one request of a connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "400 Bad Request", "this is no HTTP request\n"
        method, _, rest = head.partition(b" ")
        if rest.partition(b" ")[0].partition(b"?")[0] != b"/metrics":
            return "404 Not Found", "here is only /metrics\n"
        if method != b"GET":
            return "405 Method Not Allowed", "/metrics is read by GET\n"
        return "200 OK", page(self._source)


def _response(status: str, body: str) -> bytes:
    content = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content
