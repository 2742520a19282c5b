"""`run --record`, `--replay`, `--only`: the settings, and records that are refused, without a training."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raydebug.cli import app as cli
from raydebug.errors import RaydebugError
from raydebug.profile.apply_profile import AppliedProfile, apply_profile
from raydebug.profile.rollouts import RECORD, Rollouts, compare, finish_record, read_record
from raydebug.trainers.settings import Settings

COMMAND = ("python", "-m", "verl.trainer.main_ppo", "actor_rollout_ref.model.path=model", "data.train_files=d.parquet")


def applied(rollouts: Rollouts, folder: Path, *, verl: str = "0.9.1", more: tuple[str, ...] = ()) -> AppliedProfile:
    return apply_profile(
        [*COMMAND, *more], profile="full", environ={}, folder=folder, search=[], rollouts=rollouts, version=verl
    )


def settings_of(rollouts: Rollouts, folder: Path, **options: Any) -> Settings:
    return applied(rollouts, folder, **options).settings


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of two steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "d.parquet").write_text("rows")
    folder = tmp_path / "kept"
    monkeypatch.setattr("atexit.register", lambda *_call: None)  # this process is no driver
    recording = Rollouts("record", folder)
    recording.begin(settings_of(recording, tmp_path), "0.9.1")
    for step in (1, 2):
        inner = folder / "gsm8k_verl_examples" / "GBS1024_N1_in512_out512" / str(step) / "0"
        inner.mkdir(parents=True)
        (inner / "tq_batch.pt").write_bytes(b"rollouts")
    finish_record(folder)
    return folder


def refusal(folder: Path) -> tuple[str, str]:
    """Return code and cause of the error for a record that cannot be read."""
    with pytest.raises(RaydebugError) as failure:
        read_record(folder)
    return failure.value.code, failure.value.cause


def test_settings(kept: Path, tmp_path: Path) -> None:
    """A record switches the trainer's cache on; a replay reads it, without an engine and by the recorded names."""
    words = applied(Rollouts("record", tmp_path / "new"), tmp_path).argv
    assert "skip.rollout_tq.enable=true" in words
    assert f"skip.rollout_tq.dump_dir={tmp_path / 'new'}" in words
    assert "skip.rollout_tq.steps=[1,2]" in words
    words = applied(Rollouts("replay", kept), tmp_path, more=("trainer.experiment_name=today",)).argv
    assert "trainer.v1.trainer_mode=raydebug_replay" in words
    assert "trainer.experiment_name=gsm8k" in words
    assert "trainer.total_training_steps=2" in words
    manager = "agent_loop_manager_class=raydebug.trainers.verl.replay.RecordedRollouts"
    assert any(word.endswith(manager) for word in words)
    words = applied(Rollouts("only-rollout"), tmp_path).argv
    assert {"trainer.val_only=true", "actor_rollout_ref.actor.fsdp_config.forward_only=true"} <= set(words)


@pytest.mark.parametrize("mode", ["record", "replay", "only-rollout"])
def test_older_verl(mode: Any, kept: Path, tmp_path: Path) -> None:
    """Before verl 0.9 there is none of the three; 0.9's older trainer starts the engine in any case: it is refused."""
    folder = {"record": tmp_path / "new", "replay": kept, "only-rollout": None}[mode]
    rollouts = Rollouts(mode, folder)
    with pytest.raises(RaydebugError, match=r"is not available with verl 0\.8\.0") as failure:
        rollouts.begin(settings_of(rollouts, tmp_path, verl="0.8.0"), "0.8.0")
    assert failure.value.code == "run.no-replay"
    assert not (tmp_path / "new").exists()
    if mode != "only-rollout":
        settings = settings_of(rollouts, tmp_path, more=("trainer.use_v1=False",))
        with pytest.raises(RaydebugError, match="is not available with the older trainer") as failure:
            rollouts.begin(settings, "0.9.1")
        assert failure.value.cause.startswith("the command sets trainer.use_v1=False")


def test_fine_tuning_has_no_rollouts(tmp_path: Path) -> None:
    """A program without rollouts keeps none: it is refused, and no folder is made."""
    argv = ["torchrun", "--nproc_per_node=1", "-m", "verl.trainer.sft_trainer", "model.path=model"]
    recording = Rollouts("record", tmp_path / "new")
    settings = apply_profile(
        argv, profile="full", environ={}, folder=tmp_path, search=[], rollouts=recording, version="0.9.1"
    ).settings
    with pytest.raises(RaydebugError, match="--record is not available"):
        recording.begin(settings, "0.9.1")
    assert not (tmp_path / "new").exists()


