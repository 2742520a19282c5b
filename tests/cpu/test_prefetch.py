"""`raydebug check --prefetch` on the real config of a real trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raydebug.tiny.model import build_model

RAYDEBUG = Path(sys.executable).parent / "raydebug"


@pytest.mark.timeout(180)
def test_reads_what_verl_will_read(tmp_path: Path) -> None:
    """The model and the data of a verl command are found by verl's own config, and read."""
    model = build_model(tmp_path / "model").path
    (tmp_path / "train.parquet").write_bytes(b"x" * 1000)
    command = ["python", "-m", "verl.trainer.main_ppo", f"actor_rollout_ref.model.path={model}",
               "data.train_files=train.parquet", "actor_rollout_ref.rollout.name=vllm"]  # fmt: skip
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "VERL_PLATFORM": "cpu"}

    def prefetch(*more: str) -> subprocess.CompletedProcess[str]:
        argv = [str(RAYDEBUG), "check", "--prefetch", "--json", "--", *command, *more]
        return subprocess.run(argv, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120, check=False)  # fmt: skip

    done = prefetch()
    assert done.returncode == 0, done.stderr
    names = [Path(one["path"]).name for one in json.loads(done.stdout)["files"]]
    assert names[-1] == "train.parquet"
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(names)
    assert all(file["read_bytes"] == file["size_bytes"] for file in json.loads(done.stdout)["files"])
    typo = prefetch("data.no_such_key=1")
    assert typo.returncode == 2
    assert "no_such_key" in json.loads(typo.stdout)["error"]["cause"]
