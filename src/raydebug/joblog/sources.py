"""The log files of a job's processes, with who wrote them: driver, actors by class and rank, plain workers.

Ray writes a worker's stdout and stderr to `worker-<worker id>-<job id>-<pid>.out` and `.err` on its node, the driver's
to `job-driver-<submission id>.log` on the head (ray 2.60.0; seen by running it). Children of a worker (vLLM's engine)
write into their parent's files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raydebug.cluster.dashboard import Dashboard
from raydebug.errors import RaydebugError

DRIVER, TASK = "driver", "task"
_WORKER_FILE = re.compile(r"worker-(?P<worker>[0-9a-f]+)-(?P<job>[0-9a-f]+)-(?P<pid>\d+)\.(?P<stream>out|err)")
RANK_VARIABLE = "RANK"  # verl and torchrun give it to a worker in its runtime environment


@dataclass(frozen=True)
class Source:
    """One file of one process.

    Args:
        node_id: Ray's id of the node that has it.
        name: of the file in the node's log folder.
        role: `driver`, the class of an actor, or `task` for a worker without an actor.
        rank: in its training group; None where it has none.
        pid: of the process; None for the driver's shell.
        stream: `out`, `err`, or `log` for both in one.
    """

    node_id: str
    name: str
    role: str
    rank: int | None = None
    pid: int | None = None
    stream: str = "log"

    @property
    def title(self) -> str:
        """Name the process for people."""
        rank = "" if self.rank is None else f" rank {self.rank}"
        pid = "" if self.pid is None or self.rank is not None else f" pid {self.pid}"
        return f"{self.role}{rank}{pid}"


def find_sources(dashboard: Dashboard, job: dict[str, Any]) -> list[Source]:
    """Return the files of a job, driver first, then by role, rank and pid.

    Args:
        dashboard: the cluster's.
        job: the job, as the dashboard describes it.
    """
    job_id = str(job.get("job_id") or "")
    actors = {actor["pid"]: actor for actor in dashboard.actors(job_id)} if job_id else {}
    found: list[Source] = []
    for node in dashboard.nodes():
        try:
            names = dashboard.log_names(node["node_id"])
        except RaydebugError:  # a node that is gone: its files went with it
            continue
        found += of_node(node["node_id"], names, str(job["submission_id"]), job_id, actors)
    return sorted(found, key=lambda s: (s.role != DRIVER, s.role, s.rank or 0, s.pid or 0, s.stream))


def of_node(
    node_id: str, names: Iterable[str], submission_id: str, job_id: str, actors: dict[int, dict[str, Any]]
) -> list[Source]:
    """Return which of a node's log files are a job's."""
    found = []
    for name in names:
        if name == f"job-driver-{submission_id}.log":
            found.append(Source(node_id, name, DRIVER))
            continue
        parts = _WORKER_FILE.fullmatch(name)
        if parts is None or not job_id or parts["job"] != job_id:
            continue
        pid = int(parts["pid"])
        actor = actors.get(pid)
        role = TASK if actor is None else str(actor.get("class_name") or "actor")
        found.append(Source(node_id, name, role, rank_of(actor), pid, parts["stream"]))
    return found


def rank_of(actor: dict[str, Any] | None) -> int | None:
    """Return the rank that an actor was given with its runtime environment; None where it was given none."""
    try:
        variables = json.loads((actor or {}).get("serialized_runtime_env") or "{}").get("env_vars") or {}
        return int(variables[RANK_VARIABLE])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def select(sources: Iterable[Source], role: str | None, rank: int | None) -> list[Source]:
    """Return the sources of a role (a part of its name, in any case) and a rank; None takes all."""
    return [
        source
        for source in sources
        if (role is None or role.lower() in source.role.lower()) and (rank is None or source.rank == rank)
    ]