def test_variable() -> None:
    """What the driver reads is what was said; nothing said is nothing."""
    assert Rollouts.of_variable("") is None
    assert Rollouts.of_variable(Rollouts("only-rollout").as_variable()) == Rollouts("only-rollout")
    found = Rollouts.of_variable(Rollouts("replay", Path("/a:b")).as_variable())
    assert found == Rollouts("replay", Path("/a:b"))


def test_difference(kept: Path, tmp_path: Path) -> None:
    """Another model or size is refused with what differs; other data is said, and used."""
    record = read_record(kept)
    compare(kept, record, {**record, "data": {"other": "1"}})
    changed = {**record, "shape": {**record["shape"], "train_batch_size": 8}, "model": {"config.json": "other"}}
    with pytest.raises(RaydebugError) as failure:
        compare(kept, record, changed)
    assert failure.value.cause == "train_batch_size: 1024 recorded, 8 now; the model's config.json differs"


def test_record_is_private_and_new(kept: Path, tmp_path: Path) -> None:
    """The folder is this user's alone; a folder with something in it is not taken for a new record."""
    assert kept.stat().st_mode & 0o777 == 0o700
    recording = Rollouts("record", kept)
    with pytest.raises(RaydebugError, match="has another run's record"):
        recording.require(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(RaydebugError, match="is not empty"):
        Rollouts("record", tmp_path / "mine").require(tmp_path)


def test_damaged_records(kept: Path) -> None:
    """A record of another version, one without a step, a file that is cut off or gone: each is refused."""
    file = kept / RECORD
    whole = json.loads(file.read_text())
    for change, code in (
        ({"version": 2}, "run.record-version"),
        ({"files": {}}, "run.record-incomplete"),
        ({"steps": []}, "run.record-incomplete"),
    ):
        file.write_text(json.dumps({**whole, **change}))
        assert refusal(kept)[0] == code
    outside = [{"names": {"experiment": name, "project": None}} for name in ("../x", "a/../../x", "/x")]
    damaged = [json.dumps({**whole, **change}) for change in (*outside, {"files": {"../x": [1, "a"]}}, {"names": 3})]
    for text in ("", "[]", "{", '{"version": 1}', "[" * 100_000, *damaged):
        file.write_text(text)
        assert refusal(kept)[0] == "run.no-record"
    file.write_text(json.dumps(whole))
    batch = next(kept.rglob("tq_batch.pt"))
    batch.write_bytes(b"roll")
    assert refusal(kept) == ("run.record-damaged", f"8 bytes were recorded in '{kept}'")
    batch.write_bytes(b"rollOuts")
    assert refusal(kept)[0] == "run.record-damaged"
    batch.unlink()
    assert refusal(kept)[0] == "run.record-damaged"
    shutil.rmtree(kept)
    assert refusal(kept)[0] == "run.no-record"


def test_folder_of_another_user(kept: Path) -> None:
    """What others can have written is not unpickled."""
    batch = next(kept.rglob("tq_batch.pt"))
    batch.chmod(0o666)
    assert refusal(kept) == ("run.record-foreign", "other users may write it, and it is unpickled")
    batch.chmod(0o600)
    if os.getuid() == 0:
        os.chown(batch, 12345, -1)
        assert refusal(kept) == ("run.record-foreign", "it belongs to user 12345, and it is unpickled")


def test_links_in_a_record(kept: Path, tmp_path: Path) -> None:
    """A link can lead to what others have written: one inside is refused, one to the folder is followed."""
    (tmp_path / "link").symlink_to(kept)
    assert read_record(tmp_path / "link")["steps"] == [1, 2]
    inner = kept / "gsm8k_verl_examples"
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    cause = "it is a link, which can lead to another user's files, and it is unpickled"
    assert refusal(kept) == ("run.record-foreign", cause)
    assert refusal(tmp_path / "link") == ("run.record-foreign", cause)
    if os.getuid() == 0:
        inner.unlink()
        (tmp_path / "elsewhere").rename(inner)
        os.chown(kept, 12345, -1)
        assert refusal(tmp_path / "link")[1].startswith("it belongs to user 12345")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--only", "train"], "--only train needs rollouts"),
        (["--record", "a", "--replay", "b"], "exclude each other"),
        (["--only", "rollout", "--record", "a"], "exclude each other"),
        (["--replay", "nowhere"], "has no record of rollouts"),
    ],
)
def test_refused(options: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that do not go together, and a folder without a record, are refused before anything starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = CliRunner().invoke(cli.whole_app(), ["run", *options, "--", *COMMAND])
    assert what in done.exception.what
    assert done.exception.exit_code == 2
