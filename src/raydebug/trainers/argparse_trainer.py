"""A trainer whose options argparse reads: `--name VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raydebug.trainers.trainer import Installed, Program, Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from raydebug.trainers.options import Options

SIGNS_LEAST = 3


class ArgparseTrainer(Trainer):
    """A trainer whose command is recognised by its options: its program may have any name, and a fork any module.

    Attributes:
        signs: options of its training with Ray, in every release and fork.
        of_others: how options begin that another library reads from the same command.
    """

    signs: frozenset[str]
    of_others: tuple[str, ...] = ()

    def program_of_arguments(self, module: str, arguments: Sequence[str]) -> str | None:
        names = {argument.partition("=")[0] for argument in arguments}
        return self.program_with(names) if len(names & self.signs) >= SIGNS_LEAST else None

    def program_with(self, options: set[str]) -> str:
        """Return the name of the program that these options ask for."""
        return self.programs()[0]

    def may_take(self, arguments: Sequence[str]) -> bool:
        return any(argument.partition("=")[0] in self.signs for argument in arguments)

    def read_config(self, program: Program, argv: Sequence[str], *, folder: Path, search: Sequence[str]) -> Installed:
        """Read the version from its metadata and the options with their defaults from its source."""
        from raydebug.settings.flavours import installed_version
        from raydebug.trainers.config import find_program_file
        from raydebug.trainers.options import declared_defaults

        version = installed_version(self.name)
        file = find_program_file(program.module, argv[program.arguments_at - 1], folder, search)
        if file is None:
            return Installed(version, None, f"{program.module} is not installed here")
        try:
            return Installed(version, declared_defaults(file))
        except (OSError, SyntaxError, ValueError) as failure:
            return Installed(version, None, str(failure))

    def parse(self, arguments: Sequence[str], launcher: Sequence[str]) -> Options:
        from raydebug.trainers.options import Options

        return Options(list(arguments), list(launcher), self.of_others)
