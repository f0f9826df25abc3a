"""Codec of the event log and snapshots: canonical JSON.

One canonical JSON for log, snapshots and, later, replication: keys in declared order, maps sorted, no floats. A
record names its format version; `decode_fact` refuses what it doesn't know instead of guessing.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stoker.brain.domain.access import Token
from stoker.brain.domain.allocation import Claim
from stoker.brain.domain.ids import Epoch, JobId, Position, Principal
from stoker.brain.domain.job import Job, SubmitKey
from stoker.brain.domain.node import Node
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.secret import Secret
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.decayed_usage import UsageRecord
from stoker.brain.state.events.union import Event

FORMAT: Final = 2
"""Of facts and snapshots. A newer number is refused; what an older one wrote is read, since events and fields are only
ever added. Which events belong to it is in `tests/old/`, and peers compare it before one follows the other."""
JOBS_PER_CHUNK: Final = 500
CHUNK_BYTES: Final = 1 << 20
"""A chunk ends with the job that reaches either: about a millisecond of encoding, so that a snapshot never holds the
process for long."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log: an event, when it happened and who caused it."""

    v: int = FORMAT
    at: Instant
    by: Principal
    event: Event
    joined: bool | msgspec.UnsetType = msgspec.UNSET
    """True: of the same command as the fact before it, so that who did what can be told from the log. Not written
    where a command has one fact, as most have."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    cluster_id: str
    epoch: Epoch
    position: Position
    last_at: Instant
    policy: Policy
    next_job_id: JobId
    nodes: int
    jobs: int
    partitions: tuple[Partition, ...] = ()
    submit_keys: tuple[tuple[str, SubmitKey], ...] = ()
    tenants: tuple[Tenant, ...] = ()
    """Without those of a log from before there were tenants, which had the default alone."""
    pools: Pools = Pools()
    pools_configured: Pools | None = None
    tokens: tuple[Token, ...] = ()
    clock_moved_ms: int = 0
    secrets: tuple[Secret, ...] = ()
    claims: tuple[Claim, ...] = ()
    decayed_usage: UsageRecord | None = None
    """None = it wasn't counted when this was written."""


_encoder: Final = msgspec.json.Encoder(order="deterministic")
_facts: Final = msgspec.json.Decoder(Fact)
_headers: Final = msgspec.json.Decoder(_Header)
_jobs: Final = msgspec.json.Decoder(list[Job])
_nodes: Final = msgspec.json.Decoder(list[Node])


def encode_fact(fact: Fact) -> bytes:
    return _encoder.encode(fact)


def decode_fact(record: bytes) -> Fact:
    """Raises ValueError with a sentence when `record` isn't a fact of a known format."""
    try:
        fact = _facts.decode(record)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a fact of format {FORMAT}: {error}") from error
    if fact.v > FORMAT:
        raise ValueError(f"a fact of format {fact.v}; this version reads formats up to {FORMAT}")
    return fact


def snapshot_chunks(state: ClusterState) -> Iterator[bytes]:
    """The state in slices: a header, the nodes, then the jobs.

    What is written is the state at the first `next()`: records are frozen, so holding references to them is enough.
    """
    jobs = list(state.jobs.values())
    nodes = list(state.nodes.values())
    yield _encoder.encode(
        _Header(
            v=FORMAT,
            cluster_id=state.cluster_id,
            epoch=state.epoch,
            position=state.position,
            last_at=state.last_at,
            policy=state.policy,
            next_job_id=state.next_job_id,
            nodes=len(nodes),
            jobs=len(jobs),
            partitions=tuple(state.partitions.values()),
            submit_keys=tuple(state.submit_keys.items()),
            tenants=tuple(state.tenants.values()),
            pools=state.pools,
            pools_configured=state.pools_configured,
            tokens=tuple(state.tokens.values()),
            clock_moved_ms=state.clock_moved_ms,
            secrets=tuple(state.secrets.values()),
            claims=tuple(state.claims.values()),
            decayed_usage=state.decayed_usage.record(),
        )
    )
    yield _encoder.encode(nodes)
    chunk: list[Job] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += job.spec.memory_bytes
        if len(chunk) >= JOBS_PER_CHUNK or size >= CHUNK_BYTES:
            yield _encoder.encode(chunk)
            chunk, size = [], 0
    if chunk:
        yield _encoder.encode(chunk)


def load_snapshot(chunks: Iterable[bytes]) -> ClusterState:
    """The state that `snapshot_chunks` wrote. Raises ValueError when the chunks aren't whole or of another format."""
    remaining = iter(chunks)
    state = ClusterState()
    try:
        header = _headers.decode(next(remaining))
        if header.v > FORMAT:
            raise ValueError(f"a snapshot of format {header.v}; this version reads formats up to {FORMAT}")
        _fill(state, header, _nodes.decode(next(remaining)), (_jobs.decode(chunk) for chunk in remaining))
    except (msgspec.MsgspecError, StopIteration) as error:
        raise ValueError(f"not a whole snapshot: {error}") from error
    return state


def _fill(state: ClusterState, header: _Header, nodes: list[Node], jobs: Iterable[list[Job]]) -> None:
    state.cluster_id, state.epoch, state.position = header.cluster_id, header.epoch, header.position
    state.last_at, state.next_job_id = header.last_at, header.next_job_id
    state.clock_moved_ms = header.clock_moved_ms
    state.put_policy(header.policy)
    state.partitions = {partition.name: partition for partition in header.partitions}
    state.submit_keys = dict(header.submit_keys)
    # Before the jobs, which are charged to them.
    for tenant in header.tenants:
        state.put_tenant(tenant)
    state.pools, state.pools_configured = header.pools, header.pools_configured
    for token in header.tokens:
        state.put_token(token)
    state.secrets = {secret.id: secret for secret in header.secrets}
    for node in nodes:
        state.put_node(node)
    for chunk in jobs:
        for job in chunk:
            state.put_job(job)
    state.claims = {claim.job: claim for claim in header.claims}
    # After the jobs: what they hold is in it.
    state.decayed_usage.load(header.decayed_usage)
    found = f"{len(state.jobs)} of {header.jobs} jobs, {len(state.nodes)} of {header.nodes} nodes"
    if (len(state.nodes), len(state.jobs)) != (header.nodes, header.jobs):
        raise ValueError(f"not a whole snapshot: {found}")
