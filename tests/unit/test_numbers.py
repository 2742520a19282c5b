"""The numbers check: what the metrics of verl's steps show, in the record of a run and in `check train`."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from raydebug.check import train
from raydebug.check.target import Target
from raydebug.cluster.dashboard import JobInfo
from raydebug.cluster.runner import LocalRunner
from raydebug.cluster.state import Cluster
from raydebug.jobs.recorder import Recorder
from raydebug.protocol.tripwires import parse
from raydebug.runs.folder import load_run
from raydebug.trainers.registry import TRAINERS, recognise
from raydebug.trainers.trainer import StepMetrics
from raydebug.trainers.verl import numbers
from raydebug.trainers.verl.numbers import judge
from raydebug.trainers.verl.trainer import VERL

PEARSON, PROBS_DIFF = "training/rollout_actor_probs_pearson_corr", "training/rollout_probs_diff_mean"
LOW, HIGH = "critic/score/min", "critic/score/max"
ADVANTAGES = ("critic/advantages/min", "critic/advantages/max")
CLIPPED, LENGTH, GRADIENT = "response_length/clip_ratio", "response_length/mean", "actor/grad_norm"

# Two steps of the demo (`nox -s demo`, verl 0.9.1 on a CPU), as its log has them.
DEMO = """\
(TaskRunnerV1 pid=26051) step:1 - actor/entropy:5.9375 - training/rollout_probs_diff_valid:1.0\
 - training/rollout_probs_diff_max:0.00018564797937870026 - training/rollout_probs_diff_mean:9.092994150705636e-05\
 - training/rollout_actor_probs_pearson_corr:0.997240424156189 - rollout_corr/kl:0.03346778452396393\
 - rollout_corr/k3_kl:0.000637381337583065 - actor/pg_loss:-0.3210854232311249 - actor/grad_norm:0.38511398434638977\
 - critic/score/mean:0.32108572125434875 - critic/score/max:0.4000000059604645 - critic/score/min:0.2666666805744171\
 - critic/rewards/max:0.4000000059604645 - critic/rewards/min:0.2666666805744171\
 - critic/advantages/max:0.39999961853027344 - critic/advantages/min:0.2666664123535156 - response_length/mean:32.0\
 - response_length/clip_ratio:1.0 - num_turns/min:np.int32(2) - timing_s/step:21.445560477000072
(TaskRunnerV1 pid=26051) step:2 - actor/entropy:5.9375 - training/rollout_probs_diff_valid:1.0\
 - training/rollout_probs_diff_max:0.00017658714205026627 - training/rollout_probs_diff_mean:8.796378097031265e-05\
 - training/rollout_actor_probs_pearson_corr:0.9970386028289795 - rollout_corr/kl:0.03272777795791626\
 - rollout_corr/k3_kl:0.0005950611084699631 - actor/pg_loss:-0.27271220088005066 - actor/grad_norm:0.3387555181980133\
 - critic/score/mean:0.27271243929862976 - critic/score/max:0.3448275923728943 - critic/score/min:0.16949152946472168\
 - critic/rewards/max:0.3448275923728943 - critic/rewards/min:0.16949152946472168\
 - critic/advantages/max:0.344827264547348 - critic/advantages/min:0.16949136555194855 - response_length/mean:32.0\
 - response_length/clip_ratio:1.0 - num_turns/min:np.int32(2) - timing_s/step:2.4326716949999536
