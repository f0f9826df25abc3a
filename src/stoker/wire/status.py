"""Table of error codes: HTTP status, gRPC status and exit status of each.

The one table. A test proves it total over every code that the source can refuse with, so that no face has to guess.

Source: RFC 9110 (HTTP), the gRPC status codes, DESIGN section 7 (exit status).
"""

from typing import Final, NamedTuple

from stoker.brain.domain.errors import Refusal

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_REFUSED: Final = 4
EXIT_NO_SERVER: Final = 5


class Status(NamedTuple):
    """One row. `title` is the same for every refusal of this code, as RFC 9457 wants."""

    http: int
    grpc: str
    exit: int
    title: str


def _malformed(title: str, http: int = 400) -> Status:
    """The server can't read what was sent."""
    return Status(http, "INVALID_ARGUMENT", EXIT_REFUSED, title)


def _mistyped(title: str) -> Status:
    """A text that the command line reads before anything is sent, so a wrong one is a usage error there."""
    return Status(400, "INVALID_ARGUMENT", EXIT_USAGE, title)


def _missing(title: str) -> Status:
    return Status(404, "NOT_FOUND", EXIT_NOT_FOUND, title)


def _unproved(title: str) -> Status:
    """Nobody knows who asks."""
    return Status(401, "UNAUTHENTICATED", EXIT_REFUSED, title)


def _forbidden(title: str) -> Status:
    return Status(403, "PERMISSION_DENIED", EXIT_REFUSED, title)


def _conflict(title: str) -> Status:
    """Well formed, and not possible as things are now."""
    return Status(409, "FAILED_PRECONDITION", EXIT_REFUSED, title)


def _impossible(title: str) -> Status:
    """Well formed, and not possible on this cluster."""
    return Status(422, "FAILED_PRECONDITION", EXIT_REFUSED, title)


def _full(title: str, http: int = 429) -> Status:
    return Status(http, "RESOURCE_EXHAUSTED", EXIT_REFUSED, title)


def _unavailable(title: str, http: int = 503) -> Status:
    return Status(http, "UNAVAILABLE", EXIT_FAILED, title)


def _local(title: str, exit_status: int = EXIT_FAILED) -> Status:
    """Never crosses the wire: a daemon says it to whoever started it."""
    return Status(500, "INTERNAL", exit_status, title)


