"""Control lines: the processes of jobs that are there and work, what they do, and the breakpoints they are told of."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Any

from raydebug.dap import wire

log = logging.getLogger("raydebug.gateway")

READ_BYTES = 64 * 1024
MAX_BREAKS = 1000
DESCRIBED_WITHIN_S = 1.0
# The actor in which Ray runs a job's driver (ray 2.60.0 dashboard/modules/job/common.py): not the user's, though it has
# the job's environment. Held by tests/ray/test_contracts.py.
JOB_ACTOR = "_ray_internal_job_actor_"
LISTED = (
    *("pid", "child_of", "ip", "node_id", "worker_id", "job", "job_id", "rank", "actor", "title", "argv"),
    *("is_driver", "doing"),
)
Break = dict[str, Any]


class ControlLine:
    """One process's control line.

    Args:
        about: what the process told about itself (worker/records.py).
        writer: its connection.
    """

    def __init__(self, about: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.about = about
        self.reports: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, str] = {}
        self.news = asyncio.Event()
        self.answers = True
        self._peer = (writer.get_extra_info("peername") or ("",))[0]
        self._writer = writer
        self._seq = itertools.count(1)
        self._described = asyncio.Event()

    @property
    def title(self) -> str:
        """Name the process for people."""
        return f"pid {self.about.get('pid')} on {self.about.get('ip') or self._peer}"

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self._writer.is_closing()

    @property
    def instance(self) -> str:
        """Tell one process from another (worker/dial.py)."""
        return str(self.about.get("instance") or "")

    async def ask_what_it_does(self) -> None:
        """Let the process describe itself anew; `answers` says whether it did so in time."""
        self._described.clear()
        self.tell("describe", {})
        try:
            await asyncio.wait_for(self._described.wait(), DESCRIBED_WITHIN_S)
        except TimeoutError:
            self.answers = False

    def describe(self) -> dict[str, Any]:
        """Return what a list of processes shows of it."""
        shown = {name: self.about.get(name) for name in LISTED}
        return {**shown, "ip": shown["ip"] or self._peer, "answers": self.answers}

    def take(self, event: str, body: dict[str, Any]) -> None:
        """Note what the process says of itself and of a pause that it was asked for."""
        if event == "described":
            self.about.update(body)
            self.answers = True
            self._described.set()
        elif event == "refused":
            self.refusals[str(body.get("request"))] = str(body.get("cause") or "it does not say why")
            self.news.set()

    def end(self) -> None:
        """Note that the process is gone."""
        self._writer.close()
        self.news.set()

    def tell(self, event: str, body: dict[str, Any]) -> None:
        """Send it a message."""
        if not self._writer.is_closing():
            self._writer.write(wire.encode(wire.event(next(self._seq), event, body)))

    def report(self, break_id: str) -> dict[str, Any]:
        """Return how a breakpoint stands in this process, as far as it has said."""
        stands = self.reports.get(break_id, {"state": "told", "message": ""})
        return {"pid": self.about.get("pid"), "ip": self.about.get("ip"), **stands}

    def concerns(self, definition: Break) -> bool:
        """Say whether a breakpoint is one for this process."""
        return definition.get("job") in (None, self.about.get("job"))


class Control:
    """All control lines, and all breakpoints that were set from outside."""

    def __init__(self) -> None:
        self.lines: set[ControlLine] = set()
        self._breaks: dict[str, Break] = {}
        self._removed: set[str] = set()
        self._last_id = 0

    async def serve(self, about: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep one proven line until it ends."""
        line = ControlLine(about, writer)
        decoder = wire.Decoder()
        try:
            while data := await reader.read(READ_BYTES):
                for message in decoder.feed(data):
                    self._take(line, message)
        except (OSError, wire.WireError):
            pass  # the process has ended, or cannot be understood: its line ends
        finally:
            self.lines.discard(line)
            line.end()

    async def described(self) -> list[ControlLine]:
        """Return the lines of the user's processes, each described anew, by node and process id."""
        await asyncio.gather(*(line.ask_what_it_does() for line in self.lines))
        users = [line for line in self.lines if JOB_ACTOR not in str(line.about.get("actor"))]
        return sorted(users, key=lambda line: (str(line.describe()["ip"]), int(line.about.get("pid") or 0)))

    def add(self, definitions: list[Break], job: str | None) -> list[Break]:
        """Set breakpoints in every process of a job, or of all jobs, that is there or starts later.

        Returns:
            The same with the ids that they got.

        Raises:
            ValueError: one is no breakpoint, or there are too many.
        """
        if len(self._breaks) + len(definitions) > MAX_BREAKS:
            raise ValueError(f"more than {MAX_BREAKS} breakpoints")
        if not all(isinstance(d, dict) and isinstance(d.get("where"), str) and d.get("source") for d in definitions):
            raise ValueError('a breakpoint has "where", "source", and "line" or "function"')
        added = []
        for definition in definitions:
            self._last_id += 1
            added.append({**definition, "id": f"b{self._last_id}", "job": job, "since": time.time()})
            self._breaks[added[-1]["id"]] = added[-1]
        for line in self.lines:
            mine = [d for d in added if line.concerns(d)]
            if mine:
                line.tell("breaks", {"add": mine})
        log.info("breakpoints set: %s", ", ".join(f"{d['id']} {d['where']}" for d in added))
        return added

    def remove(self, break_ids: list[str]) -> list[str]:
        """Remove breakpoints, and return the ids of those that were there."""
        gone = [break_id for break_id in break_ids if self._breaks.pop(break_id, None) is not None]
        self._removed.update(gone)
        for line in self.lines:
            if gone:
                line.tell("breaks", {"remove": gone})
        return gone

    def forget_job(self, job: str) -> None:
        """Forget the breakpoints of a job that has ended."""
        self.remove([d["id"] for d in self._breaks.values() if d.get("job") == job])

    def describe_breaks(self) -> list[dict[str, Any]]:
        """Return every breakpoint with the states it has in the processes that it concerns."""
        described = []
        for definition in self._breaks.values():
            lines = [line for line in self.lines if line.concerns(definition)]
            about = {name: definition.get(name) for name in ("id", "where", "policy", "job", "source")}
            described.append({**about, "processes": [line.report(definition["id"]) for line in lines]})
        return described

    def _take(self, line: ControlLine, message: dict[str, Any]) -> None:
        body = dict(message.get("body") or {})
        if message.get("event") == "known":
            self._welcome(line, list(body.get("breaks") or ()), set(body.get("set") or ()))
        elif message.get("event") == "break":
            line.reports[str(body.get("id"))] = {k: str(body.get(k) or "") for k in ("state", "message")}
        else:
            line.take(str(message.get("event")), body)

    def _welcome(self, line: ControlLine, known: list[Break], standing: set[str]) -> None:
        """Tell a new line what changed since its process started; learn from it what an earlier gateway knew."""
        self.lines.add(line)
        there = {str(d.get("id")) for d in known}
        for definition in known:
            break_id = str(definition.get("id"))
            if break_id not in self._breaks and break_id not in self._removed and definition.get("where"):
                self._breaks[break_id] = definition
                number = break_id.removeprefix("b")
                self._last_id = max(self._last_id, int(number) if number.isdigit() else 0)
            line.reports[break_id] = {"state": "set" if break_id in standing else "waiting", "message": ""}
        missing = [d for d in self._breaks.values() if d["id"] not in there and line.concerns(d)]
        line.tell("breaks", {"add": missing, "remove": sorted(self._removed & there)})
