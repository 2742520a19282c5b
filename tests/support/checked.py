"""What the tests of the check ladder share: a tiny training that passes, and the ladder over it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from raydebug.check.cache import Cache
from raydebug.check.probes import MARK
from raydebug.check.probes.__main__ import run_apart
from raydebug.check.stages import FAILED, PASSED, SKIPPED, Fixed, Outcome, apply_fixes, choose_stages, run_stages
from raydebug.check.target import Target, find_target
from raydebug.cluster.runner import LocalRunner

# All that a CPU and sixteen rows need, said by the command itself.
OVERRIDES = {
    "algorithm.adv_estimator": "grpo", "data.train_files": "data/train.parquet", "data.val_files": "data/test.parquet",
    "data.train_batch_size": "4", "data.max_prompt_length": "64", "data.max_response_length": "32",
    "data.dataloader_num_workers": "0", "actor_rollout_ref.model.path": "model",
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.model.use_remove_padding": "False", "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": "2", "actor_rollout_ref.rollout.tensor_model_parallel_size": "1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "4",
    "actor_rollout_ref.rollout.free_cache_engine": "False", "+actor_rollout_ref.rollout.enable_sleep_mode": "False",
    "actor_rollout_ref.actor.strategy": "fsdp2", "actor_rollout_ref.actor.ppo_mini_batch_size": "4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "4", "trainer.device": "cpu",
    "trainer.n_gpus_per_node": "1", "trainer.logger": "[console]",
    "reward.custom_reward_function.path": "data/reward.py",
}  # fmt: skip

# A stage that is skipped in a ladder that goes on has passed before, with everything that it reads as it is now.
WELL = (PASSED, SKIPPED)


class WarmRunner(LocalRunner):
    """This machine, its interpreter warm: a question is a fork of this process, with transformers and verl imported.

    Starting Python and importing them takes 4 s of a processor for each question, a hundred times. All else
    is as ever: a process of its own, its folder, its environment. Stage `env` imports nothing and gets a fresh Python.
    """

    def run_python(
        self,
        arguments: list[str],
        working_dir: Path,
        *,
        environ: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> str:
        """Answer in a fork where that saves imports."""
        request = json.loads(arguments[2])
        if request["question"] not in ("data", "model"):
            return super().run_python(arguments, working_dir, environ=environ, timeout_s=timeout_s)
        warm_up()
        before = Path.cwd(), dict(os.environ), list(sys.path)
        os.chdir(working_dir)
        os.environ.update(environ or {})
        sys.path[0] = ""
        try:
            return f"{MARK}{json.dumps(run_apart(request, limit_s=request['limit_s']), default=str)}\n"
        finally:
            os.chdir(before[0])
            os.environ.clear()
            os.environ.update(before[1])
            sys.path[:] = before[2]


@functools.cache
def warm_up() -> None:
    """Import what the questions about data and model import, as a cluster of flavour cpu has it."""
    os.environ |= {"VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    import hydra  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import transformers.models.auto.modeling_auto  # noqa: F401
    from transformers import AutoTokenizer  # noqa: F401
    from verl.utils.config import validate_config  # noqa: F401
    from verl.utils.reward_score import default_compute_score  # noqa: F401


@dataclass
class Setup:
    """A tiny training in a folder of its own, to be broken.

    Args:
        folder: holds model/ and data/.
        environment: sets variables of whoever asks.
    """

    folder: Path
    environment: pytest.MonkeyPatch
    overrides: dict[str, str] = field(default_factory=lambda: dict(OVERRIDES))
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def command(self) -> list[str]:
        """The training command."""
        return ["python", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in self.overrides.items())]

    def target(self) -> Target:
        """What is checked, as things are now."""
        return replace(find_target(self.command, self.folder, "default", None), runner=WarmRunner(sys.executable))

    def run_stages(self, *stages: str, cache: Cache | None = None) -> list[Outcome]:
        """Check it."""
        return run_stages(self.target(), choose_stages(stages), cache=cache)

    def close(self) -> None:
        """Free the ports that it holds."""
        for one in self.sockets:
            one.close()


@dataclass(frozen=True)
class Broken:
    """One way to break a set-up.

    Args:
        stage: that must name it.
        code: of its finding.
        says: words of what and why.
        fix: words of the fix.
        break_it: does it.
        mend_it: applies the fix by hand; None where the finding brings it along as settings or variables.
    """

    stage: str
    code: str
    says: str
    fix: str
    break_it: Callable[[Setup], object]
    mend_it: Callable[[Setup], object] | None = None


def prove(setup: Setup, broken: Broken, stages: Sequence[str], cache: Cache | None = None) -> None:
    """Break a set-up: the stages below pass, the right one names the fault and its cause; with the fix it passes."""
    broken.break_it(setup)
    *below, last = setup.run_stages(*stages, cache=cache)
    assert all(outcome.status in WELL for outcome in below), below
    assert last.status == FAILED, last
    found = [finding for finding in last.findings if finding.code == broken.code]
    assert found, last.findings
    first = found[0]
    assert first.severity == "error"
    assert re.search(broken.says, f"{first.what}\n{first.why}", re.DOTALL), first
    assert re.search(broken.fix, first.fix), first
    if broken.mend_it is None:
        fixed = apply_fixes(Fixed(setup.target()), last.findings)
        assert fixed.changes, "the finding has no fix that can be applied"
        after = run_stages(fixed.target, choose_stages(stages), cache=cache)
    else:
        broken.mend_it(setup)
        after = setup.run_stages(*stages, cache=cache)
    assert all(outcome.status in WELL for outcome in after), after


@contextlib.contextmanager
def set_up(tiny: Path, folder: Path, environment: pytest.MonkeyPatch, **overrides: str) -> Iterator[Setup]:
    """Give a set-up that passes, with the current folder in it."""
    environment.setenv("XDG_STATE_HOME", str(folder / "state"))
    (folder / "run").mkdir()
    made = Setup(copy_of(tiny, folder / "run"), environment)
    made.overrides |= overrides
    environment.chdir(folder / "run")
    try:
        yield made
    finally:
        made.close()


def copy_of(tiny: Path, folder: Path) -> Path:
    """Copy the tiny model and data, so that they can be broken."""
    for part in ("model", "data"):
        shutil.copytree(tiny / part, folder / part)
    return folder
