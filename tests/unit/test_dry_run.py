"""`raydebug run --dry-run`: what a profile would make of a command, as a person and as a program reads it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import runs
from verl_fork import make_fork

TRAINER = ["python3", "-m", "verl.trainer.main_ppo"]
GRPO = [
    *TRAINER,
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=1024",
    "data.max_response_length=1024",
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=5",
    "trainer.logger=['console','wandb']",
    "trainer.n_gpus_per_node=8",
    "trainer.save_freq=20",
]


def raydebug(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), **variables}
    return runs.raydebug(*arguments, env=environment, cwd=folder)


def dry_run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Show what a profile, the first of the arguments, makes of a command."""
    return raydebug("run", "--dry-run", "--profile", *arguments, folder=folder, **variables)


def show(*arguments: str, folder: Path, profile: str = "debug", **variables: str) -> dict[str, Any]:
    done = dry_run(profile, "--json", *arguments, folder=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def refused(*arguments: str, folder: Path) -> list[str]:
    done = dry_run(*arguments, folder=folder)
    assert done.returncode == 2, done.stdout
    lines = done.stderr.splitlines()[-3:]
    assert [line.partition(": ")[0] for line in lines] == ["error", "cause", "fix"]
    return [line.partition(": ")[2] for line in lines]


def by_key(document: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {change["key"]: (change["old"], change["new"]) for change in document["changes"]}


def test_a_grpo_training(tmp_path: Path) -> None:
    """verl's own style: each change has setting, key, old, new and why; the rest of the command is as it was."""
    command = [*GRPO, "+mine.own=1"]
    document = show("--verl", "0.9.1", "--", *command, folder=tmp_path)
    assert (document["version"], document["trainer"], document["verl"]) == (1, "verl.trainer.main_ppo", "0.9.1")
    changes = by_key(document)
    assert changes["data.train_batch_size"] == ("1024", "8")
    assert changes["trainer.save_freq"] == ("20", "-1")
    assert changes["trainer.logger"] == ("['console','wandb']", "[console]")
    assert {"setting", "key", "old", "new", "why", "saving"} == set(document["changes"][0])
    assert all(change["why"] for change in document["changes"])
    assert document["argv"][:4] == command[:4]
    assert "+mine.own=1" in document["argv"]
    kept = [word for word in document["argv"] if word in command]
    assert kept == [word for word in command if word in kept], "in their order"


def test_for_people(tmp_path: Path) -> None:
    """Without --json there is a table of old -> new with the reason, and a command that can be typed."""
    make_fork(tmp_path, like="0.4.0", version="0.4.0", without=("actor_rollout_ref.rollout.max_num_seqs",))
    done = dry_run("debug", "--", *TRAINER, "a.b='c d'", *GRPO[3:], folder=tmp_path)
    assert "debug over verl.trainer.main_ppo of verl 0.4.0: " in done.stderr
    assert "20 -> -1" in done.stdout
    assert "nothing is left on disk" in done.stdout
    assert "128 times fewer prompts in a step" in done.stdout
    assert "left alone, it has no key for: " in done.stderr
    assert "rollout_sequences (actor_rollout_ref.rollout.max_num_seqs)" in done.stderr
    shown = done.stdout[done.stdout.index("python3 -m") :]
    assert shlex.split(shown.replace("\\\n", ""))[:4] == ["python3", "-m", "verl.trainer.main_ppo", "a.b='c d'"]


def test_a_script_in_arpo_s_style(tmp_path: Path) -> None:
    """A fork that the script names by PYTHONPATH, with its own config, keys and version: those are what is changed."""
    folder = make_fork(
        tmp_path / "verl_fork", like="0.4.0", version="0.3.1.dev",
        without=("trainer.val_before_train",), more={"actor_rollout_ref.rollout.initial_rollouts": 1},
    )  # fmt: skip
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "ppo_trainer.yaml").write_text((folder / "trainer" / "config" / "own.yaml").read_text())
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "run.sh").write_text(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" &> /dev/null && pwd)"\ncd "$(dirname "$HERE")"\n'
        'export PYTHONPATH="$PWD"/verl_fork:$PYTHONPATH\nCONFIG="$PWD/config"\nN=16   # answers\n'
        "python3 -m verl.trainer.main_ppo \\\n    --config-path=$CONFIG \\\n    --config-name=ppo_trainer.yaml \\\n"
        "    actor_rollout_ref.rollout.n=${N} \\\n    actor_rollout_ref.rollout.initial_rollouts=8 \\\n"
        '    trainer.logger="[console, wandb]" \\\n    trainer.run=$(date) 2>&1 | tee run.log\n'
    )
    document = show("--", "bash", "scripts/run.sh", folder=tmp_path)
    assert (document["verl"], document["keys_of"]) == ("0.3.1.dev", "0.4.0")
    changes = by_key(document)
    assert changes["actor_rollout_ref.rollout.n"] == ("16", "2")
    assert changes["trainer.logger"] == ("[console, wandb]", "[console]")
    assert "++trainer.val_before_train=false" in document["argv"], "the trainer reads it, though no config lists it"
    assert "actor_rollout_ref.rollout.initial_rollouts=8" in document["argv"]
    note = "verl 0.3.1.dev is not known; its config is most like that of verl 0.4.0, whose keys are used"
    assert note in document["notes"]
    assert "$(date) is a program's output" in document["notes"]


