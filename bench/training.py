"""The training that is measured: verl's own main_ppo (GRPO) of a tiny model, as a user would write it.

Nothing in the command is there for speed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model

RAYDEBUG = str(Path(sys.executable).parent / "raydebug")
COMMAND = [
    *("python", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo"),
    *("data.train_files=data/train.parquet", "data.val_files=data/test.parquet", "data.train_batch_size=4"),
    *("data.max_prompt_length=64", "data.max_response_length=32", "actor_rollout_ref.model.path=model"),
    *("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=2", "trainer.n_gpus_per_node=1"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"),
    *("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "trainer.total_epochs=1"),
    *("trainer.logger=[console]", "reward.custom_reward_function.path=data/reward.py"),
]


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder with model, data and reward, and a state folder that is nobody's."""
    folder = Path(tempfile.mkdtemp(prefix="rdb-", dir="/tmp"))  # short: Ray's sockets lie below it
    os.environ.update(XDG_STATE_HOME=str(folder / "state"), VERL_PLATFORM="cpu", RAY_AUTH_MODE="token")
    try:
        build_model(folder / "model")
        build_dataset(folder / "data")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def evict(place: Path) -> None:
    """Put a file, or the files below a folder, out of the page cache; what is dirty is written first."""
    for file in [place] if place.is_file() else place.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file():
                handle = os.open(file, os.O_RDONLY)
                try:
                    os.fsync(handle)
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(handle)


def run(argv: list[str], folder: Path) -> str:
    """Run a program and return what it printed; what it said is shown when it fails."""
    done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{argv} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
