"""What a zygote imports, where from, and whether that is still what lies on the disk."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
from stat import S_ISDIR

from raydebug.worker import imports
from raydebug.zygotes import ray_config
from raydebug.zygotes.environment import Record

# What the processes of a training import, in this order; each that is not installed is left out.
MODULES = (
    "ray",
    "torch",
    "torch._dynamo",
    "transformers.models.qwen2.modeling_qwen2",
    "vllm",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.experimental.agent_loop",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
)
LEAVES = ("verl",)  # a job may have its own of these: nothing else above imports them
INSTALLED = ("site-packages", "dist-packages")

Stamp = tuple[int, int] | frozenset[str] | None
_STDLIB = tuple({os.path.realpath(sysconfig.get_paths()[name]) + "/" for name in ("stdlib", "platstdlib")})


def is_installed(path: str) -> bool:
    """Say whether a file belongs to an installed package or the standard library, not to a user's project."""
    return not {*INSTALLED}.isdisjoint(path.split("/")) or os.path.realpath(path).startswith(_STDLIB)


def stamp(path: str) -> Stamp:
    """Return by what a change shows: a file's time of change and size, a folder's names without Python's own cache."""
    try:
        found = os.stat(path)
        if S_ISDIR(found.st_mode):
            return frozenset(os.listdir(path)) - {"__pycache__"}
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class Loaded:
    """The modules that a zygote has loaded, with the state of their files.

    Args:
        modules: what to import.
        without: top-level packages to leave out, for the job has its own.
    """

    def __init__(self, modules: tuple[str, ...] = MODULES, without: tuple[str, ...] = ()) -> None:
        self.left_out: list[str] = []
        watcher = imports.watch_ahead()
        with Record() as record:
            for name in modules:
                self._load(name, without)
        sys.meta_path.remove(watcher)
        self.environment = record.facts()
        self._stamps = {path: stamp(path) for path in self._files()}

    def _load(self, name: str, without: tuple[str, ...]) -> None:
        top = name.partition(".")[0]
        try:
            spec = importlib.util.find_spec(top)
            if spec is None or spec.origin is None:
                return
            if top in without or not is_installed(spec.origin):
                self.left_out.append(f"{name}: the job's own is another one")
            elif name == "ray":
                ray_config.load_with_marks()
            else:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a package may fail in any way, SystemExit included
            self.left_out.append(f"{name}: {type(error).__name__}: {error}"[:200])

    @staticmethod
    def _files() -> set[str]:
        files = {p for p in sys.path if os.path.isabs(p)}  # a folder changes when something is installed
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and os.path.isabs(path):
                files.add(path)
        return files

    def changed(self) -> str | None:
        """Return a file that is not what it was when it was loaded, or None."""
        for path, known in self._stamps.items():
            if stamp(path) != known:
                return path
        return None

    def foreign(self) -> list[str]:
        """Return files of loaded modules that are a user's, which must not be kept."""
        return [p for p in self._stamps if os.path.isfile(p) and not is_installed(p)]


def tops() -> list[str]:
    """Return the names of the top-level modules that are loaded here, the standard library's left out."""
    return sorted(n for n in sys.modules if "." not in n and n not in sys.stdlib_module_names and n != "__main__")
