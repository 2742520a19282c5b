"""The profile `debug` over training commands: what is recognised, what changes, and why."""

from __future__ import annotations

import functools
import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydebug.errors import RaydebugError
from raydebug.profile.apply_profile import apply_in_driver
from raydebug.profile.load import load_profile
from raydebug.profile.overlay import overlay_profile
from raydebug.trainers.registry import recognise
from raydebug.trainers.settings import Settings
from raydebug.trainers.trainer import Installed, Program
from raydebug.trainers.verl.trainer import VERL

PPO = Program(VERL, "ppo", "verl.trainer.main_ppo", 3)
SFT = Program(VERL, "sft", "verl.trainer.sft_trainer", 5, launcher_at=1)
CPU = {"VERL_PLATFORM": "cpu"}
DEBUG = load_profile("debug")
NEWEST = Installed("0.9.1", None, "not read here")

cached = functools.cache(load_profile)


def lay(
    *overrides: str, environ: dict[str, str] | None = None, profile: str = "debug", verl: str = "0.9.1"
) -> Settings:
    return overlay_profile(cached(profile), PPO, overrides, environ or {}, installed=Installed(verl, None))


def fine_tune(*launcher: str, overrides: tuple[str, ...] = (), environ: dict[str, str] | None = None) -> Settings:
    return overlay_profile(DEBUG, SFT, overrides, environ or {}, installed=NEWEST, launcher=launcher)


def said(overlay: Settings) -> dict[str, str]:
    """The arguments by key; a key may occur only once."""
    keys = [argument.partition("=")[0].lstrip("+") for argument in overlay.command.arguments if "=" in argument]
    assert len(keys) == len(set(keys)), keys
    return dict(zip(keys, (a.partition("=")[2] for a in overlay.command.arguments if "=" in a), strict=True))


@pytest.mark.parametrize(
    ("command", "arguments_at"),
    [
        ("python -m verl.trainer.main_ppo a=b", 3),
        ("/usr/bin/python3 -u -X dev -W error -m verl.trainer.main_ppo", 8),
        ("python -mverl.trainer.main_ppo a=b", 2),
        ("python /src/verl/verl/trainer/main_ppo.py a=b", 2),
        ("python verl/trainer/main_ppo.py", 2),
    ],
)
def test_training_commands_are_recognised(command: str, arguments_at: int) -> None:
    """main_ppo is recognised as a module or a file, behind the interpreter's own options."""
    assert recognise(command.split()) == Program(VERL, "ppo", "verl.trainer.main_ppo", arguments_at)


@pytest.mark.parametrize(
    ("command", "name", "module"),
    [
        ("python -m verl_arpo.trainer.main_ppo a=b", "ppo", "verl_arpo.trainer.main_ppo"),
        ("python -m third_party.open_verl.trainer.main_ppo a=b", "ppo", "third_party.open_verl.trainer.main_ppo"),
        ("python -m verl.trainer.main_ppo_sync a=b", "ppo", "verl.trainer.main_ppo_sync"),
        ("python -m verl.trainer.sft_trainer_ray", "sft_ray", "verl.trainer.sft_trainer_ray"),
        ("python -m verl.trainer.main_generation", "generation", "verl.trainer.main_generation"),
        ("python -m verl.trainer.main_generation_server", "generation_server", "verl.trainer.main_generation_server"),
    ],
)
def test_other_trainers_and_forks_are_recognised(command: str, name: str, module: str) -> None:
    """verl's other programs, and those of a package with verl in its name, are recognised."""
    assert recognise(command.split()) == Program(VERL, name, module, 3)


@pytest.mark.parametrize(
    ("command", "name", "launcher_at", "arguments_at"),
    [
        ("torchrun -m verl.trainer.sft_trainer a=b", "sft", 1, 3),
        ("torchrun --standalone --nnodes=1 --nproc_per_node 8 -m verl.trainer.sft_trainer a=b", "sft", 1, 7),
        ("torchrun --nproc-per-node=8 verl/trainer/fsdp_sft_trainer.py a=b", "fsdp_sft", 1, 3),
        ("torchrun -m --tee 3 verl.trainer.sft_trainer", "sft", 1, 5),
        ("python -m torch.distributed.run --nproc_per_node=2 -m verl.trainer.sft_trainer", "sft", 3, 6),
        ("/venv/bin/python /venv/bin/torchrun -m verl.trainer.sft_trainer", "sft", 2, 4),
    ],
)
def test_torchrun_is_seen_through(command: str, name: str, launcher_at: int, arguments_at: int) -> None:
    """torchrun's options are told from its program, with and without values, and the program from its arguments."""
    found = recognise(command.split())
    assert (found.name, found.launcher_at, found.arguments_at) == (name, launcher_at, arguments_at)


