"""OpenRLHF: its commands, the profile `debug` over them, and its log, against its published options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydebug.commands.trainings import find_trainings
from raydebug.errors import RaydebugError
from raydebug.jobs.phases import Phases
from raydebug.profile.apply_profile import AppliedProfile, apply_profile
from raydebug.trainers.openrlhf import OPENRLHF
from raydebug.trainers.options import Options, declared_defaults
from raydebug.trainers.registry import column_of, recognise
from raydebug.trainers.trainer import Program
from raydebug.trainers.verl.trainer import VERL

# Every option and its default, as `declared_defaults` reads them in openrlhf/cli/train_ppo_ray.py of these releases
# (github.com/OpenRLHF/OpenRLHF, tags v0.8.0 to v0.9.10; ed62d0e2 is 0.10.2, 3c3be623 is 0.11.0).
PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "openrlhf_options.json").read_text(encoding="utf-8")
)
# Source: OpenRLHF 3c3be623 (0.11.0) examples/scripts/train_ppo_ray_hybrid_engine.sh, without its paths.
SCRIPT = """set -x

python3 -m openrlhf.cli.train_ppo_ray \\
   --ref.num_nodes 1 \\
   --ref.num_gpus_per_node 8 \\
   --actor.num_nodes 1 \\
   --actor.num_gpus_per_node 8 \\
   --vllm.num_engines 4 \\
   --vllm.tensor_parallel_size 2 \\
   --train.colocate_all \\
   --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture \\
   --ckpt.output_dir /openrlhf/final \\
   --ckpt.save_hf \\
   --train.batch_size 128 \\
   --rollout.batch_size 1024 \\
   --rollout.n_samples_per_prompt 1 \\
   --data.max_samples 100000 \\
   --actor.adam.lr 5e-7 \\
   --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 \\
   --vllm.enforce_eager
"""


def test_recognised() -> None:
    """The training on Ray is recognised as a module and as a file; its other programs and lookalikes are not."""
    program = Program(OPENRLHF, "openrlhf_ppo", "openrlhf.cli.train_ppo_ray", 3)
    for command in ("-m openrlhf.cli.train_ppo_ray --train.batch_size 8", "-u /src/openrlhf/cli/train_ppo_ray.py"):
        assert recognise(["python", *command.split()]) == program
    for module in ("openrlhf.cli.train_sft", "notopenrlhf.cli.train_ppo_ray", "openrlhf.cli"):
        assert recognise(["python", "-m", module]) is None


@pytest.mark.parametrize("line", ["", "ray job submit --address http://127.0.0.1:8265 -- "])
def test_in_a_script(tmp_path: Path, line: str) -> None:
    """The published example script is read, also behind `ray job submit`."""
    (tmp_path / "train.sh").write_text(SCRIPT.replace("python3 -m", f"{line}python3 -m"))
    (found,) = find_trainings(["bash", "train.sh"], {}, tmp_path)
    assert found.argv[:5] == ["python3", "-m", "openrlhf.cli.train_ppo_ray", "--ref.num_nodes", "1"]
    assert found.argv[-1] == "--vllm.enforce_eager"


@pytest.mark.parametrize("version", PUBLISHED)
def test_keys_are_published_options(version: str) -> None:
    """Every key of a release is one of its options, with its default."""
    keys = column_of("openrlhf_ppo", version)[1].values()
    published = {key.path: PUBLISHED[version].get(key.path, "missing") for key in keys}
    assert published == {key.path: key.default for key in keys}


def debug(folder: Path, *arguments: str, version: str | None = "0.11.0") -> AppliedProfile:
    argv = ["python", "-m", "openrlhf.cli.train_ppo_ray", *arguments]
    return apply_profile(argv, profile="debug", environ={}, folder=folder, search=[], version=version)


def test_debug_over_the_published_script(tmp_path: Path) -> None:
    """Steps, batches, samples and rollouts shrink and divide each other; nothing is saved into the user's folder."""
    (tmp_path / "train.sh").write_text(SCRIPT)
    (found,) = find_trainings(["bash", "train.sh"], {}, tmp_path)
    applied = debug(tmp_path, *found.argv[3:])
    now = Options(applied.argv[3:], [])
    assert {change.key: (change.old, change.new) for change in applied.settings.changes} == {
        "rollout.batch_size": ("1024", "8"),
        "train.batch_size": ("128", "8"),
        "rollout.max_new_tokens": ("null", "32"),
        "data.max_samples": ("100000", "16"),
        "ckpt.output_dir": ("/openrlhf/final", ".raydebug/checkpoints"),
    }
    settings = ("rollout.batch_size", "actor.adam.lr", "vllm.enforce_eager", "train.colocate_all")
    assert [now.get(name) for name in settings] == ["8", "5e-7", "true", "true"]
    assert now.arguments[:4] == ["--ref.num_nodes", "1", "--ref.num_gpus_per_node", "8"]


