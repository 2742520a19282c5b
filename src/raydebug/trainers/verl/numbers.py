"""What the metrics of each step say about a training: rules over the numbers that verl logs. Pure.

A healthy tiny training must give no finding. What two steps of the tiny model log under the profile `debug` (verl
0.9.1, measured on a CPU) decided these choices:

- The correlation of rollout and actor probabilities is 0.9954 to 0.9972, so one step below 0.98 is enough; with other
  matrices in the rollout engine it is 0.16. A policy that is certain of every token has no variance to correlate, only
  rounding errors: KL_LEAST excludes it.
- A random model never ends its responses, and the profile cuts those of any model: their lengths are judged only in a
  training at full size, over STEPS steps. verl 0.9 pads a batch to its longest response and compares with that, so
  that short answers of one length look like cut ones: CUT_LEAST excludes them.
- A few responses may well have equal rewards: in a reduced training this is a note, after SMALL_STEPS steps.
- A gradient or an entropy is compared with earlier steps of the same run: healthy values differ by orders of magnitude.

Where one finding explains another (equal rewards make advantages and gradients zero), only the first is reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raydebug.findings import Finding, finding
from raydebug.trainers.trainer import StepMetrics

PEARSON = "training/rollout_actor_probs_pearson_corr"  # verl 0.6 to 0.9.1 utils/debug/metrics.py
PEARSON_LEAST = 0.98
KL_LEAST = 0.001  # healthy tiny trainings have 0.0006 to 0.0007; with other matrices in the engine 0.35
# Beside it; or in its place in 0.4 and 0.5, which have only the last one. Limits: verl docs/algo/rollout_corr.md,
# check_rollout_correction_health, and docs/faq/faq.rst. 0.6.0 has trainer/ppo/mismatch_helper.py. The ratios that verl
# logs with them (ppl_ratio, rollout_is_mean) are computed of the same differences.
K3_KL = ("rollout_corr/k3_kl", "mismatch/mismatch_k3_kl")  # another estimate of the KL, whose terms do not cancel
KL_MOST = 0.1
DISTANCES = {
    "rollout_corr/kl": KL_MOST,
    "mismatch/mismatch_kl": KL_MOST,
    **dict.fromkeys(K3_KL, KL_MOST),
    "training/rollout_probs_diff_mean": 0.01,
}
# The same in verl 0.4 to 0.9.1: trainer/ppo/metric_utils.py, compute_data_metrics; workers/actor and workers/engine.
SCORES = ("critic/score", "critic/rewards")
ADVANTAGES = "critic/advantages"
CLIPPED, LENGTH = "response_length/clip_ratio", "response_length/mean"
GRADIENT = "actor/grad_norm"
ENTROPIES = ("actor/entropy", "actor/entropy_loss")  # 0.4.0 has the second: trainer/ppo/ray_trainer.py

STEPS = 3
SMALL_STEPS = 2  # all that the profile `debug` runs
CUT_LEAST = 16  # tokens
# Equal rewards of 0 or 1 give exactly 0. Others may leave rounding errors (measured: 0.06 for seven of 0.6, as verl
# divides by their deviation), which cannot be distinguished from advantages of estimators that do not divide.
# Source: trainer/ppo/core_algos.py, compute_grpo_outcome_advantage.
ADVANTAGE_ZERO = 1e-6
GRADIENT_TIMES, GRADIENT_BEFORE, GRADIENT_BEFORE_LEAST = 100.0, 10, 3  # times the median of the steps before it
ENTROPY_FRACTION = 0.1  # of the highest of the first STEPS steps
# What the texts of the findings name of these.
LIMITS: dict[str, Any] = {
    "pearson_least": PEARSON_LEAST,
    "kl_most": KL_MOST,
    "steps": STEPS,
    "small_steps": SMALL_STEPS,
    "advantage_zero": ADVANTAGE_ZERO,
    "gradient_times": GRADIENT_TIMES,
    "gradient_before": GRADIENT_BEFORE,
    "entropy_fraction": ENTROPY_FRACTION,
}


Sign: TypeAlias = tuple[str, str]
"""What a rule has seen, with value, steps and limit; and the condition of `--stop-when` that holds there."""


@dataclass(frozen=True)
class NumberRule:
    """One thing that the numbers can show; its limit, causes and what to look at are texts of the finding.

    Args:
        find: looks at the steps up to now, and at whether the training is reduced.
        explains: codes of findings that follow from this one.
        may_be_chance: in a reduced training it is a note.
    """

    code: str
    find: Callable[[Sequence[StepMetrics], bool], Sign | None]
    explains: tuple[str, ...] = ()
    may_be_chance: bool = False


def judge(steps: Sequence[StepMetrics], *, small: bool) -> list[Finding]:
    """Return what the last step shows, with the steps before it."""
    findings: list[Finding] = []
    explained: set[str] = set()
    for rule in RULES:
        sign = None if rule.code in explained else rule.find(steps, small)
        if sign is None:
            continue
        what, condition = sign
        is_chance = small and rule.may_be_chance
        reduced = "the training is reduced: few, short responses; " if is_chance else ""
        severity = "note" if is_chance else "warning"
        findings.append(
            finding(rule.code, severity=severity, what=what, reduced=reduced, condition=condition, **LIMITS)
        )
        explained.update(rule.explains)
    return findings


def _value(step: StepMetrics, *names: str) -> float:
    """Return the first known of these metrics; NaN, for which no comparison holds, without one."""
    return next((value for name in names if not math.isnan(value := step["metrics"].get(name, math.nan))), math.nan)


def _in_a_row(steps: Sequence[StepMetrics], count: int, holds: Callable[[StepMetrics], bool]) -> str | None:
    """Return how the last steps are named, if something holds in all of them."""
    last = steps[-count:]
    if len(last) < count or not all(holds(step) for step in last):
        return None
    return f"steps {last[0]['step']} to {last[-1]['step']}"


def _zero_steps(small: bool) -> int:
    """Return for how many steps rewards have no differences, or what follows from them is 0.

    The number is the same for all of them, so that a finding comes no later than one that it explains.
    """
    return SMALL_STEPS if small else STEPS


def _find_mismatch(steps: Sequence[StepMetrics], _small: bool) -> Sign | None:
    step = steps[-1]
    text = "the rollout engine and the actor give the same tokens other probabilities: {} is {:.4g} at step {}, {}"
    pearson = _value(step, PEARSON)
    if not math.isnan(pearson):
        if pearson < PEARSON_LEAST and not _value(step, *K3_KL) < KL_LEAST:
            limit = f"expected {PEARSON_LEAST} or more"
            return text.format(PEARSON, pearson, step["step"], limit), f"{PEARSON} < {PEARSON_LEAST}"
        return None
    for name, most in DISTANCES.items():
        value = _value(step, name)
        if abs(value) > most:
            condition = f"{name} > {most} or {name} < -{most}" if value < 0 else f"{name} > {most}"
            return text.format(name, value, step["step"], f"expected at most {most}"), condition
    return None


def _find_cut_responses(steps: Sequence[StepMetrics], small: bool) -> Sign | None:
    named = _in_a_row(steps, STEPS, lambda step: _value(step, CLIPPED) >= 1 and _value(step, LENGTH) >= CUT_LEAST)
    if small or named is None:
        return None
    length = f"{LENGTH} is {_value(steps[-1], LENGTH):g} and {CLIPPED} is 1"
    return f"no response of {named} ends before the limit: {length}", f"{CLIPPED} >= 1 for {STEPS} steps"


def _find_equal_rewards(steps: Sequence[StepMetrics], small: bool) -> Sign | None:
    name = next((score for score in SCORES if not math.isnan(_value(steps[-1], f"{score}/min"))), SCORES[0])
    low, high = f"{name}/min", f"{name}/max"

    def is_equal(step: StepMetrics) -> bool:
        return math.isfinite(_value(step, low)) and _value(step, low) == _value(step, high)

    named = _in_a_row(steps, _zero_steps(small), is_equal)
    if named is None:
        return None
    value = _value(steps[-1], low)
    return (
        f"all rewards of a step are equal in {named}: {low} and {high} are {value:.4g}",
        f"{low} == {value!r} and {high} == {value!r}",
    )


def _find_zero_advantages(steps: Sequence[StepMetrics], small: bool) -> Sign | None:
    low, high = f"{ADVANTAGES}/min", f"{ADVANTAGES}/max"

    def is_zero(step: StepMetrics) -> bool:
        return max(abs(_value(step, low)), abs(_value(step, high))) <= ADVANTAGE_ZERO

    named = _in_a_row(steps, _zero_steps(small), is_zero)
    if named is None:
        return None
    return (
        f"all advantages are 0 in {named}: the rewards do not change the policy",
        f"{low} >= -{ADVANTAGE_ZERO} and {high} <= {ADVANTAGE_ZERO}",
    )


def _find_zero_gradient(steps: Sequence[StepMetrics], small: bool) -> Sign | None:
    named = _in_a_row(steps, _zero_steps(small), lambda step: _value(step, GRADIENT) == 0)
    # verl 0.4 logs three digits (utils/logger/aggregate_logger.py): its 0.000 may be a small gradient.
    if named is None or all(value == round(value, 3) for value in steps[-1]["metrics"].values()):
        return None
    return f"{GRADIENT} is 0 in {named}: the update changes nothing", f"{GRADIENT} == 0"


def _find_exploding_gradient(steps: Sequence[StepMetrics], _small: bool) -> Sign | None:
    value, number = steps[-1]["metrics"].get(GRADIENT, 0.0), steps[-1]["step"]
    if not math.isfinite(value):
        return f"{GRADIENT} is {value} at step {number}", f"nan({GRADIENT}) or inf({GRADIENT})"
    norms = (_value(step, GRADIENT) for step in steps[-1 - GRADIENT_BEFORE : -1])
    before = [norm for norm in norms if 0 < norm < math.inf]
    if len(before) < GRADIENT_BEFORE_LEAST:
        return None
    median = statistics.median(before)
    if value <= GRADIENT_TIMES * median:
        return None
    times = f"{value / median:.0f} times the median of the steps before it"
    return f"{GRADIENT} is {value:.4g} at step {number}, {times}", f"{GRADIENT} > {GRADIENT_TIMES * median:.4g}"


def _find_collapsed_entropy(steps: Sequence[StepMetrics], _small: bool) -> Sign | None:
    first = [value for step in steps[:STEPS] if math.isfinite(value := _value(step, *ENTROPIES))]
    if len(steps) < 2 * STEPS or not first or max(first) <= 0:
        return None
    limit = ENTROPY_FRACTION * max(first)
    named = _in_a_row(steps, STEPS, lambda step: _value(step, *ENTROPIES) < limit)
    if named is None:
        return None
    name = next(entropy for entropy in ENTROPIES if entropy in steps[-1]["metrics"])
    what = f"the policy is almost deterministic: {name} is below {limit:.3g} in {named}, from {max(first):.3g} at first"
    return what, f"{name} < {limit:.4g} for {STEPS} steps"


RULES = (
    NumberRule("train.rollout-mismatch", _find_mismatch),
    NumberRule("train.responses-cut", _find_cut_responses),
    NumberRule(
        "train.rewards-equal",
        _find_equal_rewards,
        explains=("train.advantages-zero", "train.gradient-zero"),
        may_be_chance=True,
    ),
    NumberRule("train.advantages-zero", _find_zero_advantages, explains=("train.gradient-zero",), may_be_chance=True),
    NumberRule("train.gradient-zero", _find_zero_gradient),
    NumberRule("train.gradient-explodes", _find_exploding_gradient),
    NumberRule("train.entropy-collapse", _find_collapsed_entropy),
)