def test_the_last_of_several_is_the_document(tmp_path: Path) -> None:
    """A script with two trainings shows both; JSON has the last one's fields, and all of them as `trainings`."""
    (tmp_path / "run.sh").write_text(
        "torchrun -m verl.trainer.sft_trainer\npython3 -m verl.trainer.main_ppo trainer.save_freq=3\n"
    )
    done = dry_run("debug", "--verl", "0.9", "--json", "--", "sh", "run.sh", folder=tmp_path)
    document = json.loads(done.stdout)
    assert document["trainer"] == "verl.trainer.main_ppo"
    assert [one["trainer"] for one in document["trainings"]] == ["verl.trainer.sft_trainer", "verl.trainer.main_ppo"]
    both = dry_run("debug", "--verl", "0.9", "--", "sh", "run.sh", folder=tmp_path).stderr
    assert "debug over verl.trainer.sft_trainer" in both
    assert "debug over verl.trainer.main_ppo" in both


@pytest.mark.parametrize(
    "command", [["python", "train.py"], ["bash", "run.sh"], ["nosuch"], ["bash"], ["python", "-m"]]
)
def test_a_command_that_is_no_training(command: list[str], tmp_path: Path) -> None:
    """What is no training is refused in three lines that say what one looks like."""
    (tmp_path / "run.sh").write_text("python train.py\n")
    error, cause, fix = refused("debug", "--", *command, folder=tmp_path)
    if "train.py" in command or "run.sh" in command:
        assert error == f"'{' '.join(command)}' runs no training that raydebug knows"
        assert cause.startswith("it runs train: neither the name nor the arguments are those of verl or openrlhf")
        assert fix.startswith("say what it is: --trainer verl")
        return
    assert error == f"'{' '.join(command)}' is not a training command that raydebug knows"
    assert "python or torchrun with -m verl.trainer.NAME" in cause
    assert fix.startswith("raydebug run --profile debug --dry-run -- python -m verl.trainer.main_ppo")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["debug", "--", "bash", "nosuch.sh"], "cannot be read without running it"),
        (["debug", "--", *TRAINER], "cannot be applied to verl.trainer.main_ppo"),
        (["rollout-only", "--verl", "0.9", "--", "torchrun", "-m", "verl.trainer.sft_trainer"], "is not for verl."),
        (["debug", "--verl", "2.0", "--", *TRAINER], "cannot be applied to"),
        (["debug", "--verl", "0.9", "--", "python3", "-m", "verl.trainer.main_generation"], "cannot be applied to"),
    ],
)
def test_other_refusals(arguments: list[str], error: str, tmp_path: Path) -> None:
    """An unknown script, version, and a trainer that the version or the profile does not know."""
    assert error in refused(*arguments, folder=tmp_path)[0]


