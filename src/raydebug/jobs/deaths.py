"""Watch the ends of a job's processes while it runs: gather what Ray knows of each, and certify it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from raydebug.client.gateway_client import request
from raydebug.errors import RaydebugError
from raydebug.jobs.certificate import BACK, WANTED, Certificate, Evidence, certify
from raydebug.jobs.pace import Pace
from raydebug.protocol.names import is_same_node

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.death import EndedProcess

POLL_S = 0.4
SAID_AFTER_S = 30.0  # an end so long before that of a job that does not fail belongs to its end
MOST = 200  # certificates of a run
MOST_AT_ONCE = 20  # that are looked up in one turn
NEAR_S = 30.0  # between the clocks of two nodes, and Ray's knowledge of an end
OF_ANOTHER_VERSION = KeyError, TypeError, ValueError  # what a gateway or a Ray of another version leads to
LOG_LINES = 200  # of the end of a worker's log, which has the stack of a fatal signal

Progress = Callable[["EndedProcess"], tuple[int, str, int | None]]
"""Returns of an ended process: bytes it held when last measured, and the phase and step of the training."""


def fetch_deaths(cluster: Cluster, job: str, after: int = 0) -> list[EndedProcess]:
    """Return the processes of a job that have ended and have a higher number, in the order of their ends.

    Those that are back (EndedProcess) are always among them.

    Raises:
        RaydebugError: the gateway does not answer, or is of an earlier version.
    """
    found: list[EndedProcess] = request(cluster, "GET", f"/deaths/{quote(job, safe='')}/{after}")["deaths"]
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
        self._after = 0  # all up to this number are judged
        self.unsaid: list[Certificate] = []
        self._taking = threading.Lock()  # the last look, and one that still runs
        self._at: dict[int, tuple[int, str, int | None]] = {}  # as it was when the end was first seen

    async def watch(self, dashboard: Dashboard, say: Callable[[list[Certificate]], None]) -> None:
        """Certify ends until cancelled, and say each."""
        pace = Pace(self._cluster, POLL_S)
        while True:
            new, before = await asyncio.to_thread(self.take, dashboard), self.unsaid
            waiting = [one for one in (*before, *new) if not (one in before and one in new)]  # it was back at once
            found = [one for one in waiting if one.kind == BACK or one.at < time.time() - SAID_AFTER_S]
            self.unsaid = [one for one in waiting if one not in found]
            if found:
                say(found)
            await pace.wait()

    def at_end(self, dashboard: Dashboard, *, has_failed: bool) -> list[Certificate]:
        """Return the ends that are not said yet; those of a job that has not failed are no deaths, and forgotten."""
        unsaid, self.unsaid = self.unsaid, []
        if has_failed:
            return unsaid + self.take(dashboard, last=True)
        self.certificates = {number: one for number, one in self.certificates.items() if one not in unsaid}
        return []

    def take(self, dashboard: Dashboard, *, last: bool = False) -> list[Certificate]:
        """Return certificates of ends that are new, and of processes that are back, whose certificates are withdrawn.

        Args:
            dashboard: of its cluster.
            last: what is not known by now is not waited for.
        """
        new = []
        with self._taking, contextlib.suppress(RaydebugError, *OF_ANOTHER_VERSION):
            ended = fetch_deaths(self._cluster, self._job, self._after)
            for number in [process["number"] for process in ended if process.get("is_back")]:
                self._judged.add(number)
                if back := self.certificates.pop(number, None):
                    back.kind = BACK
                    new.append(back)
            unjudged = [process for process in ended if process["number"] not in self._judged][:MOST_AT_ONCE]
            job: Mapping[str, Any] = {}
            with contextlib.suppress(RaydebugError):
                job = dashboard.job(self._job) if unjudged else {}
            for process in unjudged:
                found = None
                with contextlib.suppress(Exception):  # one odd end, of any process, keeps no other from its certificate
                    evidence = self._gather(dashboard, process, job)
                    if not last and not evidence.is_settled:
                        continue
                    found = certify(evidence)
                self._judged.add(process["number"])
                if found is not None and found.kind != WANTED and len(self.certificates) < MOST:
                    self.certificates[process["number"]] = found
                    new.append(found)
            numbers = {process["number"] for process in ended}
            waiting = numbers - self._judged
            self._after = min(waiting) - 1 if waiting else max(numbers, default=self._after)
        return new

    def _gather(self, dashboard: Dashboard, ended: EndedProcess, job: Mapping[str, Any]) -> Evidence:
        pid = ended.get("pid") or 0
        rss, phase, step = self._at.setdefault(ended["number"], self._progress(ended))
        age_s = time.time() - ended["at"]
        found: dict[str, Any] = {"job": job}

        def look(name: str, table: str, *filters: tuple[str, str, str], **fits: Any) -> Mapping[str, Any]:
            with contextlib.suppress(RaydebugError):
                found[name] = dashboard.row_of(table, *filters, **fits) or {}
            return found.get(name) or {}

        def is_its(row: Mapping[str, Any]) -> bool:  # other nodes and times have this process id, too
            is_near = abs((row.get("end_time_ms") or 0) / 1000 - ended["at"]) < NEAR_S
            return not row.get("is_alive") and is_near and is_same_node(row, ended)

        phase, parent = phase if step is not None else "", ended.get("child_of")
        if not parent and "raylet" not in ended["node"]:
            if worker_id := ended.get("worker_id"):
                worker = look("worker", "workers", ("worker_id", "=", worker_id))
            else:  # not known of a process that has just begun
                worker = look("worker", "workers", ("pid", "=", str(pid)), fits=is_its)
            ended["worker_id"] = worker_id or worker.get("worker_id")
            ended["node_id"] = ended.get("node_id") or worker.get("node_id")
            if (known := Evidence(ended, age_s=age_s, **found)).is_wanted:  # an ordinary end: the rest adds nothing
                return known
            node = ("node_id", "=", str(ended["node_id"]))
            ended["actor"] = ended.get("actor") or look("actor", "actors", ("pid", "=", str(pid)), node).get(
                "class_name"
            )
            look("node", "nodes", node)
            task = look("task", "tasks", ("worker_id", "=", str(ended["worker_id"])), ("state", "!=", "FINISHED"))
            phase = str(task.get("name") or "").rpartition(".")[2] or phase
        if ended.get("worker_id") and not ended["words"] and not ended["fault"]:
            name = f"worker-{ended['worker_id']}-{job.get('job_id')}-{parent or pid}.err"
            with contextlib.suppress(RaydebugError):
                found["log"] = dashboard.log_end(str(ended.get("node_id")), name, LOG_LINES)
        found.pop("task", None)
        certificates = sorted(self.certificates.values(), key=lambda certificate: certificate.at)
        others = [certificate for certificate in certificates if certificate.at < ended["at"]]
        return Evidence(ended, rss=rss, phase=phase, step=step, others=others, age_s=age_s, **found)
