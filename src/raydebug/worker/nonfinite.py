"""`run --stop-on nonfinite`: pause a process that trains at the first module whose output or gradient is not finite.

A global forward hook of torch checks the outputs of each module, and a hook on each output tensor checks its gradient.
A full backward hook is not used: it turns outputs into views, on which in-place operations (ReLU(inplace=True)) fail.
"""

from __future__ import annotations

import functools
import gc
import linecache
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from raydebug import worker
from raydebug.protocol.records import TripwireRecord
from raydebug.worker import pause, records

MAX_DEPTH = 3  # of tuples, lists and dicts in an output
NOT_WATCHED = ("vllm", "sglang")  # packages of inference engines, which may run in a process that trains
# Names that wrappers add to the path of a module. Source: torch 2.11 and 2.13 FSDP1, checkpoint_wrapper, torch.compile.
WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
SHOWN_AS = "<raydebug run --stop-on nonfinite>"

_handle: Any = None  # of the forward hook, once a process trains
_has_stopped = False


def watch_trainers(module: ModuleType) -> None:
    """Watch all modules of a process from the moment when it creates an optimizer; inference engines create none.

    The module is torch.optim.optimizer, just imported.
    """
    original = module.Optimizer.__init__

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        _watch_modules()

    module.Optimizer.__init__ = make


def _watch_modules() -> None:
    global _handle
    if _handle is None and worker.debugger_is_ours():
        import torch

        hooks: tuple[Any, ...] = (_check_output, _check_gradient)
        for hook in hooks:
            hook._torchdynamo_disable = True  # as in torch_hooks.keep_out
        _handle = torch.nn.modules.module.register_module_forward_hook(_check_output)


def _check_output(module: Any, inputs: Any, output: Any) -> None:
    if _has_stopped or type(module).__module__.partition(".")[0] in NOT_WATCHED:
        return
    try:
        for place, tensor in _tensors(output, "output"):
            counts = _not_finite(tensor)
            if counts:
                _stop(sys._getframe(), module, place, counts, shown=place)
                return
            if tensor.grad_fn is not None:  # not on a parameter: it would keep the hook
                tensor.register_hook(functools.partial(_check_gradient, module, place))
    except Exception as error:  # noqa: BLE001 - a container of a user's class may raise anything
        _end(f"{type(error).__name__}: {error}")


def _check_gradient(module: Any, place: str, gradient: Any) -> None:
    counts = "" if _has_stopped else _not_finite(gradient)
    if counts:
        _stop(sys._getframe(), module, f"gradient of {place}", counts, shown="gradient")


# Frames of this folder are hidden at a pause (pydevd_session.py), but these two have the tensors.
_check_output.__code__ = _check_output.__code__.replace(co_filename=SHOWN_AS)
_check_gradient.__code__ = _check_gradient.__code__.replace(co_filename=SHOWN_AS)


def _stop(frame: FrameType, module: Any, place: str, counts: str, *, shown: str) -> None:
    """Pause once in this process: later values are not finite either."""
    _end()
    linecache.cache[SHOWN_AS] = (0, None, linecache.getlines(__file__), SHOWN_AS)
    rank = records.rank()
    whose = "" if rank is None else f"rank {rank}: "
    text = f"{whose}{place} of {_path(module)} ({type(module).__name__}): {counts}; `p {shown}`"
    tripwire: TripwireRecord = {"text": text, "history": []}
    pause.pause_at(frame, kind="tripwire", where="nonfinite", tripwire=tripwire)


def _end(why: str = "") -> None:
    """Stop checking."""
    global _has_stopped
    _has_stopped = True
    _handle.remove()
    if why:
        worker.log(f"--stop-on nonfinite is turned off: {why}")


def _tensors(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the place and the tensor of each non-empty tensor in an output."""
    import torch

    if isinstance(value, torch.Tensor):
        if (value.is_floating_point() or value.is_complex()) and value.numel():
            yield place, value
    elif depth < MAX_DEPTH and isinstance(value, dict):
        for key, one in list(value.items()):
            yield from _tensors(one, f"{place}[{repr(key)[:100]}]", depth + 1)
    elif depth < MAX_DEPTH and isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _tensors(one, f"{place}[{index}]", depth + 1)


def _not_finite(tensor: Any) -> str:
    """Return how many values of a tensor are NaN and infinite; empty if none is. On a GPU it waits for the tensor."""
    try:
        tensor = getattr(tensor, "_local_tensor", tensor).detach()  # DTensor: reading the whole would need a collective
        if tensor.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing():
            return ""
        total = tensor.sum().item()
        if total - total == 0:  # finite: one pass without a copy, where isfinite() makes several
            return ""
        nans, infinite = (int(count.sum().item()) for count in (tensor.isnan(), tensor.isinf()))
    except Exception:  # noqa: BLE001 - a meta or fake tensor, a type without isfinite, inside vmap
        return ""
    counts = [f"{count} {name}" for count, name in ((nans, "NaN"), (infinite, "infinite")) if count]
    return f"{' and '.join(counts)} of {tensor.numel()} values" if counts else ""  # empty: only the sum overflowed


def _path(module: Any) -> str:
    """Return the module's qualified name in its root module; `the root module` for that one itself."""
    import torch

    # isinstance would read __class__ of the user's objects.
    modules = [module for module in gc.get_objects() if issubclass(type(module), torch.nn.Module)]
    parents: dict[int, tuple[Any, str]] = {}
    for parent in modules:  # one may exist whose __init__ has not run
        parents |= {id(child): (parent, name) for name, child in [*(vars(parent).get("_modules") or {}).items()]}
    names: list[str] = []
    while id(module) in parents and len(names) < 100:
        module, name = parents[id(module)]
        names.append(name)
    return ".".join(name for name in reversed(names) if name not in WRAPPERS) or "the root module"