def test_tiny_ones_made_like_the_user_s(tmp_path: Path) -> None:
    """--model tiny and --data tiny: paths below the job's folder, made like what is there, and nothing is made yet."""
    make_fork(tmp_path, version="0.9.1")
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text("{}")
    for name in ("train", "test"):
        (tmp_path / f"{name}.parquet").write_bytes(b"rows")
    command = [*TRAINER, "actor_rollout_ref.model.path=big"]
    command += ["data.train_files=['train.parquet','x']", "data.val_files=test.parquet", "trainer.n_gpus_per_node=4"]
    command += ["actor_rollout_ref.rollout.tensor_model_parallel_size=4", "algorithm.adv_estimator=grpo"]
    document = show("--model", "tiny", "--data", "tiny", "--", *command, folder=tmp_path)
    changes = by_key(document)
    assert str(changes["actor_rollout_ref.model.path"][1]).startswith(f"{tmp_path}/.raydebug/tiny/model-")
    train, test = (changes[key][1] for key in ("data.train_files", "data.val_files"))
    assert (Path(str(train)).name, Path(str(test)).name) == ("train.parquet", "test.parquet")
    assert Path(str(train)).parent == Path(str(test)).parent
    assert changes["actor_rollout_ref.rollout.tensor_model_parallel_size"] == ("4", "2")
    assert changes["data.truncation"] == ("error", "left")
    assert "custom_reward_function.path" not in changes
    assert [made["what"] for made in document["made"]] == ["model", "dataset"]
    assert not (tmp_path / ".raydebug").exists()
    again = show("--model", "tiny", "--data", "tiny", "--", *command, folder=tmp_path)
    assert again["argv"] == document["argv"], "the same inputs have the same names"
    (tmp_path / "train.parquet").write_bytes(b"other rows")
    assert by_key(show("--data", "tiny", "--", *command, folder=tmp_path))["data.train_files"][1] != train


def test_tiny_ones_for_what_is_not_here(tmp_path: Path) -> None:
    """A hub's model and data that are not on this machine: a random Qwen2, and additions with their own reward."""
    document = show("--model", "tiny", "--data", "tiny", "--verl", "0.9.1", "--", *GRPO, folder=tmp_path)
    changes, tiny = by_key(document), tmp_path / ".raydebug" / "tiny"
    assert changes["actor_rollout_ref.model.path"] == ("Qwen/Qwen3-8B", f"{tiny}/model-qwen2")
    assert changes["data.train_files"][1] == f"{tiny}/data-additions-16/train.parquet"
    assert changes["reward.custom_reward_function.path"][1] == f"{tiny}/data-additions-16/reward.py"
    whys = {change["setting"]: change["why"] for change in document["changes"]}
    assert whys["model"].endswith("Qwen/Qwen3-8B is not on this machine, to be made like it")
    tuning = ["torchrun", "-m", "verl.trainer.sft_trainer"]
    error, cause, _ = refused("debug", "--verl", "0.9", "--data", "tiny", "--", *tuning, folder=tmp_path)
    assert error == "there is no tiny data for verl.trainer.sft_trainer"
    assert "~/data/gsm8k/train.parquet is not on this machine" in cause


@pytest.mark.parametrize("name", ["x" * 5000, "~nosuchuser/m", "hdfs://a/b", "[a", "''", "a\nb"])
def test_names_that_are_no_files(name: str, tmp_path: Path) -> None:
    """A model and data by names that no file can have count as not on this machine."""
    command = [*TRAINER, f"actor_rollout_ref.model.path={name}", f"data.train_files={name}"]
    document = show("--model", "tiny", "--data", "tiny", "--verl", "0.9.1", "--", *command, folder=tmp_path)
    assert str(by_key(document)["actor_rollout_ref.model.path"][1]).endswith("/model-qwen2")
    assert "/data-additions-" in str(by_key(document)["data.train_files"][1])


