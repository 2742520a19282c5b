"""Our words against each release of verl: its keys and defaults, and whether Hydra takes what a profile makes."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydebug.profile.apply_profile import AppliedProfile, apply_profile
from raydebug.profile.load import load_profile, profile_names
from raydebug.trainers.registry import column_of, columns, recognise
from raydebug.trainers.trainer import Installed
from raydebug.trainers.verl.trainer import PROGRAMS, VERL
from wheels.conftest import RELEASES

Release = Callable[[str], Path]
Hydra = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
pytestmark = pytest.mark.timeout(600)

MODULES = {trainer: f"verl.trainer.{module}" for module, trainer in reversed(PROGRAMS.items())}
EVERY = [(trainer, version) for version in RELEASES for trainer in MODULES]
ENDS_AND_BETWEEN = [  # ten seconds each; between the oldest and the newest in the long form
    pytest.param(version, marks=[pytest.mark.long] * (version not in (min(RELEASES), max(RELEASES))))
    for version in RELEASES
]
# One command as it is written for main_ppo in scripts of its day, with keys that every release has.
GRPO = shlex.split("""
algorithm.adv_estimator=grpo data.train_files=/data/train.parquet data.val_files=/data/test.parquet
data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 data.filter_overlong_prompts=True
data.truncation=error actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.ppo_mini_batch_size=256
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=5
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.ref.fsdp_config.param_offload=True
algorithm.use_kl_in_reward=False trainer.critic_warmup=0 trainer.logger=[console,wandb]
trainer.project_name=example trainer.experiment_name=grpo trainer.n_gpus_per_node=8 trainer.nnodes=1
trainer.save_freq=20 trainer.test_freq=5 trainer.total_epochs=15 trainer.default_local_dir=/checkpoints
trainer.val_before_train=True actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.top_p=1.0
actor_rollout_ref.rollout.enforce_eager=False
""")
COMMANDS = {
    "ppo": ["python3", "-m", MODULES["ppo"], *GRPO],
    "sft": ["torchrun", "--standalone", "--nproc_per_node=8", "-m", MODULES["sft"], "data.train_files=/d/t.parquet"],
    "sft_ray": ["python3", "-m", MODULES["sft_ray"], "trainer.n_gpus_per_node=8"],
    "fsdp_sft": ["torchrun", "--nproc-per-node", "4", "-m", MODULES["fsdp_sft"], "data.micro_batch_size=8"],
    "generation": ["python3", "-m", MODULES["generation"], "rollout.temperature=0.7", "data.n_samples=8"],
    "generation_server": ["python3", "-m", MODULES["generation_server"], "actor_rollout_ref.rollout.name=vllm"],
}


def found(trainer: str, version: str, release: Release) -> Installed | None:
    """What is read of a trainer in a release; None where it has no such trainer."""
    argv = ["python", "-m", MODULES[trainer]]
    recognised = recognise(argv)
    assert recognised is not None
    installed = VERL.read_config(recognised, argv, folder=Path("/"), search=[str(release(version))])
    if "is not installed here" in installed.unread:
        return None
    assert installed.values is not None, installed.unread
    return installed


def as_stated(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize(("trainer", "version"), EVERY)
def test_every_key_and_default_is_the_release_s(trainer: str, version: str, release: Release) -> None:
    """Each word's key is in the release's config with the default that we state, or is rightly marked as added."""
    installed, column = found(trainer, version, release), column_of(trainer, version)
    assert (installed is None) == (column is None), "the release has the trainer, and we have its keys, or neither"
    if installed is None or column is None:
        return
    assert installed.version == version
    values, wrong = installed.values or {}, []
    for word, key in column[1].items():
        if key.is_launcher_option or key.listed_only:
            continue
        wrong += [f"{word}: {path} is gone" for path in (*key.instead_of, *key.also) if path not in values]
        if (key.path in values) == key.added:
            wrong.append(f"{word}: {key.path} is {'there' if key.added else 'gone'}")
        elif not key.added and values[key.path] != as_stated(key.default):
            wrong.append(f"{word}: {key.path} is {values[key.path]!r}, not {key.default!r}")
    assert wrong == []


@pytest.mark.parametrize("version", RELEASES)
def test_metrics_of_a_step_are_logged_there(version: str, release: Release) -> None:
    """The function that `--stop-when` watches is in the release, with its two parameters."""
    program = recognise(COMMANDS["ppo"])
    assert program is not None
    module, _, function = VERL.step_loggers(program)[0].partition(":")
    source = (release(version) / f"{module.replace('.', '/')}.py").read_text()
    (tracking,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Tracking"
    ]
    (log,) = [node for node in tracking.body if isinstance(node, ast.FunctionDef) and node.name == "log"]
    assert function == "Tracking.log(step,data)"
    assert {"step", "data"} <= {argument.arg for argument in log.args.args}


def test_configs_are_read_as_hydra_composes_them(release: Release, hydra: Hydra) -> None:
    """Our reading of every trainer's config, and of what a group's choice makes of it, is Hydra's own to the key."""
    cases = [(trainer, version, []) for trainer, version in EVERY]
    cases += [("ppo", version, ["model_engine=veomni"]) for version in ("0.7.1", "0.8.0", "0.9.1")]
    cases += [("ppo", "0.9.1", ["model_engine=megatron"])]
    cases += [("ppo", "0.6.1", ["--config-name=ppo_megatron_trainer"]), ("sft", "0.9.1", ["engine=megatron"])]
    cases += [("ppo", "0.9.1", ["--config-name=ppo_megatron_trainer"])]
    jobs, ours = [], []
    for trainer, version, words in cases:
        if column_of(trainer, version) is None:
            continue
        argv = ["python", "-m", MODULES[trainer], *words]
        installed = VERL.read_config(recognise(argv), argv, folder=Path("/"), search=[str(release(version))])  # type: ignore[arg-type]
        assert installed.values is not None, (trainer, version, installed.unread)
        name = {"ppo": "ppo_trainer", "generation": "generation", "fsdp_sft": "sft_trainer"}.get(trainer)
        name = name or ("ppo_trainer" if trainer == "generation_server" else "sft_trainer_engine")
        name = next((word.partition("=")[2] for word in words if word.startswith("--config-name")), name)
        folder = release(version) / "verl" / "trainer" / "config"
        overrides = [word for word in words if not word.startswith("--")]
        jobs.append({"folder": str(folder), "name": name, "overrides": overrides})
        ours.append((trainer, version, words, installed.values))
    for (trainer, version, words, mine), theirs in zip(ours, hydra(jobs), strict=True):
        assert differences(mine, dict(leaves(theirs["raw"]))) == {}, (trainer, version, words)


