"""One look at the memory of a job's processes, and the wait for later steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydebug.client.gateway_client import ask_processes, one_of_pid
from raydebug.errors import RaydebugError
from raydebug.protocol.messages import UNKNOWN
from raydebug.protocol.questions import CENSUS, MEMORY, TRAINING, Holder, Nothing

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.listings import ListedAnswer
    from raydebug.protocol.questions import Census, ProcessMemory, TrainingWords

ANSWER_S, CENSUS_S, LATE_S = 5.0, 28.0, 60.0
POLL_S, GONE_S = 0.5, 5.0  # a gateway that starts again has no process for a moment
STEP_S = 3600.0  # a step that takes longer is given up
NOTHING = Nothing()


@dataclass(frozen=True)
class Look:
    """The memory of all processes at one moment; `census` by instance, `step` None where no process says one.

    `others` are those beside the one that was asked for.
    """

    processes: Sequence[ListedAnswer[ProcessMemory]]
    census: Mapping[str, Census]
    step: int | None
    at_s: float
    others: Sequence[ListedAnswer[ProcessMemory]] = ()


def look(cluster: Cluster, job: str | None, *, pid: str | None = None, census: bool = False) -> Look:
    """Ask all processes of a job, or one (PID or PID@IP), for their memory, and for who holds it.

    Raises:
        RaydebugError: the gateway does not answer; there is no process of this id, or several nodes have one; its
            raydebug knows no `memory`.
    """
    answers = ask_processes(cluster, MEMORY, NOTHING, job=job, timeout_s=ANSWER_S)
    wanted = answers if pid is None else [one_of_pid(pid, [(answer["process"], answer) for answer in answers])]
    if wanted and all(answer["state"] == UNKNOWN for answer in wanted):
        raise RaydebugError(
            "the processes of this job cannot say their memory", cause="they run an earlier raydebug",
            fix="install this raydebug where the job runs, and start the job again", code="memory.unknown",
        )  # fmt: skip
    step, at_s, only = fetch_step(cluster, job), time.monotonic(), [answer["instance"] for answer in wanted]
    walks = ask_processes(cluster, CENSUS, NOTHING, job=job, only=only, timeout_s=CENSUS_S) if census and only else []
    counted = {walk["instance"]: walk["answer"] for walk in walks if walk["answer"]}
    for holders in counted.values():  # code of the job can send rows with holes
        holders["holders"] = [row for row in holders.get("holders", []) if row.keys() == Holder.__annotations__.keys()]
    return Look(wanted, counted, step, at_s, [answer for answer in answers if answer not in wanted])


def fetch_step(cluster: Cluster, job: str | None) -> int | None:
    """Return the step that a job's training is in; None where no process says one."""
    answers = ask_processes(cluster, TRAINING, NOTHING, job=job, timeout_s=1.0)
    return _step_in(answers)


def _step_in(answers: Sequence[ListedAnswer[TrainingWords]]) -> int | None:
    words = [answer["answer"] for answer in answers if answer["answer"]]
    return max((each["step"] for each in words if "step" in each), default=None)


def ended_error() -> RaydebugError:
    """Return the error of a job that ended before the last look at it."""
    return RaydebugError(
        "the job has ended", cause="no process of it runs any more", code="memory.ended",
        fix="ask for fewer steps: raydebug memory --growth 1",
    )  # fmt: skip


def wait_for_step(cluster: Cluster, job: str | None, step: int) -> None:
    """Wait until the training is in a step.

    Raises:
        RaydebugError: it does not come to it: the training has ended, or it waits.
    """
    until_s, silent_since, gone_since = time.monotonic() + STEP_S, time.monotonic(), time.monotonic()
    while (now := time.monotonic()) < until_s and now < silent_since + LATE_S:
        answers = ask_processes(cluster, TRAINING, NOTHING, job=job, timeout_s=1.0)
        current = _step_in(answers)
        if current is not None and current >= step:
            return
        silent_since = silent_since if current is None else now
        gone_since = now if answers else gone_since
        if now > gone_since + GONE_S:
            raise ended_error()
        time.sleep(POLL_S)
    raise RaydebugError(
        f"the training did not come to step {step}",
        cause="no process says its step any more" if now < until_s else "its step takes more than an hour",
        fix="see what it waits for: `raydebug stacks`", code="memory.no-step",
    )  # fmt: skip
