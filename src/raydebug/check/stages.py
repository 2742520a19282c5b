"""The stages in their order, cheapest first; how they are run, and run again with their findings' fixes applied."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from raydebug.check.cache import Cache
from raydebug.check.config import refused, without_rules
from raydebug.check.target import NoAnswer, StageResult, Target, run_probe
from raydebug.errors import UsageError
from raydebug.findings import Finding
from raydebug.protocol.secrets import without_secret
from raydebug.render import duration

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
ROUNDS = 5  # a fix may bring to light what it covered


@dataclass(frozen=True)
class Stage:
    """One stage of the check: the module of this folder with its name, which is imported at its first use."""

    name: str
    needs_command: bool = True

    @property
    def budget_s(self) -> float:
        """How long it should take on two cores."""
        budget_s: float = self._module().BUDGET_S
        return budget_s

    def check(self, target: Target) -> StageResult:
        """Gather facts and judge them; without a `check` of its own, those of the probe with its name."""
        module = self._module()
        if hasattr(module, "check"):
            result: StageResult = module.check(target)
            return result
        request = {**target.as_request(), "profile": target.profile or getattr(module, "PROFILE", None)}
        facts = run_probe(target, self.name, budget_s=module.BUDGET_S, **request)
        return StageResult(refused(target, facts) or module.judge(target, facts), tuple(facts.get("read", ())))

    def _module(self) -> Any:
        return import_module(f"raydebug.check.{self.name}")


STAGES = (Stage("env", needs_command=False), Stage("data"), Stage("model"), Stage("engine"), Stage("train"))
NAMES = tuple(stage.name for stage in STAGES)
CLUSTER = Stage("cluster", needs_command=False)  # runs only if it is named


@dataclass(frozen=True)
class Outcome:
    """The outcome of one stage; a skipped one has the reason, and what it found when it passed."""

    stage: str
    status: str
    seconds: float
    budget_s: float
    findings: list[Finding] = field(default_factory=list)
    reason: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints of it."""
        findings = [finding.as_json() for finding in self.findings]
        return {**vars(self), "seconds": round(self.seconds, 3), "findings": findings}


def choose_stages(names: Sequence[str]) -> list[Stage]:
    """Return the stages of these names in their order; all of them if none is named.

    Raises:
        RaydebugError: there is no such stage.
    """
    for name in names:
        if name not in (*NAMES, CLUSTER.name):
            raise UsageError(
                f"there is no stage '{name}'",
                cause=f"the stages are: {', '.join(NAMES)}, and {CLUSTER.name}; put the training command after `--`",
                fix="raydebug check env data -- python -m verl.trainer.main_ppo ...",
                code="check.unknown-stage",
            )
    chosen = [stage for stage in STAGES if not names or stage.name in names]
    return [CLUSTER, *chosen] if CLUSTER.name in names else chosen