def test_a_model_in_the_hub_s_cache(tmp_path: Path) -> None:
    """A model by its hub name is taken from the cache, if it is there."""
    cached = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abcdef0\n")
    (cached / "snapshots" / "abcdef0").mkdir(parents=True)
    (cached / "snapshots" / "abcdef0" / "config.json").write_text("{}")
    hub = str(tmp_path / "hub")
    document = show("--model", "tiny", "--verl", "0.9.1", "--", *GRPO, folder=tmp_path, HF_HUB_CACHE=hub)
    assert not str(by_key(document)["actor_rollout_ref.model.path"][1]).endswith("/model-qwen2")


def test_another_place_answers_the_same(tmp_path: Path) -> None:
    """A cluster's own Python gives the same answers as this Python, errors too."""
    make_fork(tmp_path, version="0.9.1")
    here = show("--", *GRPO, folder=tmp_path)
    request = {"argv": GRPO, "profile": "debug", "tiny": [], "version": None, "environ": {}, "search": [""],
               "rollouts": ""}  # fmt: skip

    def answer(**changed: Any) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "raydebug.profile.apply_profile", json.dumps({**request, **changed})],
            cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    assert {"version": 1, **answer(), "trainings": [answer()]} == here
    assert answer(argv=["x"])["error"]["code"] == "profile.no-training"
    assert answer(argv=["x"])["exit_code"] == 2


def test_one_that_is_refused_hides_no_other(tmp_path: Path) -> None:
    """Of two trainings one has a misspelled key: the other is shown, the refusal is said, and the exit code is 2."""
    make_fork(tmp_path, version="0.9.1")
    main = "python3 -m verl.trainer.main_ppo"
    (tmp_path / "run.sh").write_text(f"{main} data.train_batchsize=4\n{main} data.train_batch_size=4\n")
    done = dry_run("debug", "--", "sh", "run.sh", folder=tmp_path)
    assert done.returncode == 2
    assert "debug over verl.trainer.main_ppo" in done.stderr
    assert "refused: verl.trainer.main_ppo has no setting 'data.train_batchsize'" in done.stderr
    document = json.loads(dry_run("debug", "--json", "--", "sh", "run.sh", folder=tmp_path).stdout)
    assert ["refused" in one for one in document["trainings"]] == [True, False]
    assert document["trainer"] == "verl.trainer.main_ppo"


def test_a_command_without_a_profile(tmp_path: Path) -> None:
    """Without a profile the command runs as it is; --verl and --json are for --dry-run alone; `try` shows `debug`."""
    done = raydebug("run", "--dry-run", "--", "python", "x.py", "a b", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "python x.py 'a b'\n")
    assert done.stderr == "no profile: the command runs as it is\n"
    done = raydebug("run", "--dry-run", "--json", "--", "python", "x.py", folder=tmp_path)
    assert (json.loads(done.stdout)["changes"], json.loads(done.stdout)["argv"]) == ([], ["python", "x.py"])
    done = raydebug("run", "--json", "--", "python", "x.py", folder=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "run.no-dry-run")
    make_fork(tmp_path, version="0.9.1")
    done = raydebug("try", "--dry-run", "--", *GRPO, folder=tmp_path)
    assert (done.returncode, "debug over verl.trainer.main_ppo of verl 0.9.1" in done.stderr) == (0, True)


def test_rollouts_of_a_dry_run(tmp_path: Path) -> None:
    """What --record changes is shown too."""
    make_fork(tmp_path, version="0.9.1")
    done = raydebug("run", "--dry-run", "--record", "kept", "--json", "--", *GRPO, folder=tmp_path)
    assert str(tmp_path / "kept") in {change["new"] for change in json.loads(done.stdout)["changes"]}, done.stderr
    assert not (tmp_path / "kept").exists()