STATUSES: Final[dict[str, Status]] = {
    # what was sent can't be read
    "bad_request": _malformed("What was sent is not HTTP"),
    "bad_json": _malformed("The body is not JSON"),
    "unsupported_media_type": _malformed("The body is said to be something else than JSON", 415),
    "bad_field": _malformed("A field has the wrong type or value"),
    "unknown_field": _malformed("A field is not known"),
    "missing_field": _malformed("A field is missing"),
    "conflicting_fields": _malformed("Two fields say the same thing, or one what the other rules out"),
    "bad_parameter": _malformed("A query parameter has the wrong type or value"),
    "unknown_parameter": _malformed("A query parameter is not known"),
    "body_too_large": _malformed("The body is too large", 413),
    "head_too_large": _malformed("The head of the request is too large", 431),
    "request_too_slow": _unavailable("The request came too slowly", 408),
    "unknown_state": _mistyped("No dialect knows this state"),
    "unknown_outcome": _mistyped("No command ends so"),
    "unknown_action": _mistyped("No command is called so"),
    "bad_job_id": _mistyped("Not a job id"),
    "several_jobs": _mistyped("Several jobs where one is wanted"),
    "bad_signal": _mistyped("Not a signal, or none that can warn a job in time"),
    "bad_time": _mistyped("Not a duration"),
    "bad_begin": _mistyped("Not a time to begin at"),
    "bad_moment": _mistyped("Not a moment, or a span without one"),
    "bad_size": _mistyped("Not a size of memory"),
    "bad_priority": _mistyped("Not a priority"),
    "bad_server": _mistyped("Not a server's address"),
    "bad_selector": _mistyped("Not a label selector"),
    "bad_label": _mistyped("Not a label"),
    "bad_taint": _mistyped("Not a taint"),
    "bad_toleration": _mistyped("Not a toleration"),
    "bad_partition_name": _mistyped("Not a name for a partition"),
    "bad_tenant_name": _mistyped("Not a name for a tenant"),
    "bad_share": _mistyped("Not a share of the GPUs"),
    "bad_gpu_share": _mistyped("Not a share of a GPU"),
    "shares_unknown": _impossible("No node knows shares of a GPU"),
    "share_of_one_gpu": _mistyped("A share of several GPUs"),
    "mig_not_whole": _mistyped("Several MIG instances per task, or a share of one"),
    # the job is out of bounds
    "no_jobs": _malformed("The list of jobs is empty"),
    "empty_command": _malformed("The command is empty"),
    "bad_text": _malformed("A text holds a character that can't be passed on"),
    "bad_image": _malformed("Not the name of an image"),
    "bad_mount": _malformed("Not a mount, or one target is named twice"),
    "bad_shm_size": _malformed("Too much shared memory"),
    "image_required": _malformed("What is said of a container is of none"),
    "bad_workdir": _malformed("The working directory is not an absolute path"),
    "no_changes": _malformed("A change names nothing to change"),
    "bad_script": _malformed("A script can't be run as it is sent"),
    "bad_env": _malformed("A variable's name is not one"),
    "out_of_range": _malformed("A number is out of range"),
    "text_too_long": _malformed("A text is too long", 413),
    "too_many_jobs": _malformed("Too many jobs in one request", 413),
    "time_limit_too_long": _impossible("The time limit is longer than allowed"),
    "bad_lost_after": _impossible("Nodes can't be given up after so short or so long a silence"),
    "too_many_terms": _malformed("A selection has too many conditions, names and tolerations"),
    "bad_notify": _mistyped("Not what can be told, or not whom"),
    "notify_not_allowed": _impossible("A target that this control plane may not tell anything"),
    "port_not_listening": _conflict("Nothing of the job listens on that port"),
    "forward_unavailable": _impossible("The node lets nobody through to ports of its jobs"),
    "exec_unavailable": _impossible("No program can be executed in that task"),
    "exec_failed": _impossible("The program can't be started in that task"),
    "bad_terminal": _malformed("A job can't have a terminal beside what else it asks for"),
    "no_terminal": _conflict("The job has no terminal"),
    "session_over": _conflict("That session is over"),
    "session_taken": _conflict("Another client has taken the session over"),
    "too_many_sessions": _full("Too many sessions are open in the task or on its node"),
    "websocket_wanted": _malformed("A session is a WebSocket", 426),
    "bad_frame": _malformed("What came is no message of a session"),
    "too_many_forwards": _full("Too many connections to jobs are open"),
    "bad_secret": _malformed("A secret that can't be kept, or a job's wish for one that can't be read"),
    "unknown_secret": _impossible("No such secret for the job"),
    "unknown_tenant": _impossible("No such tenant"),
    "unknown_partition": _impossible("No such partition to run in"),
    "unknown_node": _impossible("No such node to exclude"),
    "no_container_runtime": _impossible("No node can run containers"),
    "encoding_unknown": _impossible("No agent knows the encoding of the job's texts"),
    "scripts_unknown": _impossible("No agent knows scripts that come with a job"),
    "priority_above_tier": _forbidden("The priority is above the tenant's tier"),
    "demand_unstated": _malformed("The tenant's limit needs to know the demand", 422),
    "over_tenant_limit": _forbidden("It could never start within the tenant's limits"),
    "user_required": _forbidden("The job names no Unix user"),
    "root_refused": _forbidden("Jobs may not run as root"),
    "demand_unsatisfiable": _impossible("No node could ever run it"),
    "queue_full": _full("Too many jobs wait"),
    "job_bytes_full": _full("Jobs take too much memory"),
    # it isn't there
    "not_found": _missing("Nothing lives at this path"),
    "method_not_allowed": Status(405, "UNIMPLEMENTED", EXIT_REFUSED, "The path has no such method"),
    "job_unknown": _missing("No such job"),
    "job_forgotten": _missing("The job's record is gone"),
    "attempt_unknown": _missing("No such attempt or rank"),
    "node_unknown": _missing("No such node"),
    "partition_unknown": _missing("No such partition"),
    "tenant_unknown": _missing("No such tenant to show or change"),
    "secret_unknown": _missing("No such secret to delete"),
    "token_not_found": _missing("No such token to revoke"),
    # who asks may not
    "token_missing": _unproved("A token is wanted"),
    "certificate_expired": _unproved("The certificate of the node has expired"),
    "node_key_unknown": _unproved("The key of the node isn't known, or not any more"),
    "token_unknown": _unproved("The token is not one of this cluster, or not any more"),
    "not_allowed": _forbidden("The token does not allow it"),
    "user_not_yours": _forbidden("A job under another account than the token's"),
    "foreign_user": _forbidden("Asked by another account of the same machine"),
    "session_ended": _unproved("The session of the web pages is over"),
    "oidc_failed": _forbidden("The identity provider's answer doesn't let somebody in"),
    "oidc_no_group": _forbidden("Somebody is in no group that the cluster lets in"),
    "oidc_unavailable": _unavailable("The identity provider can't be asked"),
    "csrf_missing": _forbidden("A browser's session changes something only for a page of ours that says so"),
    "foreign_origin": _forbidden("Asked from a foreign page or under a foreign name"),
    "rate_limited": _full("Too many requests"),
    "too_many_wrong_tokens": _full("Too many wrong tokens"),
    # tokens
    "bad_token": _malformed("A token that can't be made"),
    "bad_user": _malformed("Not the name of a Unix account"),
    "too_many_tokens": _full("Too many tokens"),
    "too_many_secrets": _full("Too many secrets, or too large ones together"),
    "secret_key_unusable": _conflict("The key of the secrets can't be used"),
    "secret_in_clear": _forbidden("Others could read a secret on its way"),
    "bad_token_file": _local("A file with a token can't be used", EXIT_REFUSED),
    "bad_ca_file": _local("A file of certificates can't be used", EXIT_REFUSED),
    "config_unwritable": _local("The person's settings can't be written"),
    "context_unknown": _local("No context of this name", EXIT_NOT_FOUND),
    "context_exists": _local("There is such a context already", EXIT_REFUSED),
    "too_many_contexts": _local("No more contexts can be added", EXIT_REFUSED),
    "server_not_proved": _local("The server hasn't proved who it is", EXIT_REFUSED),
    "tls_wanted": _malformed("The port speaks TLS, and was asked without"),
    "tls_not_spoken": _local("The port speaks no TLS", EXIT_REFUSED),
    # not as things are
    "job_ended": _conflict("The job has ended"),
    "job_live": _conflict("The job has started"),
    "job_waits": _conflict("The job waits already"),
    "not_of_members": _conflict("Members of an array can't have it of their own"),
    "not_held": _conflict("The job is not held"),
    "not_running": _conflict("The job does not run"),
    "not_an_array": _conflict("The job is no array"),
    "too_many_attempts": _conflict("The job has had too many attempts"),
    "dependency_never_satisfied": _conflict("A dependency that can never be met"),
    "nothing_failed": _conflict("No member has failed"),
    "member_unknown": _missing("No such member of the array"),
    "dependency_cycle": _impossible("Jobs wait for each other"),
    "bad_dependency": _malformed("A dependency that can't be read, or on a job that never was"),
    "bad_array": _malformed("Members that can't be read"),
    "array_too_large": _malformed("An array is too large"),
    "too_many_dependencies": _malformed("Too many dependencies"),
    "begin_too_late": _malformed("A time too far ahead"),
    "bad_output": _malformed("A file name that can't be used"),
    "gpu_wish_without_gpus": _malformed("A wish about GPUs, and no GPU asked for"),
    "bad_idempotency_key": _malformed("An idempotency key that can't be used"),
    "idempotency_key_reused": _conflict("An idempotency key was used for another submit"),
    "ids_spent": _full("No job ids are left", 507),
    "not_started": _conflict("The job has not started yet"),
    "node_in_use": _conflict("The node is in use"),
    "node_forgotten": _conflict("The node was forgotten"),
    "partition_exists": _conflict("There is such a partition already"),
    "partition_in_use": _conflict("Jobs name the partition"),
    "too_many_partitions": _full("Too many partitions"),
    "tenant_exists": _conflict("There is such a tenant already"),
    "tenant_in_use": _conflict("Something names the tenant"),
    "tenant_place": _conflict("A tenant can't be moved"),
    "too_many_tenants": _full("Too many tenants"),
    "tree_too_deep": _impossible("The tree of tenants is too deep"),
    "guarantees_exceed_parent": _impossible("Guarantees are higher than that of the tenant above"),
    "guarantee_above_limit": _impossible("A guarantee is higher than the limit"),
    "share_below_use": _conflict("A share is lower than what is in use"),
    "too_many_labels": _full("Too many labels or taints on one node"),
    "node_unreachable": _unavailable("The node can't be reached"),
    "log_unavailable": _conflict("The output can't be read"),
    "feed_lost": Status(410, "OUT_OF_RANGE", EXIT_FAILED, "A reader fell behind"),
    "too_many_streams": _full("Too many open streams", 503),
    "too_many_connections": _full("Too many clients at once", 503),
    # an agent is refused
    "bad_inventory": _malformed("The node's inventory can't be right"),
    "inventory_first": _conflict("The inventory of tasks comes first"),
    "bad_certificate_request": _malformed("The certificate request can't be used"),
    "bad_node_name": _malformed("Not a name for a node"),
    "session_unknown": _conflict("The agent must register anew"),
    "session_replaced": _conflict("A newer connection of this node took over"),
    "node_lost": _conflict("The node was silent for so long that its work was settled"),
    "stream_overflow": _full("The agent reads too slowly"),
    "malformed_message": _malformed("A message that can't be understood"),
    "gpu_claimed": _conflict("Another node has that GPU"),
    "node_has_joined": _conflict("The node has joined with another key"),
    "key_in_use": _conflict("The key is that of another node"),
    "node_name_taken": _conflict("Another machine has that name"),
    "too_many_nodes": _full("Too many nodes"),
    # between the parts of one control plane
    "stale_epoch": _conflict("Another control plane has taken over"),
    "stale_plan": _conflict("The state has moved on"),
    # a follower is refused
    "peer_secret_wrong": _unproved("The secret of another pair of control planes, or none"),
    "peer_secret_unknown": _unavailable("The secret of the control planes can't be read now"),
    "other_cluster": _conflict("A control plane of another cluster"),
    "follower_too_old": _conflict("A follower of an older version"),
    "same_member": _conflict("Two control planes with one name or one data folder"),
    "too_many_followers": _full("Too many control planes follow"),
    "log_trimmed": _conflict("The log no longer reaches back that far"),
    "promotion_refused": _conflict("This control plane can't be made active"),
    "not_supported_here": Status(501, "UNIMPLEMENTED", EXIT_REFUSED, "This kind of cluster can't do what was asked"),
    "not_active": Status(503, "UNAVAILABLE", EXIT_NO_SERVER, "A standby was asked for what only the active does"),
    # a server in trouble, or none
    "overloaded": _full("The disk can't keep up", 503),
    "stopping": _unavailable("The control plane is stopping"),
    "history_unavailable": _unavailable("The history can't be read"),
    "log_failed": _unavailable("The event log can't be written"),
    "lease_lost": _unavailable("This control plane has just stopped being active"),
    "backup_running": _full("Another backup is being taken"),
    "not_ready": _unavailable("Not ready to serve"),
    "internal_error": Status(500, "INTERNAL", EXIT_FAILED, "A defect of Stoker"),
    "bad_answer": _unavailable("The answer is not Stoker's", 502),
    "took_too_long": Status(504, "DEADLINE_EXCEEDED", EXIT_FAILED, "The answer took too long"),
    "no_answer": Status(504, "UNKNOWN", EXIT_NO_SERVER, "The server went away before it answered"),
    "no_server": Status(503, "UNAVAILABLE", EXIT_NO_SERVER, "No server answers"),
    # a daemon that can't start
    "bad_settings": _local("The settings are wrong", EXIT_USAGE),
    "which_daemon": _local("The settings could be of either daemon", EXIT_USAGE),
    "data_dir_unusable": _local("The data folder can't be used"),
    "too_few_files": _local("The agent may have too few files open"),
    "too_few_processes": _local("The agent's account may have too few processes"),
    "data_dir_not_empty": _local("The data folder has a cluster already", EXIT_REFUSED),
    "backup_foreign": _local("The file is no backup"),
    "backup_too_new": _local("A newer version wrote the backup"),
    "backup_damaged": _local("The backup can't be trusted"),
    "backup_unwritable": _local("The backup can't be written"),
    "backup_exists": _local("There is a file of that name already", EXIT_REFUSED),
    "data_dir_held": _local("Another process holds the data folder"),
    "store_held": _local("Another control plane writes to the database"),
    "store_unreachable": _local("The database can't be used"),
    "store_moved": _local("The log of the data folder is in another store"),
    "store_not_empty": _local("The database has a cluster already", EXIT_REFUSED),
    "store_too_new": _local("A newer version wrote the store"),
    "marker_unusable": _local("The marker can't be kept in that folder"),
    "marker_damaged": _local("The marker can't be trusted"),
    "one_of_several": _local("A control plane that was one of several can't go on alone"),
    "identity_unusable": _local("The identity of the node can't be used"),
    "join_refused": _local("The control plane doesn't let the node join", EXIT_REFUSED),
    "bad_address": _mistyped("The address isn't HOST:PORT"),
    "not_joined": _local("The node hasn't joined a cluster"),
    "authority_unusable": _local("The certificate authority can't be used"),
    "plain_text": _local("Others could read what passes"),
    "peer_secret_unusable": _local("The secret of the control planes can't be used"),
    "log_damaged": _local("The event log can't be trusted"),
    "port_in_use": _local("Another program has the port"),
    "open_to_others": _local("It would be open to others without a token", EXIT_USAGE),
    "cannot_listen": _local("The address can't be listened on"),
    "assertions_off": _local("Python runs without assertions", EXIT_USAGE),
    "part_died": _local("An essential part of the control plane ended"),
    "extra_missing": _local("An optional part of Stoker is not installed"),
    "demo_stuck": _local("The demo did not go on"),
    "bad_trace": _local("The trace can't be run", EXIT_USAGE),
    "bad_sim_policy": _local("No policy for this simulation", EXIT_USAGE),
}
"""Codes are stable and public. Add rows; never change what one means."""