def leaves(node: dict[str, Any], above: str = "") -> Any:
    for key, value in node.items():
        path = f"{above}.{key}" if above else key
        yield from leaves(value, path) if isinstance(value, dict) and value else [(path, value)]


def differences(mine: Any, theirs: dict[str, Any]) -> dict[str, Any]:
    """What is not the same; YAML 1.1 reads 1e-6 as text, OmegaConf as a number."""

    def number(value: Any) -> Any:
        return float(value) if isinstance(value, str) and value.startswith("1e-") else value

    both = {**mine, **theirs}
    return {key: (mine.get(key, "-"), theirs.get(key, "-")) for key in both
            if number(mine.get(key, "-")) != theirs.get(key, "-")}  # fmt: skip


def laid_over(trainer: str, version: str, profile: str, release: Release, **environ: str) -> AppliedProfile:
    return apply_profile(
        COMMANDS[trainer],
        profile=profile,
        environ=environ,
        folder=Path("/"),
        search=[str(release(version))],
    )


@pytest.mark.parametrize("version", ENDS_AND_BETWEEN)
def test_hydra_takes_every_new_command(version: str, release: Release, hydra: Hydra) -> None:
    """In each release, Hydra composes the command that each profile makes, and the numbers in it divide each other."""
    cases, jobs = [], []
    for trainer in MODULES:
        if column_of(trainer, version) is None:
            continue
        for profile in profile_names():
            allowed = load_profile(profile).trainers
            if allowed and trainer not in allowed:
                continue
            laid = laid_over(trainer, version, profile, release)
            assert laid.settings.version in (version, "0.9.0")
            config = {"generation": "generation", "fsdp_sft": "sft_trainer", "sft": "sft_trainer_engine"}
            name = config.get(trainer.removesuffix("_ray"), "ppo_trainer")
            folder = release(version) / "verl" / "trainer" / "config"
            jobs.append(
                {"folder": str(folder), "name": name, "overrides": laid.settings.command.arguments, "select": NUMBERS}
            )
            cases.append((trainer, profile, laid))
    for (trainer, profile, laid), answer in zip(cases, hydra(jobs), strict=True):
        assert "refused" not in answer, (trainer, profile, answer)
        if profile == "debug" and trainer in ("ppo", "sft", "sft_ray", "fsdp_sft"):
            hold_numbers(trainer, answer["selected"], laid)


# A command as forks of verl 0.4 have it, ARPO among them: a reward of its own, and the FSDP keys of that time.
OLDER = shlex.split("""
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.0
data.train_files=/data/train.parquet data.val_files=/data/valid.parquet data.prompt_key=prompt data.train_batch_size=128
data.max_prompt_length=1536 data.max_response_length=4096 actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct
actor_rollout_ref.model.enable_gradient_checkpointing=True actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=16
actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=11264
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.0
actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.fsdp_config.param_offload=False
actor_rollout_ref.rollout.log_prob_micro_batch_size=16 actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.mode=sync actor_rollout_ref.rollout.n=16
actor_rollout_ref.rollout.gpu_memory_utilization=0.7 actor_rollout_ref.ref.log_prob_micro_batch_size=16
actor_rollout_ref.ref.fsdp_config.param_offload=False reward_model.reward_manager=naive
custom_reward_function.path=/scores/deep_research.py custom_reward_function.name=compute_score trainer.critic_warmup=0
trainer.logger=[console] trainer.project_name=reasoning trainer.experiment_name=grpo trainer.n_gpus_per_node=8
trainer.nnodes=1 trainer.save_freq=5 trainer.test_freq=5 trainer.total_epochs=2 trainer.val_before_train=False
trainer.default_local_dir=/checkpoints hydra.run.dir=/checkpoints/outputs
""")


