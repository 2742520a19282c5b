"""Watch the ends of a job's processes while it runs: gather what Ray knows of each, and certify it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from raydebug.errors import RaydebugError
from raydebug.gateway.gateway_client import request
from raydebug.jobs.certificate import WANTED, Certificate, Evidence, certify

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.death import EndedProcess

POLL_S = 0.4
MOST = 200  # certificates of a run
MOST_AT_ONCE = 20  # that are looked up in one turn
LOG_LINES = 200  # of the end of a worker's log, which has the stack of a fatal signal

Progress = Callable[[int], tuple[int, str, int | None]]
"""Returns of a process id: bytes it held when last measured, and the phase and step of the training."""


def fetch_deaths(cluster: Cluster, job: str) -> list[EndedProcess]:
    """Return the processes of a job that have ended, in the order of their ends.

    Raises:
        RaydebugError: the gateway does not answer, or is of an earlier version.
    """
    found: list[EndedProcess] = request(cluster, "GET", f"/deaths/{quote(job, safe='')}")["deaths"]
    return found


class DeathWatch:
    """The certificates of one job.

    Args:
        cluster: where it runs.
        job: its submission id.
        progress: see Progress.
    """

    def __init__(self, cluster: Cluster, job: str, progress: Progress) -> None:
        self.certificates: dict[int, Certificate] = {}  # of ends that are failures or follow from one, by number
        self._cluster, self._job, self._progress = cluster, job, progress
        self._judged: set[int] = set()
        self._taking = threading.Lock()  # the last look, and one that still runs
        self._at: dict[int, tuple[int, str, int | None]] = {}  # as it was when the end was first seen

    async def watch(self, dashboard: Dashboard, say: Callable[[list[Certificate]], None]) -> None:
        """Certify ends until cancelled, and say each."""
        while True:
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a gateway or a Ray of another version
                if found := await asyncio.to_thread(self.take, dashboard):
                    say(found)
            await asyncio.sleep(POLL_S)

    def take(self, dashboard: Dashboard, *, last: bool = False) -> list[Certificate]:
        """Return certificates of ends that are new; `last`: what is not known by now is not waited for."""
        new = []
        with self._taking, contextlib.suppress(RaydebugError):  # a gateway that is gone, or of an earlier version
            ended = fetch_deaths(self._cluster, self._job)
            for one in [one for one in ended if one["number"] not in self._judged][:MOST_AT_ONCE]:
                evidence = self._gather(dashboard, one)
                if not last and not evidence.is_settled:
                    continue
                self._judged.add(one["number"])
                found = certify(evidence)
                if found.kind != WANTED and len(self.certificates) < MOST:
                    self.certificates[one["number"]] = found
                    new.append(found)
        return new

    def _gather(self, dashboard: Dashboard, ended: EndedProcess) -> Evidence:
        pid = ended.get("pid") or 0
        rss, phase, step = self._at.setdefault(ended["number"], self._progress(pid))
        found: dict[str, Any] = {}

        def look(name: str, table: str, *filters: tuple[str, str, str]) -> Mapping[str, Any]:
            with contextlib.suppress(RaydebugError):
                found[name] = dashboard.row_of(table, *filters) or {}
            return found.get(name) or {}

        with contextlib.suppress(RaydebugError):
            found["job"] = dashboard.job(self._job)
        phase, parent = phase if step is not None else "", ended.get("child_of")
        if not parent and "raylet" not in ended["node"]:
            worker_id = ended.get("worker_id")  # not known of a process that has just begun
            worker = look("worker", "workers", ("worker_id", "=", worker_id) if worker_id else ("pid", "=", str(pid)))
            ended["worker_id"] = worker_id or worker.get("worker_id")
            ended["node_id"] = ended.get("node_id") or worker.get("node_id")
            node = ("node_id", "=", str(ended["node_id"]))
            ended["actor"] = ended.get("actor") or look("actor", "actors", ("pid", "=", str(pid)), node).get(
                "class_name"
            )
            look("node", "nodes", node)
            task = look("task", "tasks", ("worker_id", "=", str(ended["worker_id"])), ("state", "!=", "FINISHED"))
            phase = str(task.get("name") or "").rpartition(".")[2] or phase
        if ended.get("worker_id") and not ended["words"] and not ended["fault"]:
            name = f"worker-{ended['worker_id']}-{found.get('job', {}).get('job_id')}-{parent or pid}.err"
            with contextlib.suppress(RaydebugError):
                found["log"] = dashboard.log_end(str(ended.get("node_id")), name, LOG_LINES)
        found.pop("task", None)
        others = sorted((one for one in self.certificates.values() if one.at < ended["at"]), key=lambda one: one.at)
        age_s = time.time() - ended["at"]
        return Evidence(ended, rss=rss, phase=phase, step=step, others=others, age_s=age_s, **found)
