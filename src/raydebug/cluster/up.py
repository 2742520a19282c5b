"""The parts of `up` that both kinds of cluster share: its options, and Ctrl-C while a cluster starts.

Ctrl-C is noticed even if Python, or an import, drops its exception: a KeyboardInterrupt that hits a destructor or a
callback of the garbage collector is printed as ignored, and lost
(https://docs.python.org/3/reference/datamodel.html#object.__del__).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from raydebug.cluster.state import DEFAULT_NAME

_pressed = False


@dataclass(frozen=True)
class UpOptions:
    """The options of `up`, for a cluster of either kind; None leaves the choice to raydebug.

    Args:
        name: the cluster's name.
        cpus, gpus: logical CPUs and GPUs of a node.
        debugger: debugger mode.
        dashboard_port, gateway_port: ports on this machine; 0 takes a free one.
        python: local: the interpreter whose environment Ray runs in; None for this one.
        owner: local: process id with whose end the cluster ends.
        prefork: local: keep pre-forked processes with the heavy imports done.
        end_when_hung: local: end the cluster when Ray has not answered for ray_node.HUNG_AFTER_S.
        flavour: compose: core, cpu or cuda.
        workers: compose: number of worker nodes.
        project: compose: folder of this machine that the containers have as /workspace.
        mounts: compose: SOURCE:TARGET[:ro] of further folders.
        hf_cache: compose: mount the user's Hugging Face cache.
        env_file: compose: file with KEY=VALUE lines for the nodes.
    """

    name: str = DEFAULT_NAME
    cpus: int | None = None
    gpus: int | None = None
    debugger: str = "breakpoint"
    dashboard_port: int | None = None
    gateway_port: int | None = None
    python: str | None = None
    owner: int | None = None
    prefork: bool = False
    end_when_hung: bool = False
    flavour: str | None = None
    workers: int = 1
    project: Path = Path()
    mounts: list[str] = field(default_factory=list)
    hf_cache: bool = False
    env_file: Path | None = None

    @property
    def ports(self) -> dict[str, int | None]:
        """The ports that the user named, by purpose."""
        return {"dashboard": self.dashboard_port, "gateway": self.gateway_port}


@contextlib.contextmanager
def notice_interrupts() -> Iterator[None]:
    """Record a Ctrl-C in addition to raising it; after one that leaves this block, further ones are ignored."""
    global _pressed
    _pressed = False
    before = _answer_by(_note)
    try:
        yield
    except KeyboardInterrupt:
        before = signal.SIG_IGN  # Python would die of a second one on its way out
        raise
    finally:
        _pressed = False
        _answer_by(before)


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, so that cleaning up is not cut off by a second one."""
    before = _answer_by(signal.SIG_IGN)
    try:
        yield
    finally:
        _answer_by(before)


def _answer_by(handler: Any) -> Any:
    """Set the SIGINT handler and return the earlier one; None if it is not Python's, or outside the main thread."""
    if handler is None or threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, handler)


def raise_if_interrupted() -> None:
    """Raise the KeyboardInterrupt that was lost.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed since `notice_interrupts` began.
    """
    if _pressed:
        raise KeyboardInterrupt


def _note(_number: int, _frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt
