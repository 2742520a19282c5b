"""What the gateway learns about a process and about one pause of it. Never raises: a missing fact is None."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from raydebug.worker import compiled, names, training_step, watchdogs

STARTS_DRIVERS = "ray.dashboard.modules.job.job_supervisor"  # Ray 2.60: an actor, whose child is the job's driver
# torch.distributed and verl name a process's place so (torch/distributed/run.py docs; verl 0.9.1
# single_controller/base/worker.py reads the same ones).
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def describe_process() -> dict[str, Any]:
    """Return what stays the same for the whole life of this process; a child of a Ray process has that one's ids."""
    context = _ray_context()
    inherited = _ancestor() if context is None else {}
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "python": sys.version.split()[0],
        "argv": _short(" ".join(getattr(sys, "orig_argv", [])), 300),
        "cwd": _quietly(os.getcwd),
        "rank": rank(),
        "job": os.environ.get(names.JOB),
        "child_of": inherited.get("pid"),
        "ip": _quietly(lambda: _ray_worker().node_ip_address) if context else inherited.get("ip"),
        "node_id": _quietly(context.get_node_id) if context else inherited.get("node_id"),
        "worker_id": _quietly(context.get_worker_id) if context else inherited.get("worker_id"),
        "is_driver": _quietly(lambda: _ray_worker().mode == sys.modules["ray._private.worker"].SCRIPT_MODE),
    }


def describe_ray_process() -> dict[str, Any] | None:
    """Return the ids that children of this process are told; None where it is no worker that runs the user's code."""
    context = _ray_context()
    if context is None:
        return None
    instance = next(iter(_ray_worker().actors.values()), None)
    if type(instance).__module__ == STARTS_DRIVERS:
        return None
    about = describe_process()
    return {
        **{name: about[name] for name in ("pid", "ip", "node_id", "worker_id")},
        "job_id": _quietly(context.get_job_id),
        "actor_id": _quietly(context.get_actor_id),
        "actor": _quietly(lambda: _actor_name(context)),
    }


def describe_pause(
    frame: FrameType,
    kind: str,
    *,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
    where: str | None = None,
    expires_s: float | None = None,
) -> dict[str, Any]:
    """Return the record of a pause.

    Args:
        frame: the user's frame.
        kind: `breakpoint`, `post-mortem` or `requested`.
        error: the exception of a post-mortem pause.
        trace: its traceback.
        where: the breakpoint from outside that stops here, as the user wrote it.
        expires_s: after how many seconds without a debugger it goes on by itself.
    """
    line = frame.f_lineno
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        frame, line = trace.tb_frame, trace.tb_lineno
    context = _ray_context()
    inherited = _ancestor() if context is None else {}
    return {
        "kind": kind,
        "file": frame.f_code.co_filename,
        "line": line,
        "function": frame.f_code.co_qualname,
        "thread": threading.current_thread().name,
        "exception": None if error is None else _describe_error(error),
        "where": where,
        "expires_s": expires_s,
        "compiled": compiled.is_compiled(frame),
        "watchdog": _quietly(watchdogs.nearest),
        "step": _quietly(lambda: training_step.step_of(frame)),
        "pid": os.getpid(),
        "rank": rank(),
        "job_id": _quietly(context.get_job_id) if context else inherited.get("job_id"),
        "task_id": _quietly(context.get_task_id) if context else None,
        "task": _quietly(context.get_task_name) if context else None,
        "attempt": _quietly(attempt) if context else None,
        "actor_id": _quietly(context.get_actor_id) if context else inherited.get("actor_id"),
        "actor": _quietly(lambda: _actor_name(context)) if context else inherited.get("actor"),
    }


def _ancestor() -> dict[str, Any]:
    """Return the ids of the Ray process that this one descends from; empty where there is none."""
    told = _quietly(lambda: json.loads(os.environ[names.ANCESTOR]))
    return told if isinstance(told, dict) and told.get("pid") != os.getpid() else {}


def describe_work() -> dict[str, Any]:
    """Return what of this process changes while it lives, and any thread may ask."""
    context = _ray_context()
    return {
        "title": _quietly(_title),
        "job_id": _quietly(context.get_job_id) if context else None,
        "actor": _quietly(lambda: _actor_name(context)) if context else None,
    }


def _title() -> str:
    # What `ps` shows: Ray names a worker by the task that it runs, vLLM its engine (setproctitle).
    with open("/proc/self/cmdline", "rb") as file:
        return _short(file.read().replace(b"\0", b" ").decode(errors="replace").strip(), 300)


def attempt() -> int | None:
    """Return the how manyth attempt at its task the calling thread makes, from 1; None where that is not known.

    Source: ray 2.60.0 _raylet.pyx `CoreWorker.get_current_task_attempt_number`, which counts from 0. In the thread of
    an event loop (async actors) it says 0 whatever the attempt.
    """
    worker = _ray_worker()
    if worker.mode != sys.modules["ray._private.worker"].WORKER_MODE or _runs_event_loop():
        return None
    return int(worker.core_worker.get_current_task_attempt_number()) + 1


def _runs_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def rank() -> int | None:
    """Return this process's rank in its training group, where it has one."""
    for variable in RANK_VARIABLES:
        value = os.environ.get(variable, "")
        if value.isdigit():
            return int(value)
    return None


def is_ray_process() -> bool:
    """Say whether this very process (not the one that it was forked from) is connected to Ray."""
    return _ray_context() is not None


def _ray_worker() -> Any:
    return sys.modules["ray._private.worker"].global_worker


def _ray_context() -> Any:
    module = sys.modules.get("ray._private.worker")
    if module is None or not getattr(module.global_worker, "connected", False) or _forked_from_ray():
        return None
    return _quietly(sys.modules["ray"].get_runtime_context)


_ray_pid: int | None = None


def note_ray_process() -> None:
    """Remember which process loaded Ray: in a fork of it Ray's own calls would hang or abort."""
    global _ray_pid
    _ray_pid = os.getpid()


def _forked_from_ray() -> bool:
    return _ray_pid is not None and _ray_pid != os.getpid()


def _actor_name(context: Any) -> str | None:
    actor_id = context.get_actor_id()
    if actor_id is None:
        return None
    name = context.get_actor_name()
    instance = next(iter(_ray_worker().actors.values()), None)
    kind = None if instance is None else type(instance).__name__
    return f"{kind} {name}" if kind and name else (name or kind)


def _describe_error(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may do anything
        text = "(its text cannot be read)"
    return _short(f"{name}: {text}" if text else name, 2000)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _quietly(read: Any) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - see the module's first line
        return None
