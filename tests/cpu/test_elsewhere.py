"""`check --elsewhere`: the scripts of a repository are checked where neither their data nor a GPU is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / ".github" / "actions" / "check" / "check-scripts"
RIGHT = """\
python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=a.parquet data.val_files=b.parquet \\
  data.train_batch_size=16 actor_rollout_ref.model.path=Qwen/Qwen2-0.5B actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=8 trainer.nnodes=2
"""


@pytest.mark.timeout(300)
def test_scripts(tmp_path: Path) -> None:
    """A script for 16 GPUs passes on this CPU; one whose batch sizes contradict each other fails."""
    (tmp_path / "right.sh").write_text(RIGHT)
    (tmp_path / "wrong.sh").write_text(RIGHT.replace("ppo_mini_batch_size=16", "ppo_mini_batch_size=17"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path)}
    for name, code in (("right.sh", 0), ("wrong.sh", 1)):
        done = subprocess.run([PROGRAM, name], cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
    assert "ppo_mini_batch_size=17 is larger than data.train_batch_size=16" in done.stdout
