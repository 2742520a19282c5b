"""Hooks into modules as they are imported: Ray's debugger pauses here, torch stays out of it, processes dial in."""

from __future__ import annotations

import os
import sys

# importlib.machinery has them from here, and is 0.5 ms of files that no interpreter has loaded yet.
from _frozen_importlib_external import PathFinder, SourceFileLoader

import raydebug
from raydebug import worker
from raydebug.protocol import variables

TYPE_CHECKING = False  # as in startup.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any


class _Finder:
    """A meta path finder for the hooked modules only; every other import costs one dictionary look-up."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks = hooks

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _HookedLoader(fullname, spec.origin, self._hooks[fullname])
        return spec


class _HookedLoader(SourceFileLoader):
    """Loads a module as usual, then calls our hook with it."""

    def __init__(self, fullname: str, path: str, hook: Callable[[ModuleType], None]) -> None:
        super().__init__(fullname, path)
        self._hook = hook

    def exec_module(self, module: ModuleType) -> None:
        hook = sys.breakpointhook
        super().exec_module(module)
        sys.breakpointhook = hook  # debugpy puts its own in place
        if self.name in _UNGUARDED:
            self._hook(module)
            return
        with worker.fork_guard:  # it imports more of our code
            self._hook(module)


class _Hook:
    """A function of worker/, which is imported when the hooked module is there.

    Args:
        place: `module:function`; it gets the hooked module.
        what: of ours the process lacks if it fails: the job runs without.
        needs: the variable that must be set, and not to 0.
    """

    def __init__(self, place: str, what: str, needs: str = "") -> None:
        self._place, self._what, self._needs = place, what, needs

    def __call__(self, module: ModuleType) -> None:
        if not self._needs or os.environ.get(self._needs, "0") not in ("", "0"):
            name, _, function = self._place.partition(":")
            with worker.harmless(f"no {self._what} in this process"):
                getattr(__import__(f"raydebug.worker.{name}", fromlist=(function,)), function)(module)


def watch_threads(module: ModuleType) -> None:
    """Pause a thread that an exception ends, as the main thread is paused."""
    previous = module.excepthook

    def excepthook(arguments: Any) -> None:
        if arguments.exc_value is not None:
            note_uncaught(arguments.exc_value, arguments.exc_traceback)
        previous(arguments)

    worker.replace(module, "excepthook", excepthook)


def note_uncaught(error: BaseException, trace: TracebackType | None) -> None:
    """Send a snapshot of an error that ends a thread or the program, and pause. Raises nothing of ours."""
    _note_crash(error)
    with worker.harmless("no pause at this error"):
        if worker.debugger_is_ours() and os.environ.get(variables.RAY_DEBUG_POST_MORTEM, "0") == "1":
            with worker.fork_guard:
                from raydebug.worker import pause
            pause.pause_on_error(type(error), error, trace)


def _note_crash(error: BaseException | None) -> None:
    with worker.harmless("no snapshot of this crash"):  # our import may find no free file descriptor
        # It belongs to a job, whatever its debugger mode.
        is_wanted = variables.JOB in os.environ and os.environ.get(variables.SNAPSHOTS) != "0"
        if is_wanted and error is not None:
            with worker.fork_guard:
                from raydebug.worker import crashes
            crashes.note_crash(error)


def _hook_children(module: ModuleType) -> None:
    # CPython 3.11 to 3.13 multiprocessing/process.py: `BaseProcess._bootstrap` prints the exception that ends a child
    # by traceback.print_exc, without sys.excepthook.
    import traceback

    bootstrap, print_exc = module.BaseProcess._bootstrap.__code__, traceback.print_exc

    def print_exc_of_child(*args: Any, **options: Any) -> None:
        if sys._getframe(1).f_code is bootstrap:
            _note_crash(sys.exc_info()[1])
        print_exc(*args, **options)

    worker.replace(traceback, "print_exc", print_exc_of_child)


def _hook_rpdb(module: ModuleType) -> None:
    # Ray 2.41 to 2.60 _raylet.pyx, `store_task_errors`: it is asked in the `except` block of every failed task.
    asked = getattr(module, "_is_ray_debugger_post_mortem_enabled", None)

    def is_post_mortem_enabled() -> Any:
        _note_crash(sys.exc_info()[1])
        return asked() if asked is not None else False

    module._is_ray_debugger_post_mortem_enabled = is_post_mortem_enabled  # type: ignore[attr-defined]
    if os.environ.get(variables.RAY_DEBUG) == "legacy":
        _Hook("ray_debugger:hook_legacy", "stops of Ray's legacy debugger")(module)


def _hook_function_manager(module: ModuleType) -> None:
    _Hook("ray_debugger:hook_function_manager", "breakpoints in functions that arrive")(module)
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:  # a driver
        _Hook("script_exports:share_exports", "exports for workers", variables.JOB)(module)


def _hook_runtime_env(module: ModuleType) -> None:
    if variables.OPEN not in os.environ:
        _Hook("ray_debugger:hook_runtime_env", "hook for workers of another Python")(module)


_open_control_channel = _Hook("control_channel:open_channel", "control channel", variables.JOB)


def _hook_ray_debugger(module: ModuleType) -> None:
    _Hook("ray_debugger:replace_entry_points", "pauses at Ray's breakpoints")(module)
    _open_control_channel(module)


def _hook_torch(module: ModuleType) -> None:
    _open_control_channel(module)
    _Hook("gpu_history:watch", "record of GPU memory", variables.GPU_HISTORY)(module)


def _keep_out_of_graphs(module: ModuleType) -> None:
    with worker.harmless("torch.compile looks into breakpoints here"):
        from raydebug.worker import torch_hooks
        from raydebug.worker.breakpoints.runtime import Site

        torch_hooks.keep_out(module, (raydebug.breakpoint, Site.at, Site.is_due, Site.say))


def _watch_steps(module: ModuleType) -> None:
    from raydebug.worker import tripwires

    if module.__name__ in SPANS_IN:
        _watch_spans(module)
    with worker.harmless("no tripwires in this process"):
        tripwires.watch(module, _step_loggers()[module.__name__])


def _watch_spans(module: ModuleType) -> None:
    if variables.JOB in os.environ:
        from raydebug.worker import process_memory, spans

        with worker.harmless("no phases in this process"):
            spans.watch(module)
        if process_memory.note_peak not in spans.recorders:
            spans.recorders.append(process_memory.note_peak)
        if _spans_are_kept():
            spans.keep_phases()


def _watch_requests(module: ModuleType) -> None:
    if _spans_are_kept():
        _Hook("spans:watch_requests", "spans of requests")(module)


def _offer_replay(_module: ModuleType) -> None:
    if os.environ.get(variables.ROLLOUTS, "").startswith("replay:"):
        import raydebug.trainers.verl.replay  # noqa: F401 - importing registers its trainer beside verl's own


def _patch(module: ModuleType) -> None:
    if variables.PATCHES in os.environ:
        from raydebug.trainers.verl import patches

        with worker.harmless("no patches in this process"):
            patches.patch(module, os.environ)


def _spans_are_kept() -> bool:
    return variables.JOB in os.environ and os.environ.get(variables.SPANS) != "0"


def _step_loggers() -> dict[str, str]:
    """Return the function of each module that logs the metrics of a step; empty without --stop-when."""
    return dict(place.split(":", 1) for place in os.environ.get(variables.STEP_LOGGERS, "").split())


SPANS_IN = ("verl.utils.profiler.performance", "verl.utils.debug.performance", "verl.utils.tracking",
            "verl.trainer.ppo.ray_trainer")  # fmt: skip
"""The modules of verl 0.4 to 0.9 that spans.py watches."""


# Source: ray 2.60.0 util/rpdb.py:298 and 343 call `ray.util.debugpy.set_trace` and `_post_mortem`.
# torch: what a child of a training process (vLLM's engine, a data loader's worker) imports; it takes seconds anyway.
_ON_LOAD: dict[str, Callable[[ModuleType], None]] = {
    "code": _Hook("stdin_debuggers:hook_console", "pause in code"),
    "debugpy._vendored.force_pydevd": lambda _module: None,  # it must only not replace breakpoint(): _HookedLoader
    "IPython.terminal.embed": _Hook("stdin_debuggers:hook_ipython", "pause in IPython.embed"),
    "pdb": _Hook("stdin_debuggers:hook_pdb", "pause in pdb"),
    "ray.util.debugpy": _hook_ray_debugger,
    "ray.util.rpdb": _hook_rpdb,
    "ray._private.function_manager": _hook_function_manager,
    "ray._private.runtime_env.context": _hook_runtime_env,
    "multiprocessing.process": _hook_children,
    "threading": watch_threads,
    "torch": _hook_torch,
    "torch._dynamo.trace_rules": _keep_out_of_graphs,
    "torch.distributed.distributed_c10d": _Hook("torch_hooks:widen_groups", "longer timeouts", variables.GROUP_TIMEOUT),
    "torch.optim.optimizer": _Hook("nonfinite:watch_trainers", "tripwires", variables.STOP_ON),
    "vllm.v1.engine.async_llm": _watch_requests,
    "verl.trainer.ppo.v1.trainer_sync": _offer_replay,
    "verl.utils.tensordict_utils": _patch,
    "vllm.model_executor.models.vision": _patch,
}
# debugpy imports these, and who holds the guard may be waiting for that import.
_UNGUARDED = ("code", "pdb", "debugpy._vendored.force_pydevd")


def _hooks() -> dict[str, Callable[[ModuleType], None]]:
    return {**_ON_LOAD, **dict.fromkeys(SPANS_IN, _watch_spans), **dict.fromkeys(_step_loggers(), _watch_steps)}


def install() -> None:
    """Install the finder and, if there are breakpoints from outside, the loader that compiles them in."""
    if "threading" in sys.modules:
        watch_threads(sys.modules["threading"])
    sys.meta_path.insert(0, _Finder(_hooks()))
    if os.environ.get(variables.BREAKS):
        from raydebug.worker.breakpoints import registry

        registry.add_from_environment()


def install_before_fork() -> _Finder:
    """Install the hooks that must be in place before other modules bind a module's names, in a process to fork from."""
    from raydebug.worker import torch_hooks

    finder = _Finder({"torch.distributed.distributed_c10d": torch_hooks.widen_groups})
    sys.meta_path.insert(0, finder)
    return finder


def catch_up() -> None:
    """Call the hooks of modules that a forked process had loaded before its start."""
    for name, hook in _hooks().items():
        if name != "threading" and name in sys.modules:
            hook(sys.modules[name])
    if os.environ.get(variables.BREAKS):
        from raydebug.worker.breakpoints import registry

        registry.build_in_pending()