"""
HEALTHY = {
    "actor/entropy": 0.4, PEARSON: 0.997, "rollout_corr/kl": 0.002, "rollout_corr/k3_kl": 0.002, GRADIENT: 0.31,
    LOW: 0.0, HIGH: 1.0, ADVANTAGES[0]: -0.7, ADVANTAGES[1]: 0.7, LENGTH: 211.5, CLIPPED: 0.25, "timing_s/step": 2.4321,
}  # fmt: skip


def series(*changes: dict[str, float]) -> list[StepMetrics]:
    """Return steps from 1 on: healthy ones, with these metrics in their place."""
    return [{"step": number, "metrics": {**HEALTHY, **one}} for number, one in enumerate(changes, start=1)]


def codes(steps: Sequence[StepMetrics], *, small: bool = False) -> list[str]:
    return [finding.code for finding in judge(steps, small=small)]


def condition_of(fix: str) -> str:
    assert fix.startswith("raydebug run --stop-when '"), fix
    return fix.split("'")[1]


DISAGREE = "the rollout engine and the actor give the same tokens other probabilities:"
EQUAL = {LOW: 0.0, HIGH: 0.0, ADVANTAGES[0]: 0.0, ADVANTAGES[1]: 0.0, GRADIENT: 0.0}
CUT = {LENGTH: 512.0, CLIPPED: 1.0}
SHOWN: dict[str, tuple[list[dict[str, float]], str, str, str]] = {
    "mismatch": (
        [{}, {PEARSON: 0.013}], "train.rollout-mismatch",
        f"{DISAGREE} {PEARSON} is 0.013 at step 2, expected 0.98 or more",
        f"{PEARSON} < 0.98",
    ),
    "cut": (
        [CUT] * 3, "train.responses-cut",
        f"no response of steps 1 to 3 ends before the limit: {LENGTH} is 512 and {CLIPPED} is 1",
        "response_length/clip_ratio >= 1 for 3 steps",
    ),
    "rewards": (
        [{}, *[{LOW: 0.1, HIGH: 0.1}] * 3], "train.rewards-equal",
        "all rewards of a step are equal in steps 2 to 4: critic/score/min and critic/score/max are 0.1",
        "critic/score/min == 0.1 and critic/score/max == 0.1",
    ),
    "advantages": (
        [dict.fromkeys(ADVANTAGES, -1e-9)] * 3, "train.advantages-zero",
        "all advantages are 0 in steps 1 to 3: the rewards do not change the policy",
        "critic/advantages/min >= -1e-06 and critic/advantages/max <= 1e-06",
    ),
    "gradient": (
        [{}, *[{GRADIENT: 0.0}] * 3], "train.gradient-zero",
        "actor/grad_norm is 0 in steps 2 to 4: the update changes nothing", "actor/grad_norm == 0",
    ),
    "nan gradient": (
        [{}, {GRADIENT: math.nan}], "train.gradient-explodes", "actor/grad_norm is nan at step 2",
        "nan(actor/grad_norm) or inf(actor/grad_norm)",
    ),
    "infinite gradient": (
        [{}, {GRADIENT: math.inf}], "train.gradient-explodes", "actor/grad_norm is inf at step 2",
        "nan(actor/grad_norm) or inf(actor/grad_norm)",
    ),
    "large gradient": (
        [{GRADIENT: 0.5}, {GRADIENT: 0.4}, {GRADIENT: 0.6}, {GRADIENT: 80.0}], "train.gradient-explodes",
        "actor/grad_norm is 80 at step 4, 160 times the median of the steps before it", "actor/grad_norm > 50",
    ),
    "entropy": (
        [{}, {}, {}, *[{"actor/entropy": 0.03}] * 3], "train.entropy-collapse",
        "the policy is almost deterministic: actor/entropy is below 0.04 in steps 4 to 6, from 0.4 at first",
        "actor/entropy < 0.04 for 3 steps",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "code", "what", "condition"), SHOWN.values(), ids=SHOWN)
def test_what_is_shown(changes: list[dict[str, float]], code: str, what: str, condition: str) -> None:
    """Each rule gives one finding, at the step that completes its sign, with a condition that holds at that step."""
    steps = series(*changes)
    (found,) = judge(steps, small=False)
    assert (found.code, found.severity, found.what) == (code, "warning", what)
    assert re.match(r"limit: .*\d.*\. Likely causes, in order: ", found.why)
    assert condition_of(found.fix) == condition
    assert parse(condition).holds(steps[-1]["metrics"])
    assert judge(steps[:-1], small=False) == []
    assert judge([*steps, *series({})], small=False) == [], "the step after it is healthy"


def test_every_rule_is_tested() -> None:
    """The table above has each rule."""
    assert {rule.code for rule in numbers.RULES} == {code for _, code, _, _ in SHOWN.values()}


BOUNDS: dict[str, tuple[list[dict[str, float]], list[str]]] = {
    "correlation at its limit": ([{PEARSON: 0.98}], []),
    "correlation below its limit": ([{PEARSON: 0.9799}], ["train.rollout-mismatch"]),
    "certain policy without variance": ([{PEARSON: 0.1, "rollout_corr/k3_kl": 0.00099}], []),
    "divergence that is not tiny": ([{PEARSON: 0.1, "rollout_corr/k3_kl": 0.001}], ["train.rollout-mismatch"]),
    "correlation without a divergence": ([{PEARSON: 0.1, "rollout_corr/k3_kl": math.nan}], ["train.rollout-mismatch"]),
    "correlation that is good counts before the others": ([{PROBS_DIFF: 0.5, "rollout_corr/kl": 3.0}], []),
    "correlation of nothing": ([{PEARSON: math.nan}], []),
    "two steps with equal rewards": ([{LOW: 1.0, HIGH: 1.0}] * 2, []),
    "rewards that are almost equal": ([{LOW: 1.0, HIGH: 1.000001}] * 3, []),
    "rewards that are nan": ([{LOW: math.nan, HIGH: math.nan}] * 3, []),
    "rewards that are infinite": ([{LOW: math.inf, HIGH: math.inf}] * 3, []),
    "equal rewards with a step between": ([EQUAL, EQUAL, {}, EQUAL], []),
    "equal rewards of different values": ([{LOW: v, HIGH: v} for v in (0.0, 1.0, 0.5)], ["train.rewards-equal"]),
    "equal rewards explain the rest": ([EQUAL] * 3, ["train.rewards-equal"]),
    "zero advantages explain the gradient": ([{**EQUAL, HIGH: 1.0}] * 3, ["train.advantages-zero"]),
    "small advantages": ([dict.fromkeys(ADVANTAGES, 2e-6)] * 3, []),
    "two gradients of zero": ([{GRADIENT: 0.0}] * 2, []),
    "equal rewards of two steps explain the rest": ([EQUAL] * 2, []),
    "small gradients": ([{GRADIENT: 1e-12}] * 3, []),
    "one response that ends": ([{**CUT, CLIPPED: 0.998}] * 3, []),
    "short answers of one length": ([{**CUT, LENGTH: 15.0}] * 3, []),
    "responses as short as cut ones can be": ([{**CUT, LENGTH: 16.0}] * 3, ["train.responses-cut"]),
    "gradient at its limit": ([{GRADIENT: 0.5}] * 3 + [{GRADIENT: 50.0}], []),
    "too few gradients before": ([{GRADIENT: 0.5}] * 2 + [{GRADIENT: 5e9}], []),
    "gradients of zero do not count before": ([{GRADIENT: v} for v in (0.5, 0.0, 0.5, 0.0, 500.0)], []),
    "entropy of two steps": ([{}, {}, {}, {}, *[{"actor/entropy": 0.01}] * 2], []),
    "entropy at its limit": ([{}, {}, {}, *[{"actor/entropy": 0.1 * 0.4}] * 3], []),
    "entropy that was low from the start": ([{"actor/entropy": 0.01}] * 6, []),
}


@pytest.mark.parametrize(("changes", "expected"), BOUNDS.values(), ids=BOUNDS)
def test_bounds(changes: list[dict[str, float]], expected: list[str]) -> None:
    """Values at and beyond each limit, values that are no numbers, and findings that explain others."""
    assert codes(series(*changes)) == expected


OTHER: dict[str, tuple[dict[str, float], str]] = {
    "0.4.1": ({PROBS_DIFF: 0.0101}, f"{PROBS_DIFF} > 0.01"),
    "0.6.0": ({"mismatch/mismatch_kl": 0.11}, "mismatch/mismatch_kl > 0.1"),
    "0.9.1 in bypass mode": ({"rollout_corr/kl": 0.11}, "rollout_corr/kl > 0.1"),
    "estimate that does not cancel": ({"rollout_corr/k3_kl": 0.11}, "rollout_corr/k3_kl > 0.1"),
    "negative": ({"rollout_corr/kl": -0.11}, "rollout_corr/kl > 0.1 or rollout_corr/kl < -0.1"),
}


@pytest.mark.parametrize(("metrics", "condition"), OTHER.values(), ids=OTHER)
def test_mismatch_of_other_versions(metrics: dict[str, float], condition: str) -> None:
    """Without the correlation, the distances that other versions and modes log are compared with verl's own limits."""
    (found,) = judge([{"step": 7, "metrics": metrics}], small=False)
    ((name, value),) = metrics.items()
    assert found.what.endswith(f"{name} is {value:.4g} at step 7, expected at most {numbers.DISTANCES[name]}")
    assert condition_of(found.fix) == condition
    assert parse(condition).holds(metrics)
    at_limit = math.copysign(numbers.DISTANCES[name], value)
    assert judge([{"step": 7, "metrics": {name: at_limit}}], small=False) == []