@pytest.mark.parametrize(
    "command",
    [
        "python",
        "python -m",
        "python -c print()",
        "python train.py verl/trainer/main_ppo.py",
        "python -m pytest -m verl.trainer.main_ppo",
        "python -m verl.trainer.main_ppo_v0",
        "python /ray/default_worker.py --node-ip=1.2.3.4",
        "python my_main_ppo.py",
        "python notverl/trainer/main_ppo.py",
        "torchrun",
        "torchrun --nproc_per_node 8",
        "torchrun train.py -m verl.trainer.sft_trainer",
        "python -m notverl.trainer.main_ppo",
    ],
)
def test_other_commands_are_not(command: str) -> None:
    """A program that only mentions the trainer is not taken for it, and is not changed."""
    assert recognise(command.split()) is None
    assert apply_in_driver(command.split(), profile="debug") is None


def test_recognising_imports_nothing() -> None:
    """Asking whether a command is a training one costs no import but the question's own."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from raydebug.trainers.registry import recognise\n"
        "assert recognise(['python', 'x.py']) is None\n"
        "print([m for m in ('yaml', 'rich', 'pydantic', 'httpx', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_large_numbers_shrink_and_small_ones_stay() -> None:
    """A number above the profile's becomes the profile's; the user's smaller one is kept."""
    overlay = lay("data.train_batch_size=512", "actor_rollout_ref.rollout.n=1", "trainer.total_training_steps=1")
    assert said(overlay)["data.train_batch_size"] != "512"
    assert said(overlay)["actor_rollout_ref.rollout.n"] == "1"
    assert said(overlay)["trainer.total_training_steps"] == "1"
    assert not [change for change in overlay.changes if change.setting in ("rollouts_per_prompt", "steps")]


def test_changes_are_explained() -> None:
    """Each change is one line: key, old value, new value, and why."""
    lines = [str(change) for change in lay("trainer.save_freq=20", "data.max_response_length=2048").changes]
    assert "trainer.save_freq: 20 -> -1 (nothing is left on disk)" in lines
    assert "data.max_response_length: 2048 -> 32 (short rollouts; 64 times fewer tokens in an answer at most)" in lines
    assert "trainer.val_before_train: true -> false (the first stop comes sooner)" in lines


@pytest.mark.parametrize("verl", ["0.4.1", "0.5.0", "0.7.0", "0.9.1"])
def test_the_overlong_buffer_of_dapo_is_not_above_the_answer(verl: str) -> None:
    """Its reward manager asserts that; a training without one gets none."""
    keys = [
        "reward_model.overlong_buffer.len",
        *(f"{part}.reward_kwargs.overlong_buffer_cfg.len" for part in ("reward_model", "reward")),
    ]
    words = said(lay("data.max_response_length=20480", *(f"+{key}=4096" for key in keys), verl=verl))
    assert all(0 < int(words[key]) <= int(words["data.max_response_length"]) for key in keys)
    assert not set(keys) & said(lay(verl=verl)).keys()


def test_what_says_the_same_is_no_change() -> None:
    """A setting that has the profile's value already is left alone, and not explained."""
    overlay = lay("trainer.val_before_train=false", "trainer.resume_mode=disable")
    assert overlay.command.arguments[:2] == ["trainer.val_before_train=false", "trainer.resume_mode=disable"]
    assert not [change for change in overlay.changes if change.setting in ("validate_first", "resume", "save_every")]


def test_everything_else_passes_as_it_is() -> None:
    """Options of Hydra, deletions and keys that the profile does not know stay, in their order."""
    mine = ["--config-name", "my_trainer", "~trainer.logger", "data.train_files=[a,b]", "+x.y=1", "hydra.run.dir=/t/=x"]
    assert lay(*mine).command.arguments[: len(mine)] == mine