@pytest.mark.parametrize(
    ("version", "arguments", "name"),
    [
        ("0.11", ["--rollout_batch_size", "1024", "--micro_train_batch_size", "8", "--generate_max_len", "9"], "0.9.0"),
        ("0.8.0", ["--rollout.batch_size", "8", "--train.batch_size", "8"], "0.11.0"),
    ],
)
def test_a_version_that_the_command_contradicts(tmp_path: Path, version: str, arguments: list[str], name: str) -> None:
    """It is refused, with an option that shows it, and the release that has the command's options is named."""
    with pytest.raises(RaydebugError, match=f"is not for openrlhf {version}") as failure:
        debug(tmp_path, *arguments, version=version)
    assert f"--verl {name} ..." in failure.value.fix


def test_an_option_whose_variable_is_empty(tmp_path: Path) -> None:
    """A number that is missing is said to be missing."""
    with pytest.raises(RaydebugError, match=r"n_samples_per_prompt has no value"):
        debug(tmp_path, "--rollout.n_samples_per_prompt", "--rollout.batch_size", "8")


@pytest.mark.parametrize("version", PUBLISHED)
def test_debug_in_every_release(tmp_path: Path, version: str) -> None:
    """The profile writes options that the release has; switches have no value, and are removed to turn them off."""
    resume = "ckpt.load_enable" if "." in next(iter(PUBLISHED[version])) else "load_checkpoint"
    applied = debug(tmp_path, f"--{resume}", version=version)
    options = Options(applied.argv[3:], [])
    assert set(options.set_keys()) <= set(PUBLISHED[version])
    assert options.get(resume) is None
    assert {change.setting for change in applied.settings.changes} >= {"train_batch_size", "eager_rollout", "resume"}
    assert applied.as_json()["openrlhf"] == version


SOURCE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rollout.batch_size", type=int, default=1024)
parser.add_argument("--data.max_samples", type=int, default=int(1e8))
parser.add_argument("--vllm.enforce_eager", action="store_true")
parser.add_argument("--logger.run_name", default="ppo_%s" % now())
for prefix in ("actor", "critic"):
    parser.add_argument(f"--{prefix}.adam.lr", type=float, default=1e-6 if prefix == "actor" else 9e-6)
raise SystemExit("it is not run")
"""


def test_options_of_its_source(tmp_path: Path) -> None:
    """Options and literal defaults are read from the program's source, which is not run; a loop over names is read."""
    file = tmp_path / "openrlhf" / "cli" / "train_ppo_ray.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    assert declared_defaults(file) == {
        "rollout.batch_size": 1024,
        "data.max_samples": 100_000_000,
        "vllm.enforce_eager": False,
        "logger.run_name": None,
        "actor.adam.lr": None,
        "critic.adam.lr": None,
    }
    argv = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--actor.adam.lr", "1e-6"]
    program = recognise(argv)
    read = OPENRLHF.read_config(program, argv, folder=tmp_path, search=[""])
    assert read.values["rollout.batch_size"] == 1024


def test_a_misspelt_option(tmp_path: Path) -> None:
    """An option that its parser lacks and that is nearly one of its own is refused with the right one."""
    file = tmp_path / "openrlhf" / "cli" / "train_ppo_ray.py"
    file.parent.mkdir(parents=True)
    options = PUBLISHED["0.11.0"].items()
    file.write_text("".join(f"parser.add_argument('--{name}', default={value!r})\n" for name, value in options))
    argv = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--rollout.batchsize", "8"]
    with pytest.raises(RaydebugError, match=r"has no setting 'rollout\.batchsize'") as refused:
        apply_profile(argv, profile="debug", environ={}, folder=tmp_path, search=[""])
    assert "rollout.batch_size" in refused.value.cause