def test_names_of_other_versions() -> None:
    """verl 0.4.0 logs the entropy under another name; without scores the rewards count."""
    entropies = [0.4, 0.4, 0.4, 0.01, 0.01, 0.01]
    old: list[StepMetrics] = [{"step": n, "metrics": {"actor/entropy_loss": e}} for n, e in enumerate(entropies)]
    (found,) = judge(old, small=False)
    assert condition_of(found.fix) == "actor/entropy_loss < 0.04 for 3 steps"
    equal = {"critic/rewards/min": -1.0, "critic/rewards/max": -1.0}
    rewards: list[StepMetrics] = [{"step": n, "metrics": dict(equal)} for n in (1, 2, 3)]
    (found,) = judge(rewards, small=False)
    assert condition_of(found.fix) == "critic/rewards/min == -1.0 and critic/rewards/max == -1.0"


def test_rounded_gradients() -> None:
    """verl 0.4 logs three digits: its gradient of 0.000 is no zero."""
    rounded = {name: round(value, 3) for name, value in HEALTHY.items()}
    steps: list[StepMetrics] = [{"step": n, "metrics": {**rounded, GRADIENT: 0.0}} for n in (1, 2, 3)]
    assert codes(steps) == []


def test_reduced_training() -> None:
    """A profile leaves few, short responses: equal rewards of both steps are a note, and their length says nothing."""
    steps = series(*[{**EQUAL, **CUT}] * 3)
    assert codes(steps[:1], small=True) == []
    (found,) = judge(steps[:2], small=True)
    assert (found.code, found.severity) == ("train.rewards-equal", "note")
    assert ". Likely causes, in order: the training is reduced: few, short responses; the reward " in found.why
    assert codes(steps, small=True) == ["train.rewards-equal"]
    assert codes(steps) == ["train.responses-cut", "train.rewards-equal"]
    (found,) = judge(series({PEARSON: 0.5}), small=True)
    assert found.severity == "warning"


