"""Words that the tree no longer uses as names, each with the word of the field that replaced it.

Data only: the rule stands in `retired.py`. Words are written as module names are; `whole_file` is the class name
`WholeFile` too. A plural has its own row where it is retired as well.
"""

from typing import Final

WORDS: Final[dict[str, str]] = {
    "alike": "node_classes, NodeClass",
    "asked": "`*Query` for a request's question, audit_actions for the audit trail's words",
    "asks": "endpoints",
    "beside": "capacity",
    "books": "usage_ledger",
    "census": "satisfiability",
    "cut_tail": "keep_truncated",
    "fleet": "satisfiability",
    "fleets": "satisfiability",
    "hearing": "event_visibility",
    "hears": "event_visibility",
    "keeper": "guarantee_hold",
    "keepers": "guarantee_hold",
    "lane": "demand_cache in the engine, row in a picture",
    "lanes": "demand_cache in the engine, rows in a picture",
    "lives": "tenure",
    "lone_thread": "bounded_thread",
    "makes": "node_classes, NodeClass",
    "marker": "lease_record",
    "markers": "lease_record",
    "moment": "timestamp",
    "moments": "timestamp",
    "obstacle": "takeover_eligibility",
    "obstacles": "takeover_eligibility",
    "recall": "job_lookup",
    "room": "capacity",
    "rooms": "capacity",
    "roster": "supervisor",
    "shelf": "output_retention",
    "stray": "orphan_task, OrphanTask",
    "strays": "orphan_tasks, OrphanTask",
    "turns": "quota_order",
    "unlike": "config_drift",
    "walls": "quota_limits",
    "way_out": "recovery_hints",
    "ways": "gpu_choices",
    "whole_file": "atomic_file",
    "wish": "gpu_demand",
    "wishes": "gpu_demand",
}
"""Refused wherever they are one word of a name: `room` refuses `room.py`, `gpu_room.py` and `class GpuRoom`."""

WHOLE_NAMES: Final[dict[str, str]] = {
    "after": "dependency_text",
    "answer": "response",
    "answers": "responses",
    "ask": "endpoint",
    "between": "unavailable, UnavailableApp",
    "book": "usage_ledger",
    "ending": "attempt_outcome",
    "exchange": "http_message",
    "exchanges": "http_message",
    "keep": "guarantee_hold",
    "life": "tenure",
    "loss": "data_loss",
    "losses": "data_loss",
    "make": "node_class",
    "orders": "job_operations for what people order, instructions for what agents are told",
    "pause": "backoff",
    "pauses": "backoff",
    "peer": "peer_credentials for an account at the other end of a socket",
    "rates": "rate_limit",
    "readers": "stream_limit, StreamLimit",
    "rows": "row_cache, or whose rows they are: `JobRows`, `import postgres_rows`",
    "shown": "job_details",
    "silence": "node_liveness",
    "steps": "follow",
    "turn": "quota_order for tenants, attempt for a try",
    "wall": "quota_limit",
    "way": "gpu_choice",
    "who": "credentials",
    "words": "formatting in a command line, log in the runner",
    "world": "control_ports, ControlPorts",
}
"""Refused only as a whole name, since a longer one can give the word a good meaning: `StateWords`, `TaskEnding`."""

WORDS_WITHIN: Final[dict[str, dict[str, str]]] = {
    "src/stoker/brain/engine": {
        "pool": "candidate_nodes; a pool is what a class of jobs is guaranteed",
        "pools": "candidate_nodes; a pool is what a class of jobs is guaranteed",
    },
}
"""Refused as one word of a name in one folder only: folder -> word -> replacement."""
