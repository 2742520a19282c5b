"""slime: its commands, the profiles over them, and its log, against its published options and scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydebug.commands.trainings import find_trainings
from raydebug.errors import RaydebugError
from raydebug.jobs.phases import Phases
from raydebug.profile.apply_profile import AppliedProfile, apply_profile
from raydebug.trainers.options import Options, declared_defaults
from raydebug.trainers.registry import column_of, recognise
from raydebug.trainers.slime import SLIME

HERE = Path(__file__).parent
# The options of our words with their defaults, as `declared_defaults` reads them in slime/utils/arguments.py
# (github.com/THUDM/slime, tags v0.1.0, whose setup.py says 0.0.1, to v0.3.1). Megatron's own are not in it.
PUBLISHED: dict[str, dict[str, Any]] = json.loads((HERE / "slime_options.json").read_text(encoding="utf-8"))
# Ten scripts of three tags: the options that matter here, as our reader takes them from the script, paths shortened;
# what `debug` makes of them, with a look at each number.
SCRIPTS: list[dict[str, Any]] = json.loads((HERE / "slime_scripts.json").read_text(encoding="utf-8"))
SIGNS = ("--actor-num-nodes", "1", "--hf-checkpoint", "m", "--rollout-batch-size", "8")
SOURCE = """
def reset_arg(parser, name, **kwargs): ...
def add(parser):
    parser.add_argument("--rollout-batch-size", type=int, required=True)
    parser.add_argument("--num-rollout", type=int, default=None)
    parser.add_argument("--n-samples-per-prompt", type=int, default=1)
    parser.add_argument("--actor-num-nodes", type=int, default=1)
    parser.add_argument("--hf-checkpoint", type=str, default=None)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--offload-train", action=argparse.BooleanOptionalAction)
    reset_arg(parser, "--micro-batch-size", type=int, default=1)
raise SystemExit("it is not run")
"""


def apply(command: list[str], profile: str = "debug", version: str | None = "0.3.1", **more: Any) -> AppliedProfile:
    """Apply a profile to a command."""
    asked = {"environ": {}, "folder": Path("/nowhere"), "search": [], **more}
    return apply_profile(command, profile=profile, version=version, **asked)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: f"{script['release']}/{Path(script['script']).name}")
def test_debug_over_published_scripts(script: dict[str, Any]) -> None:
    """A published command becomes two small rollouts, whose samples divide by the data-parallel ranks."""
    applied = apply(script["argv"].split(), version=script["version"])
    assert {
        change.key: f"{change.old} -> {'(out)' if change.new is None else change.new}"
        for change in applied.settings.changes
    } == script["changes"]
    now = Options(applied.argv[2:], [])

    def number(name: str, default: int = 1) -> int:
        return int(now.get(name) or default)

    ranks = number("actor-num-nodes") * number("actor-num-gpus-per-node", 8)
    ranks //= number("tensor-model-parallel-size") * number("pipeline-model-parallel-size")
    ranks //= number("context-parallel-size")
    samples = number("rollout-batch-size") * number("n-samples-per-prompt")
    assert number("global-batch-size") == samples
    assert samples % (ranks * number("micro-batch-size")) == 0
    assert number("num-rollout") <= 2
    assert now.get("eval-interval") is now.get("save-interval") is None


@pytest.mark.parametrize("version", PUBLISHED)
def test_keys_are_published_options(version: str) -> None:
    """Every key of a release that is no option of Megatron or SGLang is one of its options, with its default."""
    found = column_of("slime", version)
    assert found is not None
    own = {key.path: key.default for key in found[1].values() if not key.read_anyway and not key.instead_of}
    assert own == {path: PUBLISHED[version].get(path, "missing") for path in own}


@pytest.mark.parametrize("program", ["train.py", "/root/slime/train_async.py", "train_multi_lora_async.py"])
def test_recognised_by_its_options(program: str) -> None:
    """A program of any name is slime's by three of its options; OpenRLHF's underscores are another trainer's."""
    found = recognise(["python3", program, *SIGNS])
    assert found is not None
    assert (found.trainer, found.name) == (SLIME, "slime")
    assert recognise(["python3", program, *SIGNS[:4]]) is None
    theirs = recognise(["python3", program, *(word.replace("-", "_").replace("__", "--") for word in SIGNS)])
    assert theirs is None or theirs.trainer is not SLIME
    updates = recognise(["python3", program, *SIGNS, "--debug-train-only"])
    assert updates is not None
    assert updates.name == "slime_updates"


