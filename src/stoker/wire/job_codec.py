"""Protobuf codec of the JobService, with the meaning that REST has.

Requests become the very texts that REST reads, and are read as those; answers are made of the very views that REST
shows. So there is one set of names, defaults and refusals, and this module only renames.

Rules: J1  a field of a request that isn't known here is refused: it would be meant
       J2  what is left out of a request is left out of the body
       J3  a job that doesn't fit a message by the attempts it had loses the oldest of them
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from stoker.brain.domain.errors import FactValue, refusal_error
from stoker.wire.gen import job_pb2 as pb
from stoker.wire.rest.decode import decode_body, decode_query
from stoker.wire.rest.job import AttemptView, JobListQuery, JobView, ReasonView
from stoker.wire.rest.submit import JobBody

ANSWER_BYTES_MAX: Final = 3 << 20
"""Of one answer: what gRPC's clients take without being told is 4 MiB."""
_RENAMED: Final = {"job_class": "class", "priority_word": "priority", "shell": "command", "argv": "command"}
"""Fields of messages, and what REST calls them."""

_encode = msgspec.json.Encoder().encode


# --- requests ---------------------------------------------------------------------------------------------------


def check_known(message: Message) -> None:
    """Refuse fields that this version doesn't know (J1). Raises: StokerError `unknown_field`."""
    for each in (message, *(message.jobs if isinstance(message, pb.SubmitRequest) else ())):
        unknown = UnknownFieldSet(each)
        if len(unknown):
            kind, number = each.DESCRIPTOR.name, unknown[0].field_number
            why = f"field number {number} of {kind} is not known here"
            hint = "is the program newer than the control plane? leave the field out, or ask a newer one"
            raise refusal_error("unknown_field", why, hint, path=kind, number=number)


def job_body(job: pb.NewJob, at: str = "") -> JobBody:
    """Return the REST body that a message means.

    `at` says where the job lies among many: `jobs[3]`.

    Raises: StokerError as for a body of REST, or `conflicting_fields`.
    """
    if job.argv and job.HasField("shell"):
        message = "`shell` and `argv` both say what to run"
        hint = "send a line for the shell, or a program with its arguments"
        path = f"{at}.shell" if at else "shell"
        raise refusal_error("conflicting_fields", message, hint, path=path, other="argv")
    return decode_body(JobBody, _encode(dict(_given(job))), at)


def _given(message: Message) -> Iterator[tuple[str, object]]:
    """Return the fields of a message that were given (J2)."""
    for field, value in message.ListFields():
        name = _RENAMED.get(field.name, field.name)
        if field.message_type is not None:  # of these messages only maps are made of others
            yield name, dict(value)
        elif field.is_repeated:
            yield name, list(value)
        else:
            yield name, value


def job_list_query(request: pb.ListRequest) -> JobListQuery:
    """Raises: StokerError `bad_parameter`."""
    return decode_query(JobListQuery, ((name, _text(value)) for name, value in _given(request)))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- answers ----------------------------------------------------------------------------------------------------


def encode_job(view: JobView) -> pb.Job:
    """The job as REST shows it, its command told apart by its kind, and without the names of other dialects."""
    job = pb.Job(
        **{name: getattr(view, name) for name in _SAME_FIELDS},
        reason=_encode_reason(view.reason) if view.reason else None,
        attempts=[_encode_attempt(attempt) for attempt in view.attempts],
        members=pb.ArrayMembers(**_fields(view.members)) if view.members else None,
        notices=[pb.JobNotice(**_fields(notice)) for notice in view.notices],
    )
    if isinstance(view.command, str):
        job.shell = view.command
    else:
        job.argv.extend(view.command)
    while job.ByteSize() > ANSWER_BYTES_MAX and len(job.attempts) > 1:  # J3
        del job.attempts[: (len(job.attempts) + 1) // 2]
    return job


_BUILT: Final = ("reason", "attempts", "members", "notices", "shell", "argv")
_SAME_FIELDS: Final = tuple(field.name for field in pb.Job.DESCRIPTOR.fields if field.name not in _BUILT)


def _encode_reason(view: ReasonView) -> pb.JobReason:
    facts = {name: _encode_fact(fact) for name, fact in view.facts.items()}
    return pb.JobReason(code=view.code, message=view.message, hint=view.hint, facts=facts)


def _encode_fact(fact: FactValue) -> pb.Fact:
    if isinstance(fact, bool):
        return pb.Fact(flag=fact)
    return pb.Fact(number=fact) if isinstance(fact, int) else pb.Fact(text=str(fact))


def _encode_attempt(view: AttemptView) -> pb.JobAttempt:
    fields = _fields(view)
    fields["tasks"] = [pb.AttemptTask(**_fields(task)) for task in view.tasks]
    return pb.JobAttempt(**fields)


def _fields(view: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__struct_fields__}
