"""The reference pages of states, reasons and error codes, with the meaning of each."""

from stoker.brain.domain.lifecycle import JOB_MOVES, JOB_STATES, JobState, NodeState, Outcome
from stoker.brain.domain.reason import Reason, ReasonCode, describe, hint_for
from stoker.wire.status import STATUSES
from tools.reference.markdown import code, page, table


def states() -> str:
    """The page of job states, their dialects and moves, and of attempts and nodes."""
    return page(
        "States",
        "Source: `src/stoker/brain/domain/lifecycle.py`. Answers use Stoker's words; filters accept every dialect.",
        "## Jobs",
        table(
            ("state", "meaning", "final", "dgpu", "MVP", "Slurm"),
            (
                (code(state), words.meaning, "yes" if words.final else "", words.dgpu, words.mvp, words.slurm)
                for state, words in JOB_STATES.items()
            ),
        ),
        "## Legal moves of a job",
        "Out of a final state leads only an order to run once more, `stoker requeue`.",
        table(("from", "to"), ((code(state), _moves(state)) for state in JobState)),
        "## Outcomes of one attempt",
        "An attempt's outcome is shown in the job's history; "
        "`start_failed`, `port_taken` and `lost` are never a job's state.",
        "\n".join(f"- {code(outcome)}" for outcome in Outcome),
        "## Nodes",
        "\n".join(f"- {code(state)}" for state in NodeState),
    )


def _moves(state: JobState) -> str:
    return ", ".join(code(other) for other in JobState if other in JOB_MOVES[state]) or "nowhere: it is final"


def reasons() -> str:
    """The page of reasons. An ellipsis stands where an answer has a number or a name."""
    return page(
        "Reasons",
        "Why a job waits, or why it ended as it did. Source: `src/stoker/brain/domain/reason.py`. `…` stands for what "
        "the answer fills in; the same values travel as `facts`.",
        table(
            ("code", "what `stoker why` says", "what would change it"),
            (
                (code(each), describe(Reason(each)).replace("?", "…"), hint_for(Reason(each)).replace("?", "…"))
                for each in ReasonCode
            ),
        ),
    )


def error_codes() -> str:
    """The page of refusals."""
    return page(
        "Error codes",
        "Every refusal carries `code`, `message`, `hint` and `facts`; over REST it is an RFC 9457 problem, on the "
        "command line it goes to standard error. Source: `src/stoker/wire/status.py`. Exit status: 0 done, 1 failed, "
        "2 usage, 3 not found, 4 refused, 5 no server.",
        table(
            ("code", "meaning", "HTTP", "gRPC", "exit"),
            (
                (code(name), status.title, str(status.http), code(status.grpc), str(status.exit))
                for name, status in STATUSES.items()
            ),
        ),
    )
