"""The profile `debug` over training commands: what is recognised, what changes, and why."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest

from raydebug.errors import RaydebugError
from raydebug.profile.load import load_profile
from raydebug.profile.overlay import Overlay, apply, overlay_profile
from raydebug.profile.recognise import Trainer, recognise

PPO = Trainer("ppo", "verl.trainer.main_ppo", 3)
CPU = {"VERL_PLATFORM": "cpu"}
DEBUG = load_profile("debug")


def lay(*overrides: str, environ: dict[str, str] | None = None) -> Overlay:
    return overlay_profile(DEBUG, PPO, overrides, environ or {})


def said(overlay: Overlay) -> dict[str, str]:
    """The arguments by key; a key that stands twice is a fault."""
    keys = [argument.partition("=")[0].lstrip("+") for argument in overlay.argv if "=" in argument]
    assert len(keys) == len(set(keys)), keys
    return dict(zip(keys, (a.partition("=")[2] for a in overlay.argv if "=" in a), strict=True))


@pytest.mark.parametrize(
    ("command", "overrides_at"),
    [
        ("python -m verl.trainer.main_ppo a=b", 3),
        ("/usr/bin/python3 -u -X dev -W error -m verl.trainer.main_ppo", 8),
        ("python -mverl.trainer.main_ppo a=b", 2),
        ("python /src/verl/verl/trainer/main_ppo.py a=b", 2),
        ("python verl/trainer/main_ppo.py", 2),
    ],
)
def test_training_commands_are_recognised(command: str, overrides_at: int) -> None:
    """main_ppo is recognised as a module or a file, behind the interpreter's own options."""
    assert recognise(command.split()) == Trainer("ppo", "verl.trainer.main_ppo", overrides_at)


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
    ],
)
def test_other_commands_are_not(command: str) -> None:
    """A program that only mentions the trainer is not taken for it."""
    assert recognise(command.split()) is None


def test_recognising_imports_nothing() -> None:
    """Asking whether a command is a training one costs no import but the question's own."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from raydebug.profile.overlay import apply\n"
        "assert apply(['python', 'x.py'], profile='debug') is None\n"
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
    assert "data.max_response_length: 2048 -> 32 (short rollouts)" in lines
    assert "trainer.val_before_train: true -> false (the first stop comes sooner)" in lines


def test_what_says_the_same_is_no_change() -> None:
    """A setting that has the profile's value already is left alone, and not explained."""
    overlay = lay("trainer.val_before_train=false", "trainer.resume_mode=disable")
    assert overlay.argv[:2] == ["trainer.val_before_train=false", "trainer.resume_mode=disable"]
    assert not [change for change in overlay.changes if change.setting in ("validate_first", "resume", "save_every")]


def test_everything_else_passes_as_it_is() -> None:
    """Options of Hydra, deletions and keys that the profile does not know stay, in their order."""
    mine = [
        "--config-name",
        "my_trainer",
        "~trainer.logger",
        "data.train_files=[a,b]",
        "+x.y=1",
        "hydra.run.dir=/tmp/=x",
    ]
    assert lay(*mine).argv[: len(mine)] == mine


def test_last_override_counts_and_one_is_left() -> None:
    """Of a key that stands twice the last counts, as with Hydra, and the new value stands once."""
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
    assert "++actor_rollout_ref.rollout.enable_sleep_mode=false" in lay(environ=CPU).argv


@pytest.mark.parametrize(("given", "asked", "ranks"), [("2", 2, "2"), ("2", 8, "2"), ("4", 2, "2"), ("", 8, "1")])
def test_as_many_ranks_as_the_node_was_given(given: str, asked: int, ranks: str) -> None:
    """On a CPU a training has the ranks that it asks for, up to the GPUs that `up` was told; one where none was."""
    environ = {**CPU, "RAYDEBUG_NODE_GPUS": given}
    overlay = lay(f"trainer.n_gpus_per_node={asked}", environ=environ)
    assert said(overlay)["trainer.n_gpus_per_node"] == ranks
    assert said(overlay)["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == str(4 // int(ranks))
    if given and asked > int(given):
        assert (
            "trainer.n_gpus_per_node: 8 -> 2 (the logical GPUs that `raydebug up --gpus` gave each node)"
            in map(str, overlay.changes)
        )  # fmt: skip


def test_critic_only_where_there_is_one() -> None:
    """The critic's settings are laid over PPO (gae), and left out of GRPO."""
    assert not [key for key in said(lay("algorithm.adv_estimator=grpo")) if key.startswith("critic.")]
    assert said(lay("trainer.n_gpus_per_node=1"))["critic.ppo_micro_batch_size_per_gpu"] == "4"
    assert said(lay("algorithm.adv_estimator=grpo", "critic.enable=True"))["critic.ppo_mini_batch_size"]


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
        assert math.lcm(batch, mini) == batch


def test_unknown_version_is_refused() -> None:
    """A verl whose keys are not known is an error that names the known ones."""
    with pytest.raises(RaydebugError) as failure:
        overlay_profile(DEBUG, PPO, [], {}, version="0.4.1")
    assert str(failure.value) == (
        "error: the profile 'debug' cannot be laid over verl.trainer.main_ppo\n"
        "cause: verl 0.4.1 is installed; the keys of these versions are known: 0.9\n"
        "fix: install a known version, or run without --profile"
    )


def test_apply_says_what_it_changes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver, apply returns the trainer's own arguments and lists the changes on stderr."""
    monkeypatch.setattr("raydebug.profile.overlay._installed_version", lambda trainer: "0.9.1")
    arguments = apply(["python", "-m", "verl.trainer.main_ppo", "trainer.save_freq=5"], profile="debug")
    assert arguments is not None
    assert arguments[0] != "python"
    assert "trainer.save_freq=-1" in arguments
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("raydebug: the profile 'debug' changes ")
    assert "  trainer.save_freq: 5 -> -1 (nothing is left on disk)" in printed
