"""`raydebug try` as a user has it: a reward that fails in training only, found at its frame, mended, tried again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model

ARGV = ["try", "--", "bash", "train.sh"]
RAYDEBUG = str(Path(sys.executable).parent / "raydebug")
FAILING = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if "The answer" not in solution_str:  # the check answers with these words; the model does not
        raise ValueError("no answer in it")
    return 1.0
"""
# Exports, a continued line and a pipe, as the scripts of papers have them; CPU needs no more than the variable.
SCRIPT = """\
#!/bin/bash
export VERL_PLATFORM=cpu
ACTOR=actor_rollout_ref.actor
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=data/train.parquet data.val_files=data/test.parquet \\
    data.train_batch_size=4 data.max_prompt_length=64 data.max_response_length=32 \\
    actor_rollout_ref.model.path=model actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=2 \\
    $ACTOR.ppo_mini_batch_size=4 $ACTOR.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=1 \\
    reward.custom_reward_function.path=data/reward.py "$@" 2>&1 | tee train.log
exit ${PIPESTATUS[0]}
"""
PLAIN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """A state folder of its own: no cluster and no memory of the user's; short, for Ray's sockets lie below it."""
    folder = tempfile.mkdtemp(prefix="rdt-", dir="/tmp")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYDEBUG_"))}
    yield {**clean, "XDG_STATE_HOME": folder, "TERM": "xterm", "NO_COLOR": "1"}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a tiny model, tiny data and the user's own script."""
    build_model(tmp_path / "model")
    build_dataset(tmp_path / "data")
    (tmp_path / "train.sh").write_text(SCRIPT)
    return tmp_path


@pytest.mark.timeout(600)  # a training up to its first rewards, with a cluster of its own
def test_crash_waits_at_its_frame(project: Path, environment: dict[str, str]) -> None:
    """A reward that fails on what the model says passes the checks; at a terminal its crash waits to be looked at."""
    (project / "data" / "reward.py").write_text(FAILING)
    person = pexpect.spawn(RAYDEBUG, ARGV, env=environment, cwd=str(project), encoding="utf-8", timeout=300)
    with contextlib.closing(person):
        person.expect(r"model\s+passed")
        person.expect(r"paused \d+ .*reward.py:3 compute_score .*ValueError: no answer in it")
        person.expect(r"next: raydebug attach (\d+)")
        assert person.match is not None
        look = [RAYDEBUG, "attach", person.match[1], "-x", "p len(solution_str) > 0"]
        seen = subprocess.run(look, env=environment, cwd=project, capture_output=True, text=True, timeout=60)
        assert seen.stdout.splitlines() == ["True"], seen.stderr
        person.sendintr()  # enough: the other answers wait for the same reason
        person.expect("stop the job")
        person.sendline("y")
        person.expect("tried: interrupted")
        person.expect(pexpect.EOF)
        person.wait()
        assert person.exitstatus == 130


@pytest.mark.timeout(900)  # two trainings, the second of two steps
def test_mended_and_tried_again(project: Path, environment: dict[str, str]) -> None:
    """Without a terminal the crash fails the try by its name; mended, only what changed is checked; it ends well."""

    def attempt(reward: str) -> tuple[int, str]:
        (project / "data" / "reward.py").write_text(reward)
        done = subprocess.run([RAYDEBUG, *ARGV], env=environment, cwd=project, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=400)  # fmt: skip
        return done.returncode, PLAIN.sub("", done.stderr)

    code, said = attempt(FAILING)
    assert code == 1, said
    words = r"^ValueError: no answer in it\n  raised by .*, at \S*reward.py:3$"
    assert re.search(words, said, re.MULTILINE), said
    assert "the small run failed with code 1" in said
    assert "next: raydebug try --debugger post-mortem -- bash train.sh" in said
    code, said = attempt(FAILING.replace('raise ValueError("no answer in it")', "return 0.0"))
    assert code == 0, said
    assert re.search(r"^data    passed", said, re.MULTILINE), said
    assert re.search(r"^model   skipped  it passed .* ago", said, re.MULTILINE), said
    assert "tried: the checks passed, the small run ended well" in said
    assert "next: raydebug check -- bash train.sh" in said