def run_stages(
    target: Target,
    stages: Sequence[Stage],
    *,
    cache: Cache | None = None,
    keep_going: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the stages until one fails.

    Without a cache each stage is run, and nothing is stored; with keep_going the remaining ones are run after a failure
    too.
    """
    outcomes: list[Outcome] = []
    for stage in stages:
        failed = next((o.stage for o in outcomes if o.status == FAILED), None)
        if failed is not None and not keep_going:
            outcome = Outcome(stage.name, SKIPPED, 0.0, stage.budget_s, reason=f"stage {failed} failed")
        elif stage.name == "engine" and target.rules is None:
            missing = without_rules(target, "the start of the engine")
            outcome = Outcome(stage.name, SKIPPED, 0.0, stage.budget_s, reason=f"{missing.what}; {missing.fix}")
        else:
            outcome = _from_cache(target, stage, cache) or _run(target, stage, cache, on_stage)
        outcomes.append(outcome)
        on_outcome(outcome)
    return outcomes


def _from_cache(target: Target, stage: Stage, cache: Cache | None) -> Outcome | None:
    record = cache.load(target, stage.name) if cache is not None else None
    if record is None:
        return None
    age = duration(max(0.0, time.time() - record.at), whole=True)
    reason = (
        f"it passed {age} ago in {record.seconds:.1f} s, and nothing that it looked at has changed since"
        " (--fresh checks again)"
    )
    return Outcome(stage.name, SKIPPED, 0.0, stage.budget_s, record.findings, reason)


def _run(target: Target, stage: Stage, cache: Cache | None, on_stage: Callable[[Stage], None]) -> Outcome:
    on_stage(stage)
    started = time.monotonic()
    try:
        result = stage.check(target)
    except NoAnswer as failure:
        result = StageResult([failure.finding])
    seconds = time.monotonic() - started
    findings = _unique(result.findings)
    if any(finding.severity == "error" for finding in findings):
        return Outcome(stage.name, FAILED, seconds, stage.budget_s, findings)
    if cache is not None and result.read:
        cache.store(target, stage.name, seconds, findings, result.read)
    return Outcome(stage.name, PASSED, seconds, stage.budget_s, findings)


def _unique(findings: list[Finding]) -> list[Finding]:
    """Return the findings, errors first, each once: train and test data often have the same fault."""
    order = {"error": 0, "warning": 1, "note": 2}
    seen: dict[tuple[str, str], Finding] = {}
    for finding in sorted(findings, key=lambda f: order[f.severity]):
        seen.setdefault((finding.code, finding.what), finding)
    return list(seen.values())


@dataclass(frozen=True)
class Fixed:
    """A target with fixes applied, and what was changed, in words."""

    target: Target
    changes: tuple[str, ...] = ()

    def as_command(self) -> str:
        """Return the shell line that runs the fixed command in the fixed environment, without values of secrets."""
        changed = self.target.changed
        words = [f"-u{name}" for name, value in changed.items() if value is None]
        words += [f"{name}={without_secret(name, value)}" for name, value in changed.items() if value is not None]
        line = shlex.join(self.target.command)
        return f"env {shlex.join(words)} {line}" if words else line


def fix_until_done(
    target: Target, attempt: Callable[[Target], list[Outcome]], on_change: Callable[[str], None]
) -> tuple[Fixed, list[Outcome]]:
    """Check, apply the fixes, and check again until no finding has a fix left; return how the last check went."""
    fixed, outcomes = Fixed(target), attempt(target)
    for _ in range(ROUNDS):
        after = apply_fixes(fixed, [finding for outcome in outcomes for finding in outcome.findings])
        if after == fixed:
            break
        for change in after.changes[len(fixed.changes) :]:
            on_change(change)
        fixed, outcomes = after, attempt(after.target)
    return fixed, outcomes


def apply_fixes(before: Fixed, findings: Sequence[Finding]) -> Fixed:
    """Return a target with the fixes of findings applied; unchanged if none can be applied."""
    after = before
    for finding in findings:
        if finding.severity == "note":
            continue
        for name, value in finding.variables.items():
            after = _with_variable(after, name, value)
        for key, value in finding.overrides.items():
            after = _with_override(after, key, value)
    return after


def _with_variable(before: Fixed, name: str, value: str | None) -> Fixed:
    target = before.target
    if target.environ is None:
        return before  # containers have an environment of their own: `.env` and `raydebug up` make it
    change = f"{name}: {target.environ.get(name, target.caller.get(name, '(not set)'))} -> {value or '(not set)'}"
    return Fixed(target.with_variable(name, value), (*before.changes, change))


def _with_override(before: Fixed, key: str, value: str | None) -> Fixed:
    target = before.target
    if target.program is None:
        return before
    plain = key.lstrip("+")
    head, own = target.command[: target.program.arguments_at], target.command[target.program.arguments_at :]
    old = [word for word in own if word.lstrip("+").partition("=")[0] == plain]
    kept = [word for word in own if word not in old]
    new = kept if value is None else [*kept, f"{key}={value}"]
    if new == [*own]:
        return before
    said = old[-1].partition("=")[2] if old else "(not given)"
    change = f"{plain}: {said} -> {'(taken out)' if value is None else value}"
    return replace(before, target=replace(target, command=(*head, *new)), changes=(*before.changes, change))
