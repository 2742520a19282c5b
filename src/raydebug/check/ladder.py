"""The rungs in their order: each is cheaper than the next, and whoever stops at one has not paid for those above."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydebug.check import cluster, data, engine, env, model, train
from raydebug.check.ask import NoAnswer
from raydebug.check.finding import Finding
from raydebug.check.remembered import Memory
from raydebug.check.stage import Checked, Stage
from raydebug.check.subject import Subject
from raydebug.errors import Exit, RaydebugError

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


STAGES = (
    Stage("env", env.BUDGET_S, env.check, needs_command=False),
    Stage("data", data.BUDGET_S, data.check),
    Stage("model", model.BUDGET_S, model.check),
    Stage("engine", engine.BUDGET_S, engine.check),
    Stage("train", train.BUDGET_S, train.check),
)
NAMES = tuple(stage.name for stage in STAGES)
# No rung of the ladder: asked for by name.
CLUSTER = Stage("cluster", cluster.BUDGET_S, cluster.check, needs_command=False)


@dataclass(frozen=True)
class Outcome:
    """How a stage went.

    Args:
        stage: its name.
        status: `passed`, `failed` or `skipped`.
        seconds: how long it took.
        budget_s: how long it should take.
        findings: what it found; of a skipped stage, what it found when it passed.
        reason: why it was skipped.
    """

    stage: str
    status: str
    seconds: float
    budget_s: float
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints of it."""
        return {
            "stage": self.stage,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "budget_s": self.budget_s,
            "findings": [finding.as_json() for finding in self.findings],
            "reason": self.reason,
        }


def choose_stages(names: Sequence[str]) -> list[Stage]:
    """Return the stages of these names in the ladder's order; all of them without a name.

    Raises:
        RaydebugError: there is no such stage.
    """
    for name in names:
        if name not in (*NAMES, CLUSTER.name):
            raise RaydebugError(
                f"there is no stage '{name}'",
                cause=f"the stages are: {', '.join(NAMES)}, and {CLUSTER.name}; the command stands behind `--`",
                fix="raydebug check env data -- python -m verl.trainer.main_ppo ...",
                code="check.unknown-stage",
                exit_code=Exit.USAGE,
            )
    ladder = [stage for stage in STAGES if not names or stage.name in names]
    return [CLUSTER, *ladder] if CLUSTER.name in names else ladder


def climb(
    subject: Subject,
    stages: Sequence[Stage],
    *,
    memory: Memory | None = None,
    keep_going: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Check stage by stage until one fails.

    Args:
        subject: what is checked.
        stages: the rungs, in order.
        memory: of stages that passed; None checks each anew and remembers nothing.
        keep_going: check the others too when one has failed.
        on_stage: told each stage as it begins.
        on_outcome: told how each went.
    """
    outcomes: list[Outcome] = []
    for stage in stages:
        failed = next((o.stage for o in outcomes if o.status == FAILED), None)
        if failed is not None and not keep_going:
            outcome = Outcome(stage.name, SKIPPED, 0.0, stage.budget_s, reason=f"stage {failed} failed")
        else:
            outcome = _recall(subject, stage, memory) or _try(subject, stage, memory, on_stage)
        outcomes.append(outcome)
        on_outcome(outcome)
    return outcomes


def _recall(subject: Subject, stage: Stage, memory: Memory | None) -> Outcome | None:
    record = memory.recall(subject, stage.name) if memory is not None else None
    if record is None:
        return None
    reason = (
        f"it passed {record.age()} ago in {record.seconds:.1f} s, and nothing that it looked at has changed since"
        " (--fresh checks again)"
    )
    return Outcome(stage.name, SKIPPED, 0.0, stage.budget_s, record.findings, reason)


def _try(subject: Subject, stage: Stage, memory: Memory | None, on_stage: Callable[[Stage], None]) -> Outcome:
    on_stage(stage)
    started = time.monotonic()
    try:
        checked = stage.check(subject)
    except NoAnswer as failure:
        checked = Checked([failure.finding])
    seconds = time.monotonic() - started
    findings = _unique(checked.findings)
    if any(finding.severity == "error" for finding in findings):
        return Outcome(stage.name, FAILED, seconds, stage.budget_s, findings)
    if memory is not None and checked.read:
        memory.remember(subject, stage.name, seconds, findings, checked.read)
    return Outcome(stage.name, PASSED, seconds, stage.budget_s, findings)


def _unique(findings: list[Finding]) -> list[Finding]:
    """Return the findings, errors first, each once: train and test data often have the same fault."""
    order = {"error": 0, "warning": 1, "note": 2}
    seen: dict[tuple[str, str], Finding] = {}
    for finding in sorted(findings, key=lambda f: order[f.severity]):
        seen.setdefault((finding.code, finding.what), finding)
    return list(seen.values())