def test_metrics_that_are_missing_or_odd() -> None:
    """Steps without metrics, and every mixture of odd values, give findings or none, but no exception."""
    assert codes([{"step": 0, "metrics": {"val/test_score": 0.1}}] * 8) == []
    odd = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308)
    for one, other in itertools.product(odd, odd):
        steps: list[StepMetrics] = [
            {"step": n, "metrics": dict.fromkeys(HEALTHY, one if n % 4 else other)} for n in range(12)
        ]
        for small in (True, False):
            for end in range(1, len(steps) + 1):
                for finding in judge(steps[:end], small=small):
                    parse(condition_of(finding.fix))


def test_metrics_are_recorded() -> None:
    """The record of a run keeps every metric that a rule reads; a trainer without rules finds nothing."""
    ends = [f"{name}/{end}" for name in (*numbers.SCORES, numbers.ADVANTAGES) for end in ("min", "max")]
    read = {numbers.PEARSON, *numbers.DISTANCES, *numbers.K3_KL, *ends, numbers.CLIPPED, numbers.LENGTH,
            numbers.GRADIENT, *numbers.ENTROPIES}  # fmt: skip
    assert read <= VERL.log.metrics
    steps = series({PEARSON: 0.0})
    assert [bool(trainer.judge_numbers(steps, small=False)) for trainer in TRAINERS] == [True, False, False]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Cluster("c", "", "compose", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0)