@pytest.mark.parametrize(
    "mine", [["data.shuffle=True", "--cfg", "job"], ["--cfg", "job"], ["--config-name", "x", "~a"]]
)
def test_overrides_stay_together(mine: list[str]) -> None:
    """New overrides are inserted beside the user's; Hydra's parser accepts none behind options that follow those."""
    argv = lay(*mine).command.arguments
    options = [at for at, word in enumerate(argv) if word.startswith("--") or word in ("job", "x")]
    assert options == list(range(options[0], options[0] + 2)), "in one piece"
    assert options[0] == 0 or options[-1] == len(argv) - 1, "in front, or at the end"


def test_last_override_counts_and_one_is_left() -> None:
    """Of a key that occurs twice the last value counts, as with Hydra; the new value is written once."""
    overlay = lay("trainer.test_freq=3", "++trainer.test_freq=5")
    change = next(change for change in overlay.changes if change.setting == "validate_every")
    assert (change.old, change.new) == ("5", "-1")
    assert said(overlay)["trainer.test_freq"] == "-1"


def test_deprecated_twin_goes() -> None:
    """verl refuses a micro batch size in both spellings: the old one goes, and this is said."""
    overlay = lay("actor_rollout_ref.actor.ppo_micro_batch_size=64")
    assert "actor_rollout_ref.actor.ppo_micro_batch_size" not in said(overlay)
    assert "actor_rollout_ref.actor.ppo_micro_batch_size: 64 -> (taken out)" in str(
        next(change for change in overlay.changes if change.setting == "micro_batch_size")
    )


def test_driver_does_not_size_a_ray_that_runs() -> None:
    """ray_init.num_cpus is taken out: Ray refuses it of a driver that joins a cluster."""
    overlay = lay("ray_kwargs.ray_init.num_cpus=8", "+ray_kwargs.ray_init.num_gpus=1")
    assert not [key for key in said(overlay) if key.startswith("ray_kwargs")]
    assert {c.setting for c in overlay.changes if c.new is None} == {"ray_cpus", "ray_gpus"}


def test_cpu_section_holds_on_a_cpu_only() -> None:
    """Device, FSDP2, torch's attention and no cache giving only with VERL_PLATFORM=cpu."""
    keys = {
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": "1",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.rollout.free_cache_engine": "false",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend": "uni",
    }
    assert keys.items() <= said(lay(environ=CPU)).items()
    assert not keys.keys() & said(lay()).keys()
    assert "++actor_rollout_ref.rollout.enable_sleep_mode=false" in lay(environ=CPU).command.arguments


@pytest.mark.parametrize("profile", ["debug", "full"])
def test_sequence_parallelism_goes_with_remove_padding(profile: str) -> None:
    """On a CPU it has to: verl refuses the one without the other, for the actor and for the critic."""
    key = "ulysses_sequence_parallel_size"
    given = (f"actor_rollout_ref.actor.{key}=2", f"critic.{key}=2")
    words = said(lay(*given, environ=CPU, profile=profile))
    assert words["actor_rollout_ref.model.use_remove_padding"] == "false"
    assert [words[f"{part}.{key}"] for part in ("actor_rollout_ref.actor", "critic")] == ["1", "1"]
    assert said(lay(*given, profile=profile))[f"critic.{key}"] == "2"


