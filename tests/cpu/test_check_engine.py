"""Stages `engine` and `train` on real vLLM and a real training: what only they can know, and that fixes hold.

A set-up whose fix makes it the one that passed before is not run again: the ladder remembers it by its content.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from checked import WELL, Broken, Setup, copy_of, prove, warm_up
from raydebug.check.cache import Cache
from raydebug.check.stages import NAMES, PASSED, SKIPPED
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model

pytestmark = pytest.mark.timeout(1800)  # a training of two steps takes 150 s of two idle cores

EXTRA = "+actor_rollout_ref.rollout.engine_kwargs.vllm"
GOOD_REWARD = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str)\n"
)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Setup, Cache]]:
    """A set-up that has passed the whole ladder, and the memory of it."""
    warm_up()  # it changes this process's variables, and they are a part of what is remembered
    folder = tmp_path_factory.mktemp("run")
    build_model(folder / "tiny" / "model")
    build_dataset(folder / "tiny" / "data")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(folder / "state"))
        run = folder / "run"
        run.mkdir()
        setup = Setup(copy_of(folder / "tiny", run), environment)
        (run / "data" / "reward.py").write_text(GOOD_REWARD)
        (run / "patches.py").write_text("")
        setup.overrides["actor_rollout_ref.model.external_lib"] = "patches"
        environment.chdir(run)
        cache = Cache(folder / "memory")
        outcomes = setup.run_stages(*NAMES, cache=cache)
        assert [outcome.status for outcome in outcomes] == [PASSED] * len(NAMES), outcomes
        yield setup, cache


@pytest.fixture
def setup(passed: tuple[Setup, Cache], monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    """The set-up, put right again afterwards."""
    setup, _ = passed
    before = dict(setup.overrides)
    monkeypatch.setattr(setup, "environment", monkeypatch)
    yield setup
    setup.overrides = before
    put_right(setup)


def put_right(setup: Setup) -> None:
    """Write the user's files as they were."""
    (setup.folder / "data" / "reward.py").write_text(GOOD_REWARD)
    (setup.folder / "patches.py").write_text("")


def extra(name: str, value: str) -> object:
    """Give vLLM a setting of its own."""
    return lambda setup: setup.overrides.update({f"{EXTRA}.{name}": value})


def reward(body: str) -> object:
    """Score a model's answers in another way than the check's."""
    text = f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n    return 0.5\n"
    return lambda setup: (setup.folder / "data" / "reward.py").write_text(text)


PATCH = """
from verl.trainer.ppo import core_algos
def broken(*args, **kwargs):
    raise RuntimeError("the loss of my paper is not done")
core_algos.POLICY_LOSS_REGISTRY["vanilla"] = broken
"""

BROKEN = {
    "an option that vLLM does not have": Broken(
        "engine", "engine.settings", "unexpected keyword argument 'no_such_option'", "take .*no_such_option out",
        extra("no_such_option", "1"),
    ),
    "a cache type that vLLM does not have": Broken(
        "engine", "engine.settings", "cache_dtype: Input should be 'auto'", "take .*kv_cache_dtype out",
        extra("kv_cache_dtype", "fp7"),
    ),
    "a quantization that the model is not of": Broken(
        "engine", "engine.settings", "Cannot find the config file for gptq", "take .*quantization out",
        extra("quantization", "gptq"),
    ),
    "a block size that no backend has": Broken(
        "engine", "engine.start", "No common block size for 7", "take .*block_size out", extra("block_size", "7"),
    ),
    "heads of a size that the attention does not take": Broken(
        "engine", "engine.token", "Unsupported CPU attention configuration: head_dim=21",
        "take .*hf_overrides out|one by one",
        extra("hf_overrides", "{num_attention_heads:3}"), lambda s: s.overrides.pop(f"{EXTRA}.hf_overrides"),
    ),
    "a reward that fails on what a model says": Broken(
        "train", "train.failed", "ValueError: no answer in it.*reward.py:2", "--debugger post-mortem",
        reward("if 'The answer' not in solution_str: raise ValueError('no answer in it')"), put_right,
    ),
    "a reward that is no number for what a model says": Broken(
        "train", "train.not-a-number", "step 1 has no number for .*loss|grad_norm", "look at the rewards",
        reward("if 'The answer' not in solution_str: return float('nan')"), put_right,
    ),
    "a reward that ends its process": Broken(
        "train", "train.failed", "ActorDied|died|exit", "--debugger post-mortem",
        reward("import os; 'The answer' in solution_str or os._exit(3)"), put_right,
    ),
    "a patch that fails in the update": Broken(
        "train", "train.failed", "RuntimeError: the loss of my paper is not done.*patches.py:4",
        "--debugger post-mortem",
        lambda s: (s.folder / "patches.py").write_text(PATCH), put_right,
    ),
    "a learning rate that spoils the weights": Broken(
        "train", "train.not-a-number", "has no number for", "lower the rate",
        lambda s: s.overrides.update({"actor_rollout_ref.actor.optim.lr": "1e30"}),
        lambda s: s.overrides.pop("actor_rollout_ref.actor.optim.lr"),
    ),
}  # fmt: skip


def test_unchanged_is_skipped(setup: Setup, passed: tuple[Setup, Cache]) -> None:
    """Unchanged, every stage but env is skipped, and says when it passed; a changed file is checked again."""
    again = setup.run_stages(*NAMES, cache=passed[1])
    assert [outcome.status for outcome in again] == [PASSED, *[SKIPPED] * 4]
    assert all("nothing that it looked at has changed" in str(outcome.reason) for outcome in again[1:])
    file = setup.folder / "data" / "reward.py"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text(GOOD_REWARD.replace("len", "int"))  # of the same length
    os.utime(file, ns=times)
    shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)  # Python's own cache knows only times and lengths
    assert setup.run_stages("env", "data", cache=passed[1])[1].status not in WELL


@pytest.mark.parametrize("broken", BROKEN.values(), ids=[f"{b.stage}: {name}" for name, b in BROKEN.items()])
def test_broken(setup: Setup, passed: tuple[Setup, Cache], broken: Broken) -> None:
    """The stages below pass, the right one names the fault with its cause, and with the fix it passes."""
    prove(setup, broken, NAMES[: NAMES.index(broken.stage) + 1], passed[1])


def test_nothing_is_left(setup: Setup) -> None:
    """The clusters that stage `train` brought up are gone."""
    clusters = Path(os.environ["XDG_STATE_HOME"]) / "raydebug" / "clusters"
    assert list(clusters.glob("*/cluster.json")) == []
