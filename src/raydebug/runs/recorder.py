"""Writes a run's folder while the run goes on: a run that is cut off has left what there was."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from raydebug.errors import RaydebugError
from raydebug.pause.listing import Pause, name_owner, name_place
from raydebug.runs.folder import LOG, RUN, RunFolder, remove_oldest
from raydebug.runs.memory import Memory
from raydebug.runs.phases import Phases
from raydebug.settings.locks import digest_of
from raydebug.settings.secrets import without_secret_arguments, without_secrets
from raydebug.worker import names

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.state import Cluster

SAMPLE_EVERY_S = 2.0
WRITE_EVERY_S = 5.0
MOST_PAUSES = 10_000


class Recorder:
    """Records one run.

    Args:
        cluster: where it runs.
        about: the job, as the dashboard describes it.
        command: the user's, as words.
    """

    def __init__(self, cluster: Cluster, about: dict[str, Any], command: list[str]) -> None:
        self._cluster = cluster
        self._id = str(about["submission_id"])
        self._started = (about.get("start_time") or time.time() * 1000) / 1000
        self._variables = without_secrets((about.get("runtime_env") or {}).get("env_vars") or {})
        self._command = without_secret_arguments(command)
        self._profile = self._variables.get(names.PROFILE)
        self._lock = digest_of(cluster.flavour)
        self._phases = Phases(self._started)
        self._memory = Memory(with_children=cluster.kind == "local")
        self._changes: list[dict[str, str]] = []
        self._pauses: dict[str, dict[str, Any]] = {}
        self._rest = ""
        self._folder: RunFolder | None = None
        with contextlib.suppress(OSError):  # a full disk is no reason not to run
            self._folder = RunFolder(self._id)
            remove_oldest(RUN)
        self._write(None)

    def take_log(self, text: str) -> None:
        """Take a piece of the job's log."""
        self._keep_log(text)
        *lines, self._rest = (self._rest + text).split("\n")
        now = time.time()
        for line in lines:
            self._phases.take(line, now)
            self._take_change(line)

    def take_pauses(self, pauses: list[Pause]) -> None:
        """Take the job's pauses as they are listed now."""
        now_s = time.time() - self._started
        listed = {str(pause["id"]) for pause in pauses}
        for pause in pauses:
            if pause["id"] not in self._pauses and len(self._pauses) < MOST_PAUSES:
                start_s = now_s - float(pause.get("since_s") or 0)
                about = {"where": name_place(pause), "who": name_owner(pause), "start_s": round(start_s, 3)}
                kept = {name: pause.get(name) for name in ("id", "kind", "exception")}
                self._pauses[str(pause["id"])] = {**kept, **about, "end_s": None}
        for pause_id, entry in self._pauses.items():
            if entry["end_s"] is None and pause_id not in listed:
                entry["end_s"] = round(now_s, 3)

    async def watch_memory(self, dashboard: Dashboard) -> None:
        """Sample memory until cancelled, and write down from time to time what there is."""
        written = time.monotonic()
        while True:
            with contextlib.suppress(RaydebugError, KeyError, TypeError):
                await asyncio.to_thread(self._sample, dashboard)
            if time.monotonic() - written >= WRITE_EVERY_S:
                written = time.monotonic()
                await asyncio.to_thread(self._write, None)
            await asyncio.sleep(SAMPLE_EVERY_S)

    def end(self, status: str, exit_code: int, first_error: dict[str, Any] | None) -> None:
        """Write down how the run ended."""
        if self._rest:
            self.take_log("\n")
        self.take_pauses([])
        self._write({"status": status.lower(), "exit_code": exit_code, "first_error": first_error})

    def _sample(self, dashboard: Dashboard) -> None:
        from raydebug.joblog.sources import rank_of

        job_id = dashboard.job(self._id).get("job_id")
        titles: dict[int, str] = {}
        for actor in dashboard.actors(str(job_id)) if job_id else ():
            rank = rank_of(actor)
            titles[actor["pid"]] = f"{actor['class_name']} rank {rank}" if rank is not None else actor["class_name"]
        at_s = time.time() - self._started
        for node in dashboard.nodes():
            if node["state"] == "ALIVE":
                self._memory.take(node["node_ip"], dashboard.node_statistics(node["node_id"]), at_s, titles)

    def _take_change(self, line: str) -> None:
        """Note a change of the profile, as the driver says it (worker/driver.py)."""
        if self._profile and line.startswith("  ") and ": " in line and " -> " in line and line.endswith(")"):
            key, _, rest = line.strip().partition(": ")
            old, _, rest = rest.partition(" -> ")
            new, _, why = rest.partition(" (")
            self._changes.append({"key": key, "old": old, "new": new, "why": why.removesuffix(")")})

    def _keep_log(self, text: str) -> None:
        if self._folder is not None:
            try:
                self._folder.add_log(text)
            except OSError:
                self._folder = None

    def _write(self, end: dict[str, Any] | None) -> None:
        if self._folder is None:
            return
        now = time.time()
        cluster = self._cluster
        document = {
            "kind": RUN,
            "id": self._id,
            "command": self._command,
            "cluster": {name: getattr(cluster, name) for name in ("name", "kind", "flavour", "debugger")},
            "profile": self._profile,
            "changes": self._changes,
            "variables": self._variables,
            "lock": {"flavour": cluster.flavour, "sha256": self._lock},
            "started": self._started,
            "ended": now if end else None,
            **(end or {"status": "running", "exit_code": None, "first_error": None}),
            "phases": self._phases.spans(now - self._started if end else None),
            "steps": self._phases.steps,
            **self._memory.describe(),
            "pauses": list(self._pauses.values()),
            "findings": [],
            "log": LOG,
        }
        try:
            self._folder.write(document)
        except OSError:
            self._folder = None
