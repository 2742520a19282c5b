"""Reading ahead: what is in the page cache is known, what is not is read, and never more than there is room for."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from raydebug.cli import check
from raydebug.prefetch import caches, files_of, prefetch, resident_bytes, room_bytes
from raydebug.trainers.config import TrainingConfig
from raydebug.trainers.verl.checks import PpoChecks

MIB = 2**20


def cold_file(path: Path, size: int) -> Path:
    """Write a file, and ask the kernel to forget it."""
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.fixture
def disk() -> Path:
    """A folder that is on a disk: a tmpfs is always in memory."""
    return Path(__file__).resolve().parent


@pytest.fixture
def shard(disk: Path):
    path = disk / f".warm-{os.getpid()}.bin"
    try:
        cold_file(path, 16 * MIB + 5)
        if resident_bytes(path):
            pytest.skip("the kernel keeps files of this folder in memory whatever it is asked")
        yield path
    finally:
        path.unlink(missing_ok=True)


def test_cold_then_warm(shard: Path) -> None:
    """A cold file is read once, whole; the second time nothing is to be done."""
    told: list[int] = []
    (first,) = prefetch([shard], room=10**9, on_read=told.append)
    assert (first.there_bytes, first.read_bytes, sum(told)) == (0, 16 * MIB + 5, 16 * MIB + 5)
    assert resident_bytes(shard) == 16 * MIB + 5
    (second,) = prefetch([shard], room=10**9, on_read=told.append)
    assert (second.there_bytes, second.read_bytes) == (16 * MIB + 5, 0)
    assert sum(told) == 16 * MIB + 5


def test_no_room(shard: Path) -> None:
    """What does not fit is left, and what comes after it may still fit."""
    small = cold_file(shard.with_suffix(".small"), 4096)
    try:
        left, fits = prefetch([shard, small], room=MIB)
    finally:
        small.unlink()
    assert left.read_bytes == 0
    assert fits.size_bytes == fits.there_bytes + fits.read_bytes


def test_empty_and_missing(tmp_path: Path) -> None:
    """An empty file needs nothing; a missing one is an error."""
    (tmp_path / "empty").write_bytes(b"")
    assert resident_bytes(tmp_path / "empty") == 0
    with pytest.raises(FileNotFoundError):
        prefetch([tmp_path / "none"], room=1)


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
    checks = PpoChecks()
    return files_of(checks.files_read(TrainingConfig(named, checks.keys)))


def test_files_of_a_command(tmp_path: Path) -> None:
    """A model's shards of the first format, its small files, and the data: what exists, once, in this order."""
    one = model(tmp_path / "m", "config.json", "a.safetensors", "b.safetensors", "pytorch_model.bin", "README.md")
    train, val = tmp_path / "train.parquet", tmp_path / "val.parquet"
    train.write_bytes(b"x")
    named = config(
        data={"train_files": [str(train), str(train), str(tmp_path / "none")], "val_files": str(val)},
        actor_rollout_ref={"model": {"path": str(one)}},
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


@pytest.mark.parametrize(
    ("there", "says"),
    [(5, "nothing was read: no room in half of the free memory\n"), (10, "all of it was in memory already\n")],
)
def test_nothing_was_read(there: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing was read, it is said whether that is for want of room."""
    files = [{"path": "a", "size_bytes": 10, "there_bytes": there, "read_bytes": 0}]
    check._show_prefetched({"files": files, "seconds": 0.0, "caches": []})
    assert capsys.readouterr().out.endswith(says)


def test_cache_of_flashinfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLASHINFER_WORKSPACE_BASE names what the cache's folder is in; without it that is the home folder."""
    (tmp_path / ".cache" / "flashinfer").mkdir(parents=True)
    (tmp_path / ".cache" / "flashinfer" / "kernel.so").write_bytes(b"12345")
    for variable in ("FLASHINFER_WORKSPACE_BASE", "HOME"):
        monkeypatch.setenv("HOME", "/nowhere")
        monkeypatch.setenv(variable, str(tmp_path))
        (found,) = [one for one in caches() if one["name"] == "FlashInfer"]
        assert (found["folder"], found["bytes"]) == (str(tmp_path / ".cache" / "flashinfer"), 5)
        monkeypatch.delenv(variable)
