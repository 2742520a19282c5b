"""The spans of a run, and Ray's table of its tasks, in the run's folder while it runs: what `raydebug trace` reads.

Each line of spans.jsonl is a JSON document: `{"version": 1}` first, then what a process is, its spans with the times of
its own CLOCK_MONOTONIC, how many it has lost, and by how much that clock is behind the run's. The last line of a file
with MOST_BYTES says so. A file that is cut off has all lines but the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.client.gateway_client import ask_processes
from raydebug.errors import RaydebugError
from raydebug.jobs.pace import Pace
from raydebug.protocol.questions import SPANS as ASK_SPANS
from raydebug.protocol.questions import SpansBody
from raydebug.protocol.secrets import scrubbed
from raydebug.runs.folder import SPANS, TASKS, VERSION
from raydebug.runs.timeline import ABOUT
from raydebug.settings.files import atomic_write, open_private

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.listings import ListedAnswer
    from raydebug.protocol.questions import SpansRecord

ASK_EVERY_S, ASK_AT_MOST_S, ANSWER_S = 2.0, 5.0, 2.0
ASK_SHARE = 5  # thousands of processes keep the gateway busy for long: at most a sixth of the time
CLOCK_EVERY_S, ROUND_TRIPS = 60.0, 5
# Ray takes half a millisecond of a processor for each task (ray 2.60.0, measured): 5 s for a table of 10,000.
TASKS_EVERY_S, TASKS_SHARE = 60.0, 400
MOST_ROUNDS = 30  # of questions in a turn: a process may have made 20,000 spans
MOST_BYTES, MOST_UNWRITTEN = 200 * 2**20, 16 * 2**20  # of spans.jsonl; of what waits while a disk is full
# Of Ray's rows; `runtime_env_info` has all environment variables of the job.
COLUMNS = ("task_id", "attempt_number", "name", "state", "job_id", "actor_id", "type", "func_or_class_name", "node_id",
           "worker_id", "worker_pid", "creation_time_ms", "start_time_ms", "end_time_ms")  # fmt: skip
NAMES = ("name", "func_or_class_name")  # that a program may choose


class SpanLog:
    """Records the spans and tasks of one job.

    Args:
        cluster: where it runs.
        job: its submission id.
        folder: the run's; None: nothing is recorded.
    """

    def __init__(self, cluster: Cluster, job: str, folder: Path | None) -> None:
        self._cluster, self._job, self._folder = cluster, job, folder
        self._taking = threading.Lock()
        self._clock_due: dict[str, float] = {}  # when the clock of each process is compared
        self._about: dict[str, dict[str, Any]] = {}
        self._wall_ns: int | None = None  # what the clock of this machine was ahead of the gateway's CLOCK_MONOTONIC
        self._tasks_due = time.monotonic() + TASKS_EVERY_S / 4
        self._size = 0
        self._unwritten = b""
        self._has_failed = self._is_full = False
        if folder is not None:
            with contextlib.suppress(OSError):
                self._size = (folder / SPANS).stat().st_size
        # A reader leaves out what a recorder has begun to write as it was killed.
        self._write("\n" * bool(self._size) + json.dumps({"version": VERSION}) + "\n")

    async def watch(self, dashboard: Dashboard) -> None:
        """Record until cancelled."""
        pace = Pace(self._cluster, ASK_EVERY_S, ASK_AT_MOST_S, can_wait=True)
        while True:
            began = time.monotonic()
            await asyncio.to_thread(self.take)
            took_s = time.monotonic() - began
            if time.monotonic() >= self._tasks_due:
                await asyncio.to_thread(self.take_tasks, dashboard)
            await pace.wait(ASK_SHARE * took_s)

    def end(self, dashboard: Dashboard) -> None:
        """Record what is left at the end of the job."""
        self.take()
        self.take_tasks(dashboard)

    def take(self) -> None:
        """Record the spans that have ended since the last call, and compare clocks where it is time to."""
        with self._taking, contextlib.suppress(RaydebugError, KeyError, TypeError):  # no gateway, or an earlier one
            if self._folder is None or self._is_full:
                return
            only, heard = list[str](), set[str]()
            for _ in range(MOST_ROUNDS):
                answers = self._ask({}, only)
                self._record(answers)
                heard |= {answer["instance"] for answer in answers if answer["answer"]}
                only = [answer["instance"] for answer in answers if (answer["answer"] or {}).get("more")]
                if not only:
                    break
            now = time.monotonic()
            due = [instance for instance in heard & self._about.keys() if now >= self._clock_due.get(instance, now)]
            self._clock_due |= dict.fromkeys(due, now + CLOCK_EVERY_S)
            self._compare_clocks(due)

    def _ask(self, body: SpansBody, only: list[str]) -> list[ListedAnswer[SpansRecord]]:
        return ask_processes(self._cluster, ASK_SPANS, body, job=self._job, only=only, timeout_s=ANSWER_S)

    def _record(self, answers: Iterable[ListedAnswer[SpansRecord]]) -> None:
        lines = []
        nodes = {about.get("node_id") for about in self._about.values()}
        for answer in answers:
            said, instance = answer["answer"], answer["instance"]
            if said is None:
                continue
            about = {name: value for name in ABOUT if (value := answer["process"].get(name)) is not None}
            # Of each node one clock at least is compared, for the times of Ray's tasks.
            is_kept = said.get("spans") or about.get("node_id") not in {None, *nodes}
            if is_kept and about.items() - self._about.get(instance, {}).items():
                lines.append({"process": instance, **about, "wall_ns": said.get("wall_ns", 0)})
                self._about[instance] = about
                nodes.add(about.get("node_id"))
            if lost := said.get("lost"):
                lines.append({"lost": instance, "count": lost, "at_ns": said.get("now_ns", 0)})
            if spans := said.get("spans"):
                lines.append({"spans": instance, "rows": spans})
        self._write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))

    def _compare_clocks(self, instances: list[str]) -> None:
        """Write what each process's clock is behind the run's: of several round trips the shortest one counts."""
        best: dict[str, SpansRecord] = {}
        least_ns, most_ns = -(2**63), 2**63  # of what the gateway's clock is ahead of this one
        for _ in range(ROUND_TRIPS if instances else 0):
            asked_ns = time.time_ns()
            answers = self._ask({"most": 0}, instances)
            heard_ns = time.time_ns()
            for answer in answers:
                said = answer["answer"]
                if said and "sent_ns" in said and "now_ns" in said:
                    gateway_ns = said["gateway_wall_ns"] + said["received_ns"]
                    least_ns, most_ns = max(least_ns, gateway_ns - heard_ns), min(most_ns, gateway_ns - asked_ns)
                    known = best.setdefault(answer["instance"], said)
                    best[answer["instance"]] = min(known, said, key=_trip_ns)
        for instance, said in best.items():
            if self._wall_ns is None:  # a clock that is set later moves nothing
                self._wall_ns = said["gateway_wall_ns"] - min(max(0, least_ns), most_ns)
            middle_ns = (said["sent_ns"] + said["received_ns"]) // 2
            offset_ns = middle_ns + self._wall_ns - said["now_ns"]
            line = {"clock": instance, "at_ns": said["now_ns"], "offset_ns": offset_ns, "error_ns": _trip_ns(said) // 2}
            self._write(json.dumps(line, separators=(",", ":")) + "\n")

    def take_tasks(self, dashboard: Dashboard) -> None:
        """Write Ray's table of the job's tasks, or leave the last one where Ray does not answer."""
        if self._folder is None:
            return
        began = time.monotonic()
        try:
            keep_tasks(dashboard, self._job, self._folder)
        except OSError as error:
            self._say_failure(error)
        took_s = time.monotonic() - began
        self._tasks_due = began + max(TASKS_EVERY_S, TASKS_SHARE * took_s)

    def _write(self, text: str) -> None:
        if self._folder is None or self._is_full or not (text or self._unwritten):
            return
        self._unwritten += text.encode()
        if self._size + len(self._unwritten) > MOST_BYTES:
            self._is_full = True  # Ray's tasks go on
            most = f"{MOST_BYTES >> 20} MiB"
            self._unwritten = (json.dumps({"ended": most}) + "\n").encode()
            render.say(f"spans are recorded no further: {SPANS} has {most}")
        try:
            with open_private(self._folder / SPANS) as file:
                file.write(self._unwritten)
        except OSError as error:  # a disk that is full for a while: it is written later
            with contextlib.suppress(OSError):
                os.truncate(self._folder / SPANS, self._size)  # a part may have been written
            self._say_failure(error)
            if len(self._unwritten) > MOST_UNWRITTEN:
                self._folder = None
                render.say(f"spans are recorded no further: {error}")
        else:
            self._size += len(self._unwritten)
            self._unwritten = b""

    def _say_failure(self, error: OSError) -> None:
        if not self._has_failed:
            render.say(f"note: spans and tasks cannot be written now: {error}")
        self._has_failed = True


def keep_tasks(dashboard: Dashboard, job: str, folder: Path) -> None:
    """Write Ray's table of a job's tasks into a run's folder, or leave what is there if Ray does not answer.

    Raises:
        OSError: it cannot be written.
    """
    with contextlib.suppress(RaydebugError, KeyError, TypeError):
        if job_id := dashboard.job(job).get("job_id"):
            rows, is_cut = dashboard.task_table(job_id)
            hidden = functools.cache(lambda text: scrubbed(str(text)))  # thousands of rows have a few names
            kept = [
                [hidden(row[name]) if name in NAMES and row.get(name) else row.get(name) for name in COLUMNS]
                for row in rows
            ]
            document = {"version": VERSION, "cut": is_cut, "columns": COLUMNS, "rows": kept}
            atomic_write(folder / TASKS, json.dumps(document, separators=(",", ":")))


def _trip_ns(said: Mapping[str, Any]) -> int:
    return int(said["received_ns"] - said["sent_ns"])