def test_a_command_of_the_older_line(release: Release, hydra: Hydra) -> None:
    """Every key of a fork's command under `debug` is in the config of verl 0.4.1, and its numbers divide each other."""
    laid = apply_profile(OLDER, profile="debug", environ={}, folder=Path("/"), search=[str(release("0.4.1"))])
    assert laid.settings.version == "0.4.1"
    installed = found("ppo", "0.4.1", release)
    assert installed is not None
    words = [word for word in laid.settings.command.arguments if not word.startswith("hydra.")]
    bare = [word.partition("=")[0] for word in words if not word.startswith("+")]
    assert [key for key in bare if key not in (installed.values or {})] == []
    folder = str(release("0.4.1") / "verl" / "trainer" / "config")
    (answer,) = hydra([{"folder": folder, "name": "ppo_trainer", "overrides": words, "select": NUMBERS}])
    assert "refused" not in answer, answer
    now = answer["selected"]
    ranks = now["trainer.n_gpus_per_node"] * now["trainer.nnodes"]
    assert now[BATCH] % ranks == now[BATCH] % now[MINI] == now[MINI] * now[ROLLOUTS] % ranks == 0
    assert answer["raw"]["custom_reward_function"]["path"] == "/scores/deep_research.py"


BATCH, ROLLOUTS, SAMPLES = "data.train_batch_size", "actor_rollout_ref.rollout.n", "data.train_max_samples"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
SFT_MICRO = "data.micro_batch_size_per_gpu"
NUMBERS = [BATCH, ROLLOUTS, MINI, MICRO, SAMPLES, SFT_MICRO, "trainer.n_gpus_per_node", "trainer.nnodes"]


def hold_numbers(trainer: str, now: dict[str, Any], laid: AppliedProfile) -> None:
    """What verl asserts of these numbers, from 0.4 to 0.9 (fit.py names where)."""
    assert now[SAMPLES] is None or now[SAMPLES] >= now[BATCH]
    if trainer == "ppo":
        ranks = now["trainer.n_gpus_per_node"] * now["trainer.nnodes"]
        assert now[BATCH] % ranks == now[BATCH] % now[MINI] == now[MINI] * now[ROLLOUTS] % ranks == 0
        assert now[MINI] * now[ROLLOUTS] // ranks % now[MICRO] == 0
    else:
        ranks = {"sft": 8, "sft_ray": 8, "fsdp_sft": 4}[trainer]
        assert now[BATCH] % ranks == now[BATCH] // ranks % now[SFT_MICRO] == 0


def test_on_a_cpu_verl_0_9_is_told_what_a_cpu_can_do(release: Release, hydra: Hydra) -> None:
    """With VERL_PLATFORM=cpu Hydra takes the command that asks for one process, FSDP2 and torch's own attention."""
    laid = laid_over("ppo", "0.9.1", "debug", release, VERL_PLATFORM="cpu")
    folder = str(release("0.9.1") / "verl" / "trainer" / "config")
    (answer,) = hydra([{"folder": folder, "name": "ppo_trainer", "overrides": laid.settings.command.arguments}])
    config = answer["raw"]
    assert (config["trainer"]["device"], config["trainer"]["n_gpus_per_node"]) == ("cpu", 1)
    assert config["actor_rollout_ref"]["actor"]["strategy"] == "fsdp2"
    assert config["actor_rollout_ref"]["model"]["override_config"]["attn_implementation"] == "sdpa"


# The words of these differ from their neighbour's only where the config itself shows nothing (keys that are added).
ALIKE = {("ppo", "0.7.0"), ("generation_server", "0.6.0"), ("generation_server", "0.6.1")}
ALIKE |= {("generation_server", version) for version in ("0.7.0", "0.7.1", "0.8.0")}


@pytest.mark.parametrize("trainer", MODULES)
def test_a_release_that_names_no_version_is_told_by_its_config(trainer: str, release: Release) -> None:
    """The keys of a verl whose version is not known are those of the release whose config is most like its own."""
    from dataclasses import replace

    from raydebug.profile.overlay import overlay_profile

    for version in RELEASES:
        installed = found(trainer, version, release)
        if installed is None:
            continue
        argv = COMMANDS[trainer]
        recognised = recognise(argv)
        assert recognised is not None
        overlay = overlay_profile(
            load_profile("debug"), recognised, argv[recognised.arguments_at :], {},
            installed=replace(installed, version="0.0.0.dev"),
        )  # fmt: skip
        known = column_of(trainer, version)
        assert known is not None
        if columns()[trainer][overlay.version] != known[1]:  # some releases are alike in all that we have words for
            assert (trainer, version) in ALIKE, f"{version} was taken for {overlay.version}"
        assert "whose keys are used" in overlay.notes[0]