def test_in_a_script(tmp_path: Path) -> None:
    """Bash arrays behind `ray job submit` are read; an option without a program is no training."""
    text = f"ARGS=(\n  {' '.join(SIGNS)}\n  # --save x\n)\n"
    text += 'ray job submit --address="http://a:1" \\\n   -- python3 train.py \\\n'
    (tmp_path / "train.sh").write_text(text + "   --colocate \\\n   ${ARGS[@]}\n")
    (found,) = find_trainings(["bash", "train.sh"], {}, tmp_path)
    assert found.argv == ["python3", "train.py", "--colocate", *SIGNS]
    (tmp_path / "broken.sh").write_text(text + f"   --colocate\n{' '.join(SIGNS)}\n")
    assert find_trainings(["bash", "broken.sh"], {}, tmp_path) == []


def checkout(folder: Path, package: str = "slime") -> Path:
    """Write a program and a package's options as slime has them, and return the folder."""
    (folder / package / "utils").mkdir(parents=True)
    (folder / package / "backends" / "sglang_utils").mkdir(parents=True)
    (folder / package / "utils" / "arguments.py").write_text(SOURCE)
    (folder / "train.py").write_text(f"from {package}.utils.arguments import parse_args\n")
    (folder / "setup.py").write_text('setup(\n    version="0.3.1",\n)\n')
    return folder


def test_options_of_its_source(tmp_path: Path) -> None:
    """Options and version are read from the source beside the program, which is not run; a fork has its own version."""
    argv = ["python3", "train.py", *SIGNS]
    program = recognise(argv)
    assert program is not None
    read = SLIME.read_config(program, argv, folder=checkout(tmp_path / "a"), search=[])
    assert read.version == "0.3.1"
    assert read.values is not None
    assert read.values["pipeline-model-parallel-size"] == 1  # Megatron's
    assert read.values.items() >= {
        "rollout-batch-size": None, "num-rollout": None, "n-samples-per-prompt": 1, "actor-num-nodes": 1,
        "hf-checkpoint": None, "lora-rank": 0, "offload-train": None, "micro-batch-size": 1,
        "sglang-disable-cuda-graph": False,
    }.items()  # fmt: skip
    fork = SLIME.read_config(program, argv, folder=checkout(tmp_path / "b", "miles"), search=[])
    assert (fork.version, fork.values) == (None, read.values)
    (tmp_path / "b" / "train.py").write_text("def")
    assert SLIME.read_config(program, argv, folder=tmp_path / "b", search=[]).values is None
    assert SLIME.read_config(program, argv, folder=tmp_path, search=[]).unread == "train.py is not here"
    assert declared_defaults(tmp_path / "a" / "slime" / "utils" / "arguments.py")["micro-batch-size"] == 1


@pytest.mark.parametrize("wrong", ["--num-rollouts", "--n-sample-per-prompt", "--rollout_batch_size"])
def test_a_misspelt_option(tmp_path: Path, wrong: str) -> None:
    """An option that slime would ignore, and that is nearly one of its own, is refused with both names."""
    with pytest.raises(RaydebugError, match=f"has no setting '{wrong[2:]}'") as refused:
        apply(["python3", "train.py", *SIGNS, wrong, "8"], version=None, folder=checkout(tmp_path))
    right = {"--num-rollouts": "num-rollout", "--n-sample-per-prompt": "n-samples-per-prompt"}
    assert refused.value.fix.startswith(f"write --{right.get(wrong, 'rollout-batch-size')}, or leave {wrong} out")


