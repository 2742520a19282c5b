"""Programs that start a training: `env`, torchrun, accelerate, deepspeed, srun, mpirun. What of a command is theirs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from raydebug.trainers.trainer import Program

LAUNCHERS = ("accelerate", "deepspeed")
_OWN_LAUNCHERS = ("sft", "fsdp_sft")  # programs that torchrun starts once for each GPU
_COUNTS = {  # the options that say how often a launcher starts a program
    "torchrun": ("--nproc[-_]per[-_]node",), "accelerate": ("--num[-_]processes",), "deepspeed": ("--num_gpus",),
    "srun": ("--ntasks", "--ntasks-per-node", "-n"), "mpirun": ("-np", "-n", "--n"), "mpiexec": ("-np", "-n"),
}  # fmt: skip


def env_notes(prefix: Sequence[str]) -> set[str]:
    """Return what is odd about an `env` in a prefix of other programs."""
    behind = prefix[prefix.index("env") + 1 :] if "env" in prefix else []
    behind = [word for word in behind if "=" in word or word[:1] == "-"]
    if any(word[:1] == "-" and "=" in before for before, word in itertools.pairwise(behind)):
        return {"an option of `env` stands behind its variables, where it is taken for the program to run"}
    return set()


def copies_of(argv: list[str], program: Program) -> tuple[str, str] | None:
    """Return the launcher that starts a trainer several times, and how often; None for no such one.

    The number is empty where it is that of the GPUs.
    """
    if program.name in _OWN_LAUNCHERS:
        return None
    command = argv[: argv.index(program.module)] if program.module in argv else argv
    for at, word in enumerate(command):
        name = "torchrun" if word in ("torch.distributed.run", "torch.distributed.launch") else Path(word).name
        if name not in _COUNTS:
            continue
        options = " ".join(command[at:])
        count = re.search(rf"(?:^| )(?:{'|'.join(_COUNTS[name])})[= ]?(\d+|gpu|auto)\b", options)
        if (count and count[1] != "1") or (not count and name in ("accelerate", "deepspeed")):
            return name, count[1] if count and count[1].isdigit() else ""
    return None


def starts_in(argv: list[str]) -> Iterator[list[str]]:
    """Yield a command from each word on that may be its interpreter or launcher."""
    for at, word in enumerate(argv):
        name = Path(word).name
        if name.startswith("python") or name == "torchrun":
            yield argv[at:]
        elif name in LAUNCHERS:  # as Python starts the program in the end
            yield from _launched(argv[at + 1 :])
    if "-m" in argv:  # an interpreter of another name, or whose name could not be read
        at = argv.index("-m")
        yield [argv[0] if at == 1 and "$" not in argv[0] else "python", *argv[at:]]


def _launched(arguments: list[str]) -> Iterator[list[str]]:
    """Yield the Python commands that `accelerate launch` or `deepspeed` makes of its arguments."""
    for at, word in enumerate(arguments):
        if word in ("-m", "--module"):
            yield ["python", *("-m", *arguments[at + 1 :])]
        elif word.endswith(".py"):
            yield ["python", *arguments[at:]]


def environ_of(prefix: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command behind a prefix: changed as `env` does (GNU coreutils 9), if it is in it.

    >>> environ_of(["nohup", "env", "-uB", "-u", "C", "A=1"], {"B": "2", "C": "3", "D": "4"})
    {'D': '4', 'A': '1'}
    """
    changed = dict(environ)
    at = next((at + 1 for at, word in enumerate(prefix) if Path(word).name == "env"), len(prefix))
    words = iter(prefix[at:])
    for word in words:
        name, sign, value = word.partition("=")
        if word in ("-i", "-", "--ignore-environment"):
            changed.clear()
        elif word == "-u" or name == "--unset":
            changed.pop(value if sign else next(words, ""), None)
        elif word.startswith("-u"):
            changed.pop(word[2:], None)
        elif sign and name.isidentifier():
            changed[name] = value
    return changed