@pytest.mark.parametrize(("given", "asked", "ranks"), [("2", 2, "2"), ("2", 8, "2"), ("4", 2, "2"), ("", 8, "1")])
def test_as_many_ranks_as_the_node_was_given(given: str, asked: int, ranks: str) -> None:
    """On a CPU a training has the ranks that it requests, at most the GPUs given to `up`; one if none were given."""
    environ = {**CPU, "RAYDEBUG_NODE_GPUS": given}
    overlay = lay(f"trainer.n_gpus_per_node={asked}", environ=environ)
    assert said(overlay)["trainer.n_gpus_per_node"] == ranks
    assert said(overlay)["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == str(4 // int(ranks))
    if given and asked > int(given):
        why = "the logical GPUs that `raydebug up --gpus` gave each node"
        assert any(str(c).startswith(f"trainer.n_gpus_per_node: 8 -> 2 ({why}") for c in overlay.changes)


def test_critic_only_where_there_is_one() -> None:
    """The critic's settings are laid over PPO (gae), and left out of GRPO."""
    assert not [key for key in said(lay("algorithm.adv_estimator=grpo")) if key.startswith("critic.")]
    assert said(lay("trainer.n_gpus_per_node=1"))["critic.ppo_micro_batch_size_per_gpu"] == "4"
    enabled = ["algorithm.adv_estimator=grpo", "critic.enable=True", "critic.ppo_mini_batch_size=256"]
    assert said(lay(*enabled))["critic.ppo_mini_batch_size"] == said(lay())["data.train_batch_size"]
    assert "critic.ppo_mini_batch_size" not in said(lay()), "unless somebody says otherwise it is the actor's"


@pytest.mark.slow
def test_shrunk_numbers_divide_each_other() -> None:
    """Whatever the user's numbers, batch * n is a multiple of the ranks, mini divides batch, micro divides mini."""
    draw = random.Random(0)
    for _ in range(1000):
        gpus, nodes = draw.choice([1, 2, 3, 4, 8]), draw.choice([1, 1, 2])
        n = draw.choice([1, 2, 5, 8, 16])
        batch = draw.choice([64, 96, 128, 1024]) * gpus * nodes
        mini = batch // draw.choice([1, 2, 4])
        environ = draw.choice([{}, CPU])
        overlay = lay(
            f"trainer.n_gpus_per_node={gpus}",
            f"trainer.nnodes={nodes}",
            f"actor_rollout_ref.rollout.n={n}",
            f"data.train_batch_size={batch}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={draw.choice([1, 2, 3, 4, 8, 16])}",
            environ=environ,
        )
        now = {key: int(value) for key, value in said(overlay).items() if value.lstrip("-").isdigit()}
        ranks = now["trainer.n_gpus_per_node"] * now["trainer.nnodes"]
        batch, n = now["data.train_batch_size"], now["actor_rollout_ref.rollout.n"]
        mini = now["actor_rollout_ref.actor.ppo_mini_batch_size"]
        micro = now["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"]
        assert batch * n % ranks == 0
        assert batch % mini == 0
        assert mini * n % ranks == 0
        assert mini * n // ranks % micro == 0
        assert batch < 4 + ranks
        assert now["data.train_max_samples"] >= batch
        assert now.get("actor_rollout_ref.rollout.tensor_model_parallel_size", 2) <= max(ranks, 1)
        assert batch % ranks == 0
        assert math.lcm(batch, mini) == batch


@pytest.mark.parametrize(
    ("version", "nearest"),
    [("0.3.1", "0.4"), ("0.10.0", "0.9"), ("1.0.0", "0.9"), ("0.8.0.dev", "0.8"), ("0.7.9.dev", "0.7"), ("x", "0.9")],
)
def test_unknown_version_is_refused(version: str, nearest: str) -> None:
    """A verl whose keys are not known, and whose config cannot be read, is an error that names the nearest one."""
    with pytest.raises(RaydebugError) as failure:
        overlay_profile(DEBUG, PPO, [], {}, installed=Installed(version, None))
    assert str(failure.value) == (
        "error: the profile 'debug' cannot be applied to verl.trainer.main_ppo\n"
        f"cause: verl {version} is installed; the keys of these versions are known: 0.4, 0.5, 0.6, 0.7, 0.8, 0.9\n"
        f"fix: name the version that it is like: raydebug run --dry-run --verl {nearest} ..., or run without --profile"
    )


def test_one_update_in_each_step() -> None:
    """A mini batch that was larger is the whole small batch; the user's own smaller one is kept where it divides."""
    mini = "actor_rollout_ref.actor.ppo_mini_batch_size"
    wide = said(lay("trainer.n_gpus_per_node=8", f"{mini}=16"))
    assert wide[mini] == wide["data.train_batch_size"] == "8"
    assert said(lay("trainer.n_gpus_per_node=1", f"{mini}=2"))[mini] == "2"


def test_a_verl_that_is_not_there_is_refused() -> None:
    """Without verl in sight and without its version nothing is guessed."""
    absent = Installed(None, None, "verl.trainer.main_ppo is not installed here")
    with pytest.raises(RaydebugError) as failure:
        overlay_profile(DEBUG, PPO, [], {}, installed=absent)
    assert failure.value.cause == "verl.trainer.main_ppo is not installed here, and its version is not known"
    assert "--verl 0.9" in failure.value.fix


@pytest.mark.parametrize(
    ("version", "of"),
    [("0.4", "0.4.1"), ("0.7.0", "0.7.0"), ("0.7", "0.7.1"), ("0.9.7", "0.9.0"), ("0.8.0.post1", "0.8.0")],
)
def test_a_patch_has_the_keys_of_its_release(version: str, of: str) -> None:
    """A patch that came later has the keys of the last one known before it; two numbers mean the newest."""
    assert lay(verl=version).version == of


def test_keys_follow_the_version() -> None:
    """The same word is another key or value in another version; what a version lacks is said, not invented."""
    old = lay("+ray_init.num_cpus=8", "actor_rollout_ref.rollout.load_format=auto", verl="0.4.1", profile="fast-load")
    assert said(old)["actor_rollout_ref.rollout.load_format"] == "dummy_dtensor"
    assert "ray_init.num_cpus" not in said(old)
    assert {one.setting for one in old.missing} == {
        *("dataloader_workers", "agent_workers", "reward_workers", "storage_units", "compile_engine", "compile_ref"),
    }
    new = lay("ray_kwargs.ray_init.num_cpus=8", "actor_rollout_ref.rollout.load_format=auto", profile="fast-load")
    assert said(new)["actor_rollout_ref.rollout.load_format"] == "dummy"
    assert "ray_kwargs.ray_init.num_cpus" not in said(new)
    assert new.missing == []


BIG, SMALL = {"longest_edge": 1 << 24}, {"longest_edge": 12544}


@pytest.mark.parametrize(
    ("model_type", "file", "processor", "is_smaller"),
    [
        ("qwen2_5_vl", "preprocessor_config.json", {"max_pixels": 12845056}, True),
        ("qwen3_vl_moe", "processor_config.json", {"image_processor": {"size": BIG}}, True),
        ("qwen2_vl", "preprocessor_config.json", {"size": 7}, True),
        ("qwen2_5_vl", "processor_config.json", {"image_processor": {"size": SMALL}}, False),
        ("qwen2", "preprocessor_config.json", {}, False),
        ("gemma3", "preprocessor_config.json", {"max_pixels": 12845056}, False),
    ],
    ids=["Qwen2.5-VL", "Qwen3-VL", "no limit", "small already", "text", "another processor"],
)
def test_images_become_smaller(
    tmp_path: Path, model_type: str, file: str, processor: dict[str, Any], is_smaller: bool
) -> None:
    """debug limits the images of a Qwen-VL model whose processor takes large ones; a smaller limit stays."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / file).write_text(json.dumps(processor))
    model, prefix = f"actor_rollout_ref.model.path={tmp_path}", "data.mm_processor_kwargs"
    given = {key: value for key, value in said(lay(model)).items() if "pixels" in key}
    assert given == ({f"{prefix}.max_pixels": "200704", f"{prefix}.min_pixels": "3136"} if is_smaller else {})
    own = said(lay(model, f"+{prefix}.max_pixels=50176"))
    assert own[f"{prefix}.max_pixels"] == "50176"
    assert "pixels" not in " ".join(said(lay(model, verl="0.8.0")))


def test_fast_load_keeps_dummy_weights() -> None:
    """fast-load never makes the rollout engine read the checkpoint: dummy stays, and with LoRA the user's word does."""
    assert "actor_rollout_ref.rollout.load_format" not in said(lay(profile="fast-load"))
    given = ("actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.rollout.load_format=safetensors")
    assert said(lay(*given, profile="fast-load"))["actor_rollout_ref.rollout.load_format"] == "safetensors"


@pytest.mark.parametrize("profile", ["fast-load", "train-only", "full"])
def test_a_training_that_is_not_shrunk_keeps_its_numbers(profile: str) -> None:
    """A profile that leaves the sizes alone leaves all of them alone, also those that do not divide each other."""
    actor = "actor_rollout_ref.actor"
    mine = ["data.train_batch_size=100", f"{actor}.ppo_mini_batch_size=30", f"{actor}.ppo_micro_batch_size_per_gpu=7"]
    overlay = lay(*mine, profile=profile)
    assert set(mine) <= set(overlay.command.arguments)
    assert not [change for change in overlay.changes if "batch" in change.setting]


def test_rollout_only_ends_behind_the_validation() -> None:
    """rollout-only validates a few prompts and stops; the training data still fills one batch."""
    overlay = said(lay("data.train_batch_size=512", "trainer.val_before_train=False", profile="rollout-only"))
    assert overlay["trainer.val_only"] == overlay["trainer.val_before_train"] == "true"
    assert (overlay["data.val_max_samples"], overlay["data.train_max_samples"]) == ("16", "512")
    assert overlay["data.train_batch_size"] == "512"


def test_train_only_keeps_its_rollouts() -> None:
    """train-only switches verl's own cache of rollouts on, by the name that it has in each version."""
    assert said(lay(profile="train-only"))["skip.rollout_tq.enable"] == "true"
    assert said(lay(profile="train-only"))["skip.rollout.steps"] == "[1,2]"
    assert said(lay(profile="train-only", verl="0.8.0"))["actor_rollout_ref.rollout.skip.max_dump_step"] == "2"
    assert said(lay(profile="train-only", verl="0.6.1"))["actor_rollout_ref.rollout.skip_rollout"] == "true"
    assert "reuse_rollouts" in {one.setting for one in lay(profile="train-only", verl="0.7.0").missing}


def test_a_profile_for_another_trainer_is_refused() -> None:
    """Rollouts of a trainer that has none are an error, not an empty overlay."""
    with pytest.raises(RaydebugError) as failure:
        overlay_profile(load_profile("rollout-only"), SFT, [], {}, installed=NEWEST)
    assert failure.value.what == "the profile 'rollout-only' is not for verl.trainer.sft_trainer"
    assert failure.value.exit_code == 2


def test_batches_are_dealt_to_torchrun_s_processes() -> None:
    """The batch of a fine-tuning is a multiple of torchrun's processes, and a rank's share of the micro batch."""
    launchers = {"--nproc_per_node=8": 8, "--nproc-per-node 6 --nnodes 2": 12, "--nproc_per_node gpu": 8, "": 1}
    for launcher, ranks in launchers.items():
        now = said(fine_tune(*launcher.split()))
        assert int(now["data.train_batch_size"]) % ranks == 0
        assert int(now["data.train_batch_size"]) // ranks % int(now.get("data.micro_batch_size_per_gpu", "4")) == 0
        assert int(now["data.train_batch_size"]) < 4 + ranks


def test_processes_that_run_already_are_counted() -> None:
    """A rank that another launcher started counts the ranks by WORLD_SIZE and changes no launcher's options."""
    alone = Program(VERL, "sft", "verl.trainer.sft_trainer", 3)
    overlay = overlay_profile(DEBUG, alone, [], {"WORLD_SIZE": "6", **CPU}, installed=NEWEST)
    assert said(overlay)["data.train_batch_size"] == "6"
    assert overlay.command.launcher == []


def test_on_a_cpu_torchrun_starts_one_process() -> None:
    """With VERL_PLATFORM=cpu torchrun's own option is lowered, however it is written, and the rest of it stays."""
    overlay = fine_tune("--standalone", "--nproc-per-node", "8", "--tee", "3", environ=CPU)
    assert overlay.command.launcher == ["--nproc_per_node=1", "--standalone", "--tee", "3"]
    assert ("--nproc_per_node", "8", "1") in {(c.key, c.old, c.new) for c in overlay.changes}
    assert said(overlay)["trainer.device"] == "cpu"


def test_a_small_run_touches_nothing_of_the_users() -> None:
    """What a fine-tuning saves at its last step all the same is empty, and not where the user's checkpoints are."""
    mine = ("trainer.default_local_dir=/mine", "trainer.default_hdfs_dir=hdfs://mine")
    now = said(fine_tune(overrides=mine))
    assert now["checkpoint.save_contents"] == "[]"
    assert now["trainer.default_local_dir"] == ".raydebug/checkpoints"
    assert now["trainer.default_hdfs_dir"] == "null"
    rollouts = said(lay("trainer.rollout_data_dir=/mine", "trainer.validation_data_dir=/mine"))
    assert "/mine" not in rollouts.values()


CONFIG = {
    "data.train_batch_size": 128,
    "data.train_files": "a.parquet",
    "data.max_prompt_length": 1536,
    "data.max_response_length": 4096,
    "trainer.total_training_steps": None,
    "trainer.n_gpus_per_node": 4,
    "trainer.nnodes": 1,
    "trainer.test_freq": 5,
    "actor_rollout_ref.rollout.n": 16,
    "actor_rollout_ref.rollout.beams": 2,
    "actor_rollout_ref.actor.ppo_mini_batch_size": "${data.train_batch_size}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
}


def test_the_config_of_the_user_decides() -> None:
    """Where the trainer's config is read, its values are the old ones, its keys the only ones, references followed."""
    overlay = overlay_profile(DEBUG, PPO, ["data.train_batch_size=64"], {}, installed=Installed("0.4.0", CONFIG))
    changes = {change.key: (change.old, change.new) for change in overlay.changes}
    assert changes["trainer.test_freq"] == ("5", "-1")
    assert changes["actor_rollout_ref.rollout.n"] == ("16", "2")
    assert "actor_rollout_ref.actor.ppo_mini_batch_size" not in changes, "it follows the batch, which is 4 now"
    # The trainer reads this one, whether its config lists it or not.
    assert {key for key in said(overlay) if key not in CONFIG} == {"trainer.val_before_train"}, "no key was invented"
    assert ("save_every", "trainer.save_freq") in {(one.setting, one.key) for one in overlay.missing}


@pytest.mark.parametrize(
    ("typo", "meant"), [("data.train_batchsize=4", "data.train_batch_size"),
                        ("actor_rollout_ref.rolout.n=2", "actor_rollout_ref.rollout.n")],
)  # fmt: skip
def test_a_misspelled_override_is_refused(typo: str, meant: str) -> None:
    """A key that the config does not have, and that is nearly one of its own, is an error that names that one."""
    with pytest.raises(RaydebugError) as failure:
        overlay_profile(DEBUG, PPO, [typo], {}, installed=Installed("0.4.0", CONFIG))
    assert failure.value.what == f"verl.trainer.main_ppo has no setting '{typo.partition('=')[0]}'"
    assert failure.value.cause == f"the config of verl 0.4.0 has no such key; the nearest is {meant}"
    assert failure.value.fix.startswith(f"write {meant}=..., or +")


LEFT = ("+data.train_batchsize=4", "~data.train_batchsize", "hydra.run.dir=/x", "actor=megatron", "data={}",
        "zzz.yyy=1", "actor_rollout_ref.rollout.name=vllm")  # fmt: skip


@pytest.mark.parametrize("override", LEFT)
def test_what_may_be_meant_is_left_to_hydra(override: str) -> None:
    """Added and deleted keys, Hydra's own, groups, whole parts and keys like no other pass as they are."""
    assert (
        override in overlay_profile(DEBUG, PPO, [override], {}, installed=Installed("0.4.0", CONFIG)).command.arguments
    )


def test_a_config_like_no_verl_is_refused() -> None:
    """A config that has few of the keys of any version is not taken for a verl's."""
    with pytest.raises(RaydebugError, match="cannot be applied to"):
        overlay_profile(DEBUG, PPO, [], {}, installed=Installed("0.0.1", {"data.train_batch_size": 1}))


def test_a_word_where_a_number_belongs() -> None:
    """A word in the place of a number is an error of the command, not a number that the profile chooses."""
    with pytest.raises(RaydebugError, match=r"data\.train_batch_size=abc is not a number") as failure:
        lay("data.train_batch_size=abc")
    assert failure.value.exit_code == 2
    assert said(lay("data.train_batch_size=1e3"))["data.train_batch_size"] == "8"


def test_a_sweep_is_noted() -> None:
    """A number of the profile replaces a sweep of Hydra's --multirun; sweeps that stay are noted."""
    overlay = lay("-m", "data.train_batch_size=256,512", "actor_rollout_ref.actor.optim.lr=1e-6,2e-6")
    change = next(one for one in overlay.changes if one.key == "data.train_batch_size")
    assert "one value in place of the sweep" in change.why
    swept = "the command sweeps actor_rollout_ref.actor.optim.lr"
    assert f"{swept}: the small run is made once for each value" in overlay.notes