@pytest.mark.parametrize(
    "right", ["--q-lora-rank", "--num-layers", "--sglang-num-rollout", "--no-offload-train", "--num-roll"]
)
def test_options_of_others(tmp_path: Path, right: str) -> None:
    """Megatron's and SGLang's options pass, as do negations and the beginnings that argparse completes."""
    applied = apply(["python3", "train.py", *SIGNS, right, "8"], version=None, folder=checkout(tmp_path))
    assert right in applied.argv


def test_rollouts_and_updates_apart() -> None:
    """`rollout-only` keeps two rollouts for `train-only`; a fine-tuning has no rollouts, and keeps its own source."""
    command = ["python3", "train.py", *SIGNS, "--eval-interval", "5", "--dump-details", "d"]
    kept = Options(apply(command, "rollout-only").argv[2:], [])
    said = {name: kept.get(name) for name in ("debug-rollout-only", "num-rollout", "rollout-batch-size")}
    assert said == {"debug-rollout-only": "true", "num-rollout": "2", "rollout-batch-size": "8"}
    assert kept.get("eval-interval") is kept.get("dump-details") is None
    trained = Options(apply(command, "train-only").argv[2:], [])
    assert trained.get("load-debug-rollout-data") == kept.get("save-debug-rollout-data")
    assert trained.get("debug-train-only") == "true"
    own = [*command, "--load-debug-rollout-data", "mine_{rollout_id}.pt"]
    assert Options(apply(own, "train-only").argv[2:], []).get("load-debug-rollout-data") == "mine_{rollout_id}.pt"
    with pytest.raises(RaydebugError, match="'rollout-only' is not for train"):
        apply(own, "rollout-only")


@pytest.mark.parametrize("kind", ["model", "data"])
def test_nothing_tiny(kind: str) -> None:
    """A tiny model or tiny data are refused: Megatron's checkpoint and sizes would not fit."""
    with pytest.raises(RaydebugError, match=f"no tiny {kind} for train"):
        apply(["python3", "train.py", *SIGNS], tiny=[kind])


# Source: the lines of slime 0.3.1 that trainers/slime names, after Ray's prefix and its logger's.
LOG = """\
2026-11-21 19:36:50,665 INFO worker.py:2029 -- Connected to Ray cluster. View the dashboard
(RolloutManager pid=2) [2026-11-21 19:37:00] rollout.py:457 - import slime.rollout.sglang_rollout.generate_rollout \
as generate_rollout function.
(RolloutManager pid=2) Rollout generation:   0%|          | 0/8 [00:00<?, ?it/s]
(RolloutManager pid=2) [2026-11-21 19:38:00] rollout.py:1306 - perf 0: {'rollout/response_len/mean': 3.5}
(MegatronTrainRayActor pid=4) [2026-11-21 19:38:10] model.py:909 - critic-step 0: {'train/critic-loss': 0.5}
(MegatronTrainRayActor pid=4) [2026-11-21 19:38:20] model.py:909 - step 0: {'train/loss': 1e-05, \
'train/grad_norm': 0.25, 'train/step': 0}
(MegatronTrainRayActor pid=4) [2026-11-21 19:38:30] model.py:909 - step 1: {'train/loss': nan, 'train/step': 1}
""".splitlines()


def test_its_log_is_phases_and_steps() -> None:
    """Its log lines end phases and report the actor's steps, counted from 1."""
    phases = Phases(100.0)
    for at, line in enumerate(LOG):
        phases.take(line, 110.0 + 10 * at)
    assert [span.name for span in phases.spans(None)] == [
        "driver: imports, Ray", "slime: rollout manager, data", "slime: engines, model load", "slime: first rollout",
        "first step", "training",
    ]  # fmt: skip
    assert [(step["step"], step["seconds"]) for step in phases.steps] == [(1, 20.0), (2, 10.0)]
    assert phases.steps[0]["metrics"] == {"train/loss": 1e-05, "train/grad_norm": 0.25}
