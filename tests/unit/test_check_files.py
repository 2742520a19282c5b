"""`check` of trainings whose trainer has no rules here: EasyR1, OpenRLHF, slime. Data and model are looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydebug.check import data, model
from raydebug.check.stages import FAILED, PASSED, SKIPPED, Outcome, choose_stages, run_stages
from raydebug.check.target import Target, find_target

EASYR1 = ["python", "-m", "verl.trainer.main", "worker.actor.model.model_path=m", "data.val_files=org/name@test"]
OPENRLHF = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "m", "--eval_dataset", "org/name"]
SLIME = ["python", "train.py", "--hf-checkpoint", "m", "--rollout-batch-size", "4", "--num-rollout", "2"]
COMMANDS = {
    "EasyR1": (EASYR1, "data.train_files", "="),
    "OpenRLHF": (OPENRLHF, "--prompt_data", " "),
    "slime": (SLIME, "--prompt-data", " "),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with data and a model whose weights are a pointer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    here = tmp_path / "here"
    (here / "m").mkdir(parents=True)
    (here / "m" / "config.json").write_text(json.dumps({"architectures": ["X"], "model_type": "qwen2"}))
    (here / "m" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (here / "rows.jsonl").write_text('{"question": "1 + 1"}\n')
    monkeypatch.chdir(here)


def target_of(name: str, value: str) -> Target:
    command, key, sign = COMMANDS[name]
    return find_target([*command, *f"{key}{sign}{value}".split(" ")], Path.cwd(), "default", None)


def check(target: Target, *stages: str) -> dict[str, Outcome]:
    outcomes = run_stages(target, choose_stages(stages), keep_going=True)
    return {outcome.stage: outcome for outcome in outcomes}


def said_by(outcome: Outcome) -> list[str]:
    return [f"{one.severity} {one.code}: {one.what}" for one in outcome.findings if "missing (" not in one.what]


@pytest.mark.parametrize("name", COMMANDS)
def test_data_and_model_by_their_own_keys(name: str) -> None:
    """A missing file and a weight file that is none are errors; the rest is said to be not run, with what would."""
    key = COMMANDS[name][1]
    found = check(target_of(name, "there/no.jsonl@[0:9]"), "data", "model", "engine")
    fetched = [one for one in said_by(found["data"]) if "fetched by the trainer" in one]
    assert said_by(found["data"])[0] == f"error data.file-missing: {key}: there is no file there/no.jsonl"
    assert [one.partition(": ")[2].partition(" is ")[0].rpartition(": ")[2] for one in fetched] == (
        [] if name == "slime" else ["org/name"]
    )
    assert found["data"].status == FAILED
    assert "error model.shard: m/model.safetensors is a pointer of git-lfs, not the file" in said_by(found["model"])
    assert any("not run: the support and the memory of the model" in one for one in said_by(found["model"]))
    engine = found["engine"]
    assert engine.status == SKIPPED
    assert str(engine.reason).startswith("not run: the start of the engine of ")
    assert str(engine.reason).endswith("`raydebug check train -- COMMAND` starts the whole training, small")


@pytest.mark.parametrize("name", COMMANDS)
def test_data_that_is_there(name: str) -> None:
    """A file that is there, a folder and a data set of the Hub are no errors."""
    for value in ("rows.jsonl", "m", "org/name-v0.1"):
        found = check(target_of(name, value), "data")["data"]
        assert found.status == PASSED, said_by(found)


def test_only_the_shell_knows_the_data() -> None:
    """A value that a script leaves to the shell is looked at by no rule, and said."""
    found = said_by(check(target_of("OpenRLHF", "$DATA/rows.jsonl"), "data")["data"])
    assert "note check.not-run: 1 setting is known to the shell alone: prompt_data=$DATA/rows.jsonl" in found
    assert "note check.not-run: no data was looked at: --prompt_data has no value" not in found


def test_no_gpu_and_no_verl_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their packages are not verl's, and VERL_PLATFORM=cpu is no way for them."""
    monkeypatch.setenv("PATH", "/nowhere")
    for name, trainer in (("OpenRLHF", "openrlhf"), ("slime", "slime")):
        found = check(target_of(name, "rows.jsonl"), "env")["env"].findings
        assert not [one.what for one in found if one.code == "env.package-missing" and one.what.startswith("verl")]
        (gpu,) = [one for one in found if one.code == "env.no-gpu"]
        assert f"{trainer} trains on GPUs only" in gpu.why
        assert not gpu.variables


FACTS: dict[str, Any] = {"program": "openrlhf.cli.train_ppo_ray", "trainer": "openrlhf", "variables": {}}


def test_columns() -> None:
    """The column that the command's key names has to be in the files; without a key none is asked for."""
    target = target_of("OpenRLHF", "rows.jsonl")
    rows = {"path": "rows.jsonl", "exists": True, "is_file": True, "remote": False, "columns": {"question": "string"}}
    facts = {**FACTS, "splits": {"train": [rows], "val": []}}
    config = {"prompt_data": ["rows.jsonl"], "input_key": "input"}
    found = [*data.judge_columns(target, {**facts, "config": config})]
    assert (found[0].what, found[0].why) == (
        "--prompt_data: there is no column 'input'",
        "rows.jsonl has question; --input_key names it",
    )
    for right in ({**config, "input_key": "question"}, {"prompt_data": ["rows.jsonl"]}):
        assert [one.code for one in data.judge(target, {**facts, "config": right})] == ["check.not-run"]


def test_no_model_is_named() -> None:
    """A command that names no model gets a note with its key."""
    target = target_of("slime", "rows.jsonl")
    facts = {**FACTS, "config": {}, "unnamed": True, "empty": False}
    assert model.judge(target, facts)[0].what == "no model was looked at: --hf-checkpoint has no value"


def test_the_first_of_two_variants() -> None:
    """Of trainings that run in place of one another, by a condition that only a run decides, the first is checked."""
    script = Path("run.sh")
    script.write_text("if [ -f x ]; then N=1; else N=2; fi\npython -m verl.trainer.main_ppo n=$N\n")
    assert find_target(["bash", "run.sh"], Path.cwd(), "default", None).arguments == ["n=1"]
