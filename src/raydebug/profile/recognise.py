"""Tell a training command from any other; asked at the start of every Python of a job, so it costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A trainer's module, and the name that `keys` knows it by.
TRAINERS = {"verl.trainer.main_ppo": "ppo"}
# Options of the interpreter that take the next argument. Source: python --help, CPython 3.11 and 3.12.
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}


@dataclass(frozen=True)
class Trainer:
    """A training command that was recognised.

    Args:
        name: what `keys` calls it.
        module: the module that runs.
        overrides_at: where in argv its own arguments begin.
    """

    name: str
    module: str
    overrides_at: int


def recognise(argv: Sequence[str]) -> Trainer | None:
    """Return which trainer a command runs; None when it is no trainer that we know.

    Args:
        argv: the whole command, as `sys.orig_argv` has it: interpreter, its options, -m MODULE or a file, arguments.
    """
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        option = argv[at]
        if option == "-m":
            return _trainer(argv[at + 1], at + 2) if at + 1 < len(argv) else None
        if option in ("-c", "-"):
            return None
        if option.startswith("-m"):
            return _trainer(option[2:], at + 1)
        at += 2 if option in _WITH_VALUE else 1
    if at < len(argv) and argv[at].endswith(".py"):
        # A file by its path: `python .../verl/trainer/main_ppo.py`.
        path = argv[at].removesuffix(".py").replace("/", ".")
        module = next((name for name in TRAINERS if f".{path}".endswith(f".{name}")), "")
        return _trainer(module, at + 1)
    return None


def _trainer(module: str, overrides_at: int) -> Trainer | None:
    name = TRAINERS.get(module)
    return Trainer(name, module, overrides_at) if name else None
