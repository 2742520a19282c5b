"""Find the trainer's program that a command runs. Called at the start of every Python of a job, so it must be cheap."""

from __future__ import annotations

from collections.abc import Sequence

from raydebug.trainers.openrlhf.trainer import OPENRLHF
from raydebug.trainers.trainer import Program, Trainer
from raydebug.trainers.verl.trainer import VERL

TRAINERS: tuple[Trainer, ...] = (VERL, OPENRLHF)
# Options of the interpreter that take the next argument. Source: python --help, CPython 3.11 and 3.12.
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
# torchrun's options that take none; every other one does. Source: torch 2.13.0 distributed/run.py:425-721.
_WITHOUT_VALUE = {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")


def recognise(argv: Sequence[str]) -> Program | None:
    """Return the program that a command runs; None if it is no known training.

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
            return _launched(argv, at) if module in _TORCHRUN else _program(module, at)
        if option in ("-c", "-"):
            return None
        at += 2 if option in _WITH_VALUE else 1
    if at < len(argv) and _is_torchrun(argv[at]):
        return _launched(argv, at + 1)
    return _of_file(argv[at], at + 1) if at < len(argv) else None


def _is_torchrun(program: str) -> bool:
    return program == "torchrun" or program.endswith("/torchrun")


def _launched(argv: Sequence[str], launcher_at: int) -> Program | None:
    """Return the program that torchrun starts: the first argument that is neither an option nor an option's value."""
    at, by_module = launcher_at, False
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at].replace("_", "-")
        by_module = by_module or option in ("-m", "--module")
        at += 1 if option in _WITHOUT_VALUE or "=" in option else 2
    if at >= len(argv):
        return None
    return (_program if by_module else _of_file)(argv[at], at + 1, launcher_at)


def _of_file(path: str, arguments_at: int, launcher_at: int | None = None) -> Program | None:
    """Return the program of a file by its path: `python .../verl/trainer/main_ppo.py`."""
    if not path.endswith(".py"):
        return None
    module = ".".join(path.removesuffix(".py").split("/")[-3:])
    return _program(module, arguments_at, launcher_at)


def _program(module: str, arguments_at: int, launcher_at: int | None = None) -> Program | None:
    for trainer in TRAINERS:
        name = trainer.program_of(module)
        if name is not None:
            return Program(trainer, name, module, arguments_at, launcher_at)
    return None
