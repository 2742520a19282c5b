"""slime: `train.py` and `train_async.py`, their batch rules and log lines, and what its source declares.

`keys.toml` has its options by version. Nothing of it is run or imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raydebug.trainers.argparse_trainer import ArgparseTrainer
from raydebug.trainers.trainer import Installed, Program

if TYPE_CHECKING:
    from raydebug.trainers.keys import ValueOf
    from raydebug.trainers.settings import Settings
    from raydebug.trainers.trainer import StepMetrics

_UPDATES_ONLY = {"--debug-train-only", "--load-debug-rollout-data"}
_PARALLEL = ("train_tensor_parallel", "train_pipeline_parallel", "train_context_parallel")
_NO_GRAPHS = {"sglang": "sglang-disable-cuda-graph", "vllm": "vllm-enforce-eager"}
_VERSION = re.compile(r"""^\s*version=["'](?P<version>[\w.]+)["']""", re.MULTILINE)


class Slime(ArgparseTrainer):
    """slime 0.1 to 0.3 and its forks: training by Megatron, rollouts by SGLang or vLLM, both on GPUs."""

    name = "slime"
    modules = "train.py of slime"
    example = "python train.py --actor-num-nodes 1 --hf-checkpoint MODEL --rollout-batch-size 32"
    keys_file = Path(__file__).with_name("keys.toml")
    signs = frozenset((
        *("--actor-num-nodes", "--actor-num-gpus-per-node", "--rollout-num-gpus", "--rollout-num-gpus-per-engine"),
        *("--rollout-batch-size", "--n-samples-per-prompt", "--num-rollout", "--rollout-max-response-len"),
        *("--hf-checkpoint", "--ref-load", "--rm-type", "--prompt-data", "--rollout-function-path"),
    ))  # fmt: skip
    of_others = ("sglang-", "vllm-", "router-")  # the engine and its router read them
    # Its model for the engine and the tokenizer, and its data. Source: slime 0.3.1 utils/arguments.py:307, :645, :659.
    files: Mapping[str, tuple[str, ...]] = {
        "model": ("hf-checkpoint",),
        "train_data": ("prompt-data",),
        "prompt_column": ("input-key",),
    }

    def program_with(self, options: set[str]) -> str:
        return "slime_updates" if options & _UPDATES_ONLY else "slime"

    def read_config(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
        """Read the version and the options with their defaults from the source beside the program, or in `search`."""
        from raydebug.settings.flavours import installed_version
        from raydebug.trainers.config import find_program_file, is_file

        file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
        if file is None:
            return Installed(None, None, f"{argv[program.arguments_at - 1]} is not here")
        try:
            name = _package_of(file)
            places = (file.parent, *(folder / place for place in search))
            package = next((it / name for it in places if is_file(it / name / "utils" / "arguments.py")), None)
            if package is None:
                return Installed(installed_version(name) if name == self.name else None, None, f"no {name} is here")
            return Installed(_stated_version(package), self._read_options(file, package))
        except (OSError, SyntaxError, ValueError) as failure:
            return Installed(None, None, str(failure))

    def _read_options(self, program: Path, package: Path) -> dict[str, object]:
        """Return each option with its default, as the package's files and the program itself add them to argparse.

        Raises:
            OSError, SyntaxError, ValueError: a file cannot be read or is no Python.
        """
        from raydebug.trainers.options import declared_defaults

        options: dict[str, object] = {}
        for file in (package / "utils" / "arguments.py", *sorted(package.glob("backends/*/arguments.py")), program):
            options |= declared_defaults(file)
        for key in self.keys("slime")["0.3.0"].values():
            if key.read_anyway:
                options.setdefault(key.path, key.default)
        for engine, option in _NO_GRAPHS.items():  # its options are added by code of the engine
            if (package / "backends" / f"{engine}_utils").is_dir():
                options.setdefault(option, False)
        return options

    def in_use(self, part: str, value_of: ValueOf) -> bool:
        return value_of(part) is not None  # load, save: paths

    def fit_batches(self, program: str, settings: Settings) -> None:
        """Make one update of each reduced rollout, whose samples divide by the data-parallel ranks.

        Expert parallelism uses the data-parallel ranks, and changes nothing here.
        Source: slime 0.3.1 utils/arguments.py (global_batch_size), utils/dp_schedule.py:138-176; Megatron-LM
        core_v0.15.0 core/num_microbatches_calculator.py:479 (micro batch times data-parallel ranks).
        """
        words = ("train_batch_size", "rollouts_per_prompt", "mini_batch_size")
        if not any(settings.is_changed(word) for word in words):
            return
        gpus = (settings.whole("gpus_per_node") or 1) * (settings.whole("nodes") or 1)
        for word in _PARALLEL:
            gpus //= settings.whole(word) or 1
        ranks, micro = max(gpus, 1), settings.whole("micro_batch_size") or 1
        rollouts, batch = settings.whole("rollouts_per_prompt") or 1, settings.whole("train_batch_size") or 1
        unit = ranks * micro
        fitting = next(n for n in range(batch, batch + unit) if n * rollouts % unit == 0)
        if fitting != batch:
            why = f"its samples are a multiple of the {ranks} data-parallel ranks"
            settings.change("train_batch_size", str(fitting), why + (f" by {micro}" if micro > 1 else ""))
        samples = fitting * rollouts
        if samples != settings.whole("mini_batch_size"):
            settings.change("mini_batch_size", str(samples), f"all {samples} samples of a rollout")

    def step_of(self, line: str) -> StepMetrics | None:
        """Return the step of a line; slime counts from 0, and a run's record from 1."""
        step = super().step_of(line)
        return None if step is None else {**step, "step": step["step"] + 1}


def _package_of(program: Path) -> str:
    """Return the package whose `utils.arguments` a program imports: slime, or a fork's name.

    Raises:
        OSError, SyntaxError, ValueError: the file cannot be read or is no Python.
    """
    import ast

    for node in ast.walk(ast.parse(program.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".utils.arguments"):
            return str(node.module).partition(".")[0]
    return "slime"


def _stated_version(package: Path) -> str | None:
    """Return the version that setup.py beside slime's package states; None for a fork, which counts its own."""
    try:
        found = _VERSION.search((package.parent / "setup.py").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found["version"] if found and package.name == "slime" else None


SLIME = Slime()
