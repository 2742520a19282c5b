"""Tell a training command from any other; asked at the start of every Python of a job, so it costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The modules of verl's package `trainer` that train or generate, and the name that `keys` knows each by.
TRAINERS = {
    "main_ppo": "ppo",
    "main_ppo_sync": "ppo",
    "sft_trainer": "sft",
    "sft_trainer_ray": "sft_ray",
    "fsdp_sft_trainer": "fsdp_sft",
    "main_generation": "generation",
    "main_generation_server": "generation_server",
}
# Options of the interpreter that take the next argument. Source: python --help, CPython 3.11 and 3.12.
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
# torchrun's options that take none; every other one does. Source: torch 2.13.0 distributed/run.py:425-721.
_WITHOUT_VALUE = {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True)
class Trainer:
    """A training command that was recognised.

    Args:
        name: what `keys` calls it.
        module: the module that runs; of a fork too, such as `verl_arpo.trainer.main_ppo`.
        overrides_at: where in argv its own arguments begin.
        launcher_at: where in argv torchrun's own options begin; None without torchrun.
    """

    name: str
    module: str
    overrides_at: int
    launcher_at: int | None = None


def recognise(argv: Sequence[str]) -> Trainer | None:
    """Return which trainer a command runs; None when it is no trainer that we know.

    Args:
        argv: the whole command, as `sys.orig_argv` has it: interpreter, its options, -m MODULE or a file, arguments;
            or torchrun and its options in place of the interpreter.
    """
    if argv and _is_torchrun(argv[0]):
        return _launched(argv, 1)
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at]
        if option.startswith("-m"):
            module = option[2:] or (argv[at + 1] if at + 1 < len(argv) else "")
            at += 1 if option[2:] else 2
            return _launched(argv, at) if module in _TORCHRUN else _trainer(module, at)
        if option in ("-c", "-"):
            return None
        at += 2 if option in _WITH_VALUE else 1
    if at < len(argv) and _is_torchrun(argv[at]):
        return _launched(argv, at + 1)
    return _of_file(argv[at], at + 1) if at < len(argv) else None


def _is_torchrun(program: str) -> bool:
    return program == "torchrun" or program.endswith("/torchrun")


def _launched(argv: Sequence[str], launcher_at: int) -> Trainer | None:
    """Return the trainer that torchrun starts: the first argument that is neither an option nor an option's value."""
    at, by_module = launcher_at, False
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at].replace("_", "-")
        by_module = by_module or option in ("-m", "--module")
        at += 1 if option in _WITHOUT_VALUE or "=" in option else 2
    if at >= len(argv):
        return None
    return (_trainer if by_module else _of_file)(argv[at], at + 1, launcher_at)


def _of_file(path: str, overrides_at: int, launcher_at: int | None = None) -> Trainer | None:
    """Return the trainer of a file by its path: `python .../verl/trainer/main_ppo.py`."""
    if not path.endswith(".py"):
        return None
    module = ".".join(path.removesuffix(".py").split("/")[-3:])
    return _trainer(module, overrides_at, launcher_at)


def _trainer(module: str, overrides_at: int, launcher_at: int | None = None) -> Trainer | None:
    package, _, rest = module.rpartition(".trainer.")
    # verl itself, vendored below another package, or a fork with verl in its name: verl_arpo, open_verl.
    if rest in TRAINERS and "verl" in package.rpartition(".")[2].split("_"):
        return Trainer(TRAINERS[rest], module, overrides_at, launcher_at)
    return None