@pytest.mark.parametrize("tail", [["--a", "1", "--b", "--c=2"], ["--c=2", "--b", "--a", "1"]])
def test_arguments(tail: list[str]) -> None:
    """Values, switches and `=` are read; a change stays at its place, a removal takes the value too."""
    options = Options([*tail, "--a", "3"], [])
    assert [options.get(name) for name in ("a", "b", "c", "d")] == ["3", "true", "2", None]
    options.replace("a", "4", added=False)
    options.replace("b", "false", added=False)
    options.replace("d", "true", added=False)
    assert sorted(options.arguments) == sorted(["--a", "4", "--c=2", "--d"])


# Source: the lines of OpenRLHF 0.11.0 that trainers/openrlhf names, after the prefixes of Ray
# and its logger.
LOG = """\
2026-11-21 19:36:50,665 INFO worker.py:2029 -- Connected to Ray cluster. View the dashboard
(PolicyModelActor pid=2) Actor(
(LLMRayActor pid=3) init_process_group: master_address=10.0.0.1, master_port=4242,  rank=1, world_size=2
(PPOTrainer pid=4) Episode [1/1]:   0%|          | 0/2 [00:00<?, ?it/s]
(PPOTrainer pid=4) INFO 11-21 19:38:00 ppo_trainer.py:547] \N{SPARKLES} Global step 1: \
{'policy_loss': -0.25, 'kl': 1e-05, \
'timing/ppo_train': 2.5, 'timing/step_total': 9.5, 'other': 'x'}
(PPOTrainer pid=4) INFO 11-21 19:38:09 ppo_trainer.py:547] \N{SPARKLES} Global step 2: {'policy_loss': nan, \
'timing/step_total': 8.0}
""".splitlines()


def test_its_log_is_phases_and_steps() -> None:
    """Its log lines end phases and report steps with their metrics and their duration."""
    phases = Phases(100.0)
    for at, line in enumerate(LOG):
        phases.take(line, 110.0 + 10 * at)
    assert [span.name for span in phases.spans(None)] == [
        *("driver: imports, Ray", "workers: start, model load", "vLLM: engines, weight groups"),
        *("trainer: data, DeepSpeed", "first step", "training"),
    ]
    assert [(step["step"], step["seconds"]) for step in phases.steps] == [(1, 9.5), (2, 8.0)]
    assert phases.steps[0]["metrics"] == {
        "policy_loss": -0.25, "kl": 1e-05, "timing/ppo_train": 2.5, "timing/step_total": 9.5,
    }  # fmt: skip
    assert str(phases.steps[1]["metrics"]["policy_loss"]) == "nan"


def test_a_step_without_its_duration() -> None:
    """A step whose line has no duration lasts from the end of the phase before it, or of the step before it."""
    phases = Phases(100.0)
    for at, line in enumerate(LOG):
        phases.take(line.replace("timing/step_total", "other"), 110.0 + 10 * at)
    assert [(step["step"], step["seconds"]) for step in phases.steps] == [(1, 10.0), (2, 10.0)]


def test_paths_are_written_as_the_trainer_reads_them() -> None:
    """Where Hydra would read more into a path than text, verl gets it in quotes; argparse takes it as it is."""
    path = Path("/data/a b,c.parquet")
    assert VERL.parse([], []).quoted(path) == "'/data/a b,c.parquet'"
    assert OPENRLHF.parse([], []).quoted(path) == "/data/a b,c.parquet"


def test_only_hydra_sweeps() -> None:
    """Several values of a key are a sweep for verl with --multirun; OpenRLHF has none."""
    assert VERL.parse(["-m", "a.b=1,2", "c=[1,2]"], []).swept_keys() == ["a.b"]
    assert VERL.parse(["a.b=1,2"], []).swept_keys() == []
    assert OPENRLHF.parse(["--a.b", "1,2"], []).swept_keys() == []