def status_of(code: str) -> Status:
    """The row of a code. An unlisted one is a defect of ours, and shows as such."""
    return STATUSES.get(code, STATUSES["internal_error"])


def retry_after_s(refusal: Refusal) -> int:
    """Seconds after which the same request may be let in; 0 = waiting doesn't help, or nobody knows how long."""
    told = refusal.facts.get("retry_after_s", 0)
    return int(told) or (_PASSING_S if refusal.code in _PASSING else 0)


_PASSING: Final = frozenset({"overloaded", "queue_full", "job_bytes_full", "too_many_streams"})
_PASSING_S: Final = 1
"""What may be over in a second."""


SUBMIT_CODES: Final = (
    "no_jobs",
    "empty_command",
    "bad_text",
    "bad_workdir",
    "bad_script",
    "bad_terminal",
    "bad_env",
    "out_of_range",
    "bad_gpu_share",
    "share_of_one_gpu",
    "mig_not_whole",
    "shares_unknown",
    "text_too_long",
    "too_many_jobs",
    "time_limit_too_long",
    "bad_lost_after",
    "bad_signal",
    "unknown_tenant",
    "priority_above_tier",
    "demand_unstated",
    "over_tenant_limit",
    "bad_user",
    "user_required",
    "root_refused",
    "encoding_unknown",
    "scripts_unknown",
    "no_container_runtime",
    "bad_image",
    "bad_mount",
    "bad_shm_size",
    "image_required",
    "demand_unsatisfiable",
    "queue_full",
    "job_bytes_full",
    "bad_time",
    "bad_selector",
    "bad_toleration",
    "too_many_terms",
    "unknown_partition",
    "unknown_node",
    "bad_array",
    "array_too_large",
    "bad_dependency",
    "too_many_dependencies",
    "dependency_cycle",
    "begin_too_late",
    "bad_output",
    "gpu_wish_without_gpus",
    "ids_spent",
    "bad_notify",
    "notify_not_allowed",
    "bad_secret",
    "unknown_secret",
    "too_many_secrets",
)
"""What the brain may refuse a submit with."""
