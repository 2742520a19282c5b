"""The Hydra overrides of a command by key, and torchrun's options; unchanged arguments stay as they were written."""

from __future__ import annotations

from collections.abc import Iterator


class Overrides:
    """The arguments of a training. The last override of a key wins, as in Hydra.

    Args:
        arguments: the trainer's own: Hydra overrides and Hydra's options.
        launcher: torchrun's options.
    """

    def __init__(self, arguments: list[str], launcher: list[str] | None = None) -> None:
        self.arguments = arguments
        self.launcher = launcher or []

    def set_keys(self) -> Iterator[str]:
        """Yield the key of each override that sets a key without adding it."""
        for argument in self.arguments:
            key = key_of(argument)
            if key is not None and not argument.startswith("+"):
                yield key

    def get(self, path: str) -> str | None:
        """Return the value of a key or of an option of torchrun; None if the command does not give it."""
        if path.startswith("--"):
            found = self._option(path)
            return None if found is None else found[1]
        said = [argument.partition("=")[2] for argument in self.arguments if key_of(argument) == path]
        return said[-1] if said else None

    def replace(self, path: str, value: str | None, *, added: bool) -> None:
        """Set a key or an option of torchrun, or remove it.

        Args:
            path: the key; `--nproc_per_node` for an option.
            value: None removes it.
            added: whether the key is not in the config, so that Hydra needs `++`.
        """
        if path.startswith("--"):
            while (found := self._option(path)) is not None:
                at, _, length = found
                del self.launcher[at : at + length]
            if value is not None:
                self.launcher.insert(0, f"{path}={value}")
            return
        overrides = [at for at, argument in enumerate(self.arguments) if _is_override(argument)]
        end = overrides[-1] + 1 if overrides else 0
        kept = [argument for argument in self.arguments[:end] if key_of(argument) != path]
        if value is not None:
            # "++" sets a key whether or not the config has it. Source: Hydra 1.3, override grammar. Overrides stay
            # together: Hydra's argparse accepts none after `a=b --cfg job`.
            kept.append(f"{'++' if added else ''}{path}={value}")
        self.arguments[:] = [*kept, *self.arguments[end:]]

    def option(self, *names: str) -> str | None:
        """Return the value of one of Hydra's own options, such as `--config-name`; None if it is not given."""
        for at, argument in enumerate(self.arguments):
            name, sign, value = argument.partition("=")
            if name in names:
                return value if sign else next(iter(self.arguments[at + 1 :]), None)
        return None

    def _option(self, name: str) -> tuple[int, str, int] | None:
        """Return the index of an option of torchrun, its value, and the number of arguments of the two."""
        for at, argument in enumerate(self.launcher):
            said, sign, value = argument.partition("=")
            if said.startswith("--") and said.replace("-", "_") == name.replace("-", "_"):
                return (at, value, 1) if sign else (at, next(iter(self.launcher[at + 1 :]), ""), 2)
        return None


def _is_override(argument: str) -> bool:
    return key_of(argument) is not None or argument.startswith("~")


def key_of(argument: str) -> str | None:
    """Return the key of an override; None for an option, and for a deletion (`~key`)."""
    key, sign, _ = argument.partition("=")
    return key.lstrip("+") if sign and not argument.startswith(("-", "~")) else None