def record(cluster: Cluster, **variables: str) -> Recorder:
    about = {"submission_id": "raydebug-1", "start_time": time.time() * 1000, "runtime_env": {"env_vars": variables}}
    return Recorder(cluster, cast("JobInfo", about), ["python"])


@pytest.mark.parametrize("variables", [{"RAYDEBUG_PROFILE": "debug"}, {}], ids=["debug", "full size"])
def test_demo_is_healthy(cluster: Cluster, variables: dict[str, str]) -> None:
    """The steps of the healthy demo give no finding in a run of any size, nor in `check train`."""
    made = record(cluster, **variables)
    assert made.take_log(DEMO) == []
    made.end("SUCCEEDED", 0, None)
    run = load_run()
    assert ([step["step"] for step in run.steps], run.findings) == ([1, 2], [])
    assert train.judge(0, DEMO, target(), run) == []


@pytest.mark.parametrize(
    ("variables", "severity"),
    [({"RAYDEBUG_PROFILE": "debug"}, "note"), ({"RAYDEBUG_TINY": "model"}, "note"), ({}, None),
     ({"RAYDEBUG_PROFILE": "full"}, None)],
    ids=["debug", "tiny", "no profile", "full"],
)  # fmt: skip
def test_record_of_a_run(cluster: Cluster, variables: dict[str, str], severity: str | None) -> None:
    """Each finding comes once, at the step that shows it, and is in the record; the run's size decides about notes."""
    made = record(cluster, **variables)
    equal = " - critic/score/max:0.0 - critic/score/min:0.0"
    first, second = (f"step:{n} - {PEARSON}:0.25{equal} - timing_s/step:4.51234\n" for n in (1, 2))
    (found,) = made.take_log(first + first)
    assert (found.code, found.severity) == ("train.rollout-mismatch", "warning")
    assert [one.severity for one in made.take_log(second + first)] == [severity] * (severity is not None)
    made.end("SUCCEEDED", 0, None)
    kept = load_run().findings
    assert [one["code"] for one in kept] == list(made.numbers)
    assert kept[0] == {**found.as_json(), "at_s": kept[0]["at_s"]}


def target() -> Target:
    argv = ["python", "-m", "verl.trainer.main_ppo"]
    return Target(tuple(argv), recognise(argv), Path(), LocalRunner("python"), {}, {})


def test_check_train(cluster: Cluster) -> None:
    """`check train` has the findings that its run has recorded; numbers that are none come before them."""
    line = f"step:{{}} - critic/score/max:0.0 - critic/score/min:0.0 - {PEARSON}:{{}} - timing_s/step:1.2345\n"
    log = "job raydebug-1: python\n" + line.format(1, 0.5) + line.format(2, 0.25)
    made = record(cluster, RAYDEBUG_PROFILE="debug")
    made.take_log(log)
    made.end("SUCCEEDED", 0, None)
    run = train.recorded_run(log)
    more = replace(run, findings=[{"code": "run.hangs", "what": "x"}, *run.findings])
    assert train.judge(0, log, target(), more) == [*made.numbers.values()]
    assert [one.severity for one in made.numbers.values()] == ["warning", "note"]
    log += "step:3 - actor/grad_norm:nan\n"
    assert [one.code for one in train.judge(0, log, target(), run)] == ["train.not-a-number"]


def test_a_metric_that_is_no_number() -> None:
    """A value with more than one point is no metric, and breaks no reading of a line."""
    assert VERL.step_of("step:3 - host:10.0.0.5") is None
    read = VERL.step_of("step:3 - host:10.0.0.5 - actor/lr:1e-06 - actor/loss:-.5 - x:np.float64(2.)")
    assert read == {"step": 3, "metrics": {"actor/lr": 1e-06, "actor/loss": -0.5, "x": 2.0}}
