"""Describe this process and a pause of it for the gateway. Never raises: an unknown fact is None."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, cast

from raydebug import worker
from raydebug.protocol import variables
from raydebug.protocol.secrets import scrubbed, without_secret_arguments
from raydebug.worker import torch_hooks
from raydebug.worker.training_step import step_of

if TYPE_CHECKING:  # these types cost each process 2 ms
    from raydebug.protocol.records import PauseRecord, ProcessRecord, Work

STARTS_DRIVERS = "ray.dashboard.modules.job.job_supervisor"  # Ray 2.60: an actor, whose child is the job's driver
MAX_NAME = 250  # characters of a function, thread, task or actor; the gateway accepts 1 KB (protocol/records.py)
# The variables of torch.distributed (torch/distributed/run.py docs); verl 0.9.1 single_controller/base/worker.py reads
# the same ones.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
# In each process below a raylet: workers, and drivers of the Jobs API (ray 2.60.0 common/ray_internal_flag_def.h,
# dashboard/modules/job/job_supervisor.py `_get_driver_env_vars`).
BELOW_RAY = ("RAY_RAYLET_PID", "RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR")


class RayIds(TypedDict, total=False):
    """The ids of a Ray process that its children report as theirs."""

    pid: int
    ip: str | None
    node_id: str | None
    worker_id: str | None
    job_id: str | None
    actor_id: str | None
    actor: str | None


def describe_process() -> ProcessRecord:
    """Return what stays the same for the life of this process; a child of a Ray process has the ids of its ancestor."""
    context = _ray_context()
    ids = _ids(context)
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "python": sys.version.split()[0],
        "argv": _short(" ".join(without_secret_arguments(getattr(sys, "orig_argv", []))), 300),
        "cwd": _quietly(os.getcwd),
        "rank": rank(),
        "job": os.environ.get(variables.JOB),
        "child_of": None if context else ids.get("pid"),
        "ip": ids.get("ip"),
        "node_id": ids.get("node_id"),
        "worker_id": ids.get("worker_id"),
        # A fork of the driver has its parent's mode, too.
        "is_driver": context is not None
        and _quietly(lambda: _ray_worker().mode == sys.modules["ray._private.worker"].SCRIPT_MODE),
    }


def describe_ray_process() -> RayIds | None:
    """Return the ids to export to children; None if this process is no worker that runs the user's code."""
    context = _ray_context()
    return None if context is None or type(_actor_instance()).__module__ == STARTS_DRIVERS else _ids(context)


def _ids(context: Any) -> RayIds:
    """Return the ids of this Ray process, else of the one that it descends from; empty if there is none."""
    if context is None:
        ids = _quietly(lambda: json.loads(os.environ[variables.ANCESTOR]))
        return cast(RayIds, ids) if isinstance(ids, dict) and ids.get("pid") != os.getpid() else {}
    return {
        "pid": os.getpid(),
        "ip": _quietly(lambda: _ray_worker().node_ip_address),
        "node_id": _get(context, "node_id"),
        "worker_id": _get(context, "worker_id"),
        "job_id": _get(context, "job_id"),
        "actor_id": _get(context, "actor_id"),
        "actor": _quietly(lambda: _actor_name(context)),
    }


def describe_pause(
    frame: FrameType,
    kind: str,
    *,
    error: BaseException | None = None,
    trace: TracebackType | None = None,
) -> PauseRecord:
    """Return the record of a pause, as far as it is read from the frame.

    Args:
        frame: the user's frame.
        kind: `breakpoint`, `post-mortem`, `requested` or `tripwire`.
        error: the exception of a post-mortem pause.
        trace: its traceback.
    """
    line, exception = frame.f_lineno, None
    if error is not None:
        name, text = type(error).__name__, worker.text_of(error)
        exception = _short(scrubbed(f"{name}: {text[:4000]}") if text else name, 2000)
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        frame, line = trace.tb_frame, trace.tb_lineno
    context = _ray_context()
    ids = _ids(context)
    return {
        "kind": kind,
        "file": frame.f_code.co_filename,
        "line": line,
        "function": _short(frame.f_code.co_qualname, MAX_NAME),
        "thread": _short(scrubbed(threading.current_thread().name), MAX_NAME),
        "exception": exception,
        "where": None,
        "tripwire": None,
        "expires_s": None,
        "compiled": torch_hooks.is_compiled(frame),
        "watchdog": _quietly(torch_hooks.nearest_watchdog),
        "step": _quietly(lambda: step_of(frame)),
        "pid": os.getpid(),
        "rank": rank(),
        "job_id": ids.get("job_id"),
        "task_id": _get(context, "task_id"),
        "task": task_name(),
        "attempt": _quietly(attempt) if context else None,
        "actor_id": ids.get("actor_id"),
        "actor": ids.get("actor"),
    }


