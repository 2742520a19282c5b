"""Reading ahead: what a command reads is read into memory, and never more than there is room for."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from raydebug.check.probes.prefetch import files_of, read_ahead, room_bytes
from raydebug.trainers.config import TrainingConfig
from raydebug.trainers.verl.checks import PpoChecks
from raydebug.trainers.verl.trainer import VERL


def test_what_is_read(tmp_path: Path) -> None:
    """Files are read whole; what does not fit is left, and what comes after it may still fit."""
    sizes = {"large": 300_000, "small": 4096, "empty": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    rows = read_ahead([tmp_path / name for name in sizes], room=10_000)
    read = [(Path(row["path"]).name, row["size_bytes"], row["read_bytes"]) for row in rows]
    assert read == [("large", 300_000, 0), ("small", 4096, 4096), ("empty", 0, 0)]
    with pytest.raises(FileNotFoundError):
        read_ahead([tmp_path / "none"], room=1)


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({}, 4 << 30),
        ({"memory.max": "max", "memory.current": "1"}, 4 << 30),
        ({"memory.max": str(6 << 30), "memory.current": str(4 << 30)}, 1 << 30),
        ({"memory.max": str(1 << 30), "memory.current": str(2 << 30)}, 0),
    ],
)
def test_room(tmp_path: Path, files: dict[str, str], room: int) -> None:
    """Half of what is available may be taken: of the machine, or of the container where that has less."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {8 << 20} kB\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert room_bytes(tmp_path / "meminfo", tmp_path) == room


def test_real_machine() -> None:
    """This machine has room, and less than it has memory."""
    assert 0 < room_bytes() < os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def model(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x" * 10)
    return folder


def config(**more: object) -> dict[str, object]:
    return {"data": {}, "actor_rollout_ref": {"model": {"path": None}}, "algorithm": {"adv_estimator": "grpo"}, **more}


def read_by(named: dict[str, object]) -> list[Path]:
    checks = PpoChecks(VERL)
    return files_of(checks.files_read(TrainingConfig(named, checks.keys)))


def test_files_of_a_command(tmp_path: Path) -> None:
    """A model's shards of the first format, its small files, and the data: what exists, once, in this order."""
    folder = model(tmp_path / "m", "config.json", "a.safetensors", "b.safetensors", "pytorch_model.bin", "README.md")
    train, val = tmp_path / "train.parquet", tmp_path / "val.parquet"
    train.write_bytes(b"x")
    named = config(
        data={"train_files": [str(train), str(train), str(tmp_path / "none")], "val_files": str(val)},
        actor_rollout_ref={"model": {"path": str(folder)}},
    )
    assert [path.name for path in read_by(named)] == ["config.json", "a.safetensors", "b.safetensors", "train.parquet"]


@pytest.mark.parametrize(("estimator", "read"), [("grpo", False), ("gae", True)])
def test_critic_only_where_there_is_one(tmp_path: Path, estimator: str, read: bool) -> None:
    """A critic's model is read where the command trains one."""
    critic = model(tmp_path / "c", "config.json", "pytorch_model-1.bin")
    named = config(critic={"model": {"path": str(critic)}, "enable": None}, algorithm={"adv_estimator": estimator})
    assert bool(read_by(named)) is read


def test_paths_that_are_none(tmp_path: Path) -> None:
    """A model that is not here, a folder without weights and a parquet that is a folder give nothing to read."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.parquet").mkdir()
    for path in (str(tmp_path / "none"), str(tmp_path / "empty"), "", "no/such-model-of-the-hub", None, 7):
        named = config(data={"train_files": str(tmp_path / "x.parquet")}, actor_rollout_ref={"model": {"path": path}})
        assert read_by(named) == []