def describe_work() -> Work:
    """Return the facts of this process that change; any thread may call it."""
    ids = _ids(context) if (context := _ray_context()) else RayIds()
    return {
        "title": _quietly(_title),
        "job_id": ids.get("job_id"),
        "actor_id": ids.get("actor_id"),
        "actor": ids.get("actor"),
    }


def task_name() -> str | None:
    """Return the name of the task that this thread runs; None if it runs none."""
    name = _get(_ray_context(), "task_name")
    return _short(scrubbed(name), MAX_NAME) if name else None


def _title() -> str:
    # As in `ps`: Ray puts the running task into a worker's title, vLLM the engine's name (setproctitle).
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
    return _short(" ".join(without_secret_arguments(words)).strip(), 300)


def attempt() -> int | None:
    """Return the 1-based attempt number of the current task, or None if unknown.

    Source: ray 2.60.0 _raylet.pyx `CoreWorker.get_current_task_attempt_number`, which counts from 0. In the thread of
    an event loop (async actors) it says 0 whatever the attempt.
    """
    worker = _ray_worker()
    asyncio = sys.modules.get("asyncio")
    runs_event_loop = asyncio is not None and asyncio._get_running_loop() is not None
    if worker.mode != sys.modules["ray._private.worker"].WORKER_MODE or runs_event_loop:
        return None
    return int(worker.core_worker.get_current_task_attempt_number()) + 1


def rank() -> int | None:
    """Return this process's rank in its training group, or None."""
    for variable in RANK_VARIABLES:
        value = os.environ.get(variable, "")
        if value.isdigit() and (variable != "SLURM_PROCID" or _has_several_ranks()):
            return int(value)
    return None


def _has_several_ranks() -> bool:
    """Return whether this process's SLURM_PROCID can be a rank; each process below `srun` and `sbatch` has one.

    Below a raylet that `srun` has started it is the node's number, the same for all processes of the node.

    Source: srun(1) of Slurm 24.05: SLURM_STEP_NUM_TASKS is of the step; SLURM_NTASKS is of the job in a batch script,
    whose one process has SLURM_PROCID=0.
    """
    if any(name in os.environ for name in BELOW_RAY):
        return False
    counts = (os.environ.get(name, "") for name in ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE"))
    return any(count.isdecimal() and int(count) > 1 for count in counts)


def is_ray_process() -> bool:
    """Return whether this process itself (not its parent before a fork) is connected to Ray."""
    return _ray_context() is not None


def _ray_worker() -> Any:
    return sys.modules["ray._private.worker"].global_worker


def _ray_context() -> Any:
    # While the module is imported, it has none yet.
    ray_worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    is_fork = _ray_pid is not None and _ray_pid != os.getpid()
    if not getattr(ray_worker, "connected", False) or is_fork:
        return None
    return _quietly(sys.modules["ray"].get_runtime_context)


_ray_pid: int | None = None


def note_ray_process() -> None:
    """Remember which process loaded Ray: in a fork of it Ray's calls would hang or abort."""
    global _ray_pid
    _ray_pid = os.getpid()


def _actor_name(context: Any) -> str | None:
    if _get(context, "actor_id") is None:
        return None
    name = _get(context, "actor_name")
    instance = _actor_instance()
    kind = None if instance is None else type(instance).__name__
    both = f"{kind} {name}" if kind and name else (name or kind)
    return _short(scrubbed(both), MAX_NAME) if both else None


def _actor_instance() -> Any:
    return _quietly(lambda: next(iter(_ray_worker().actors.values()), None))


def _get(context: Any, fact: str) -> Any:
    """Return a fact of Ray's runtime context; None without a context or a getter for it.

    Source: ray 2.41.0 to 2.60.0 runtime_context.py, `RuntimeContext.get_<fact>`; `get_task_name` came with 2.41.
    """
    return _quietly(lambda: getattr(context, f"get_{fact}")())


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _quietly(read: Any) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - see the module's first line
        return None
