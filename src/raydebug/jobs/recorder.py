"""Record a run in its folder while it runs, so that a run that is cut off leaves what there was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.cluster.kinds import kind_of
from raydebug.errors import RaydebugError
from raydebug.gateway.gateway_client import fetch_snapshot, fetch_snapshots, name_owner, name_place, name_reason
from raydebug.jobs.phases import Phases
from raydebug.jobs.run_folder import LOG, RUN, RunFolder, remove_oldest
from raydebug.jobs.submit import folder_of
from raydebug.protocol import variables
from raydebug.protocol.listings import ListedPause
from raydebug.protocol.secrets import without_secret_arguments, without_secrets
from raydebug.protocol.snapshot import SnapshotSummary
from raydebug.settings.flavours import digest_of

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard, JobInfo
    from raydebug.cluster.state import Cluster
    from raydebug.findings import Finding

SAMPLE_EVERY_S = 2.0
WRITE_EVERY_S = 5.0
MOST_PAUSES = 10_000
MIB = 2**20
NODE = "all processes of the node"
FULL_SIZE = (None, "full", "fast-load", "train-only")  # profiles that leave batches and responses as they are


@dataclass
class Memory:
    """Memory samples of the processes and GPUs of a run.

    Args:
        with_children: the workers are processes of this machine, so that their children can be measured.
    """

    with_children: bool = False
    processes: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    gpus: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def take(self, node: str, statistics: Mapping[str, Any], at_s: float, titles: dict[int, str]) -> None:
        """Add the measurements of a node's agent.

        Args:
            node: its address.
            statistics: of the dashboard's /nodes/ID.
            at_s: seconds since the run began.
            titles: names of the job's workers, by pid; other workers are ignored.
        """
        used = (statistics.get("mem") or [0, 0, 0, 0])[3]
        self._add(NODE, node, at_s, used / MIB)
        for worker in statistics.get("workers") or ():
            pid = worker.get("pid")
            if pid not in titles:
                continue
            self._add(titles[pid], node, at_s, (worker.get("memoryInfo") or {}).get("rss", 0) / MIB)
            if self.with_children:
                self._take_children(pid, titles[pid], node, at_s)
        for gpu in statistics.get("gpus") or ():
            self._take_gpu(gpu, node, at_s)

    def _take_children(self, pid: int, title: str, node: str, at_s: float) -> None:
        import psutil

        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, IndexError):
                    name = child.cmdline()[0].split()[0].rpartition("/")[2]
                    self._add(f"{name} of {title}", node, at_s, child.memory_info().rss / MIB)

    def _take_gpu(self, gpu: Mapping[str, Any], node: str, at_s: float) -> None:
        name = f"GPU {gpu.get('index')}: {gpu.get('name')}"
        entry = self.gpus.setdefault((name, node), {"total_mib": float(gpu.get("memoryTotal") or 0), "samples": []})
        used, load = float(gpu.get("memoryUsed") or 0), float(gpu.get("utilizationGpu") or 0)
        entry["samples"].append((round(at_s, 1), used, load))

    def _add(self, process: str, node: str, at_s: float, mib: float) -> None:
        samples = self.processes.setdefault((process, node), [])
        at_s = round(at_s, 1)
        if samples and samples[-1][0] == at_s:  # several children of one name: together
            samples[-1] = (at_s, round(samples[-1][1] + mib, 1))
        else:
            samples.append((at_s, round(mib, 1)))

    def describe(self) -> dict[str, object]:
        """Return the parts `memory` and `gpus` of a run's document."""
        memory = [{"process": p, "node": n, "samples": samples} for (p, n), samples in self.processes.items()]
        gpus = [{"name": name, "node": node, **entry} for (name, node), entry in self.gpus.items()]
        return {"memory": memory, "gpus": gpus}


class Recorder:
    """Record one run.

    Args:
        cluster: where it runs.
        about: the job, as the dashboard describes it.
        command: the user's, as words.
    """

    def __init__(self, cluster: Cluster, about: JobInfo, command: list[str]) -> None:
        self._cluster = cluster
        self._id = str(about["submission_id"])
        self._started = (about.get("start_time") or time.time() * 1000) / 1000
        self._variables = without_secrets((about.get("runtime_env") or {}).get("env_vars") or {})
        self._command = without_secret_arguments(command)
        folder = folder_of(about.get("entrypoint") or "")
        self._working_dir = None if folder is None else str(kind_of(cluster).runner().here(folder))
        self._profile = self._variables.get(variables.PROFILE)
        self._lock = digest_of(cluster.flavour)
        self._phases = Phases(self._started)
        self._memory = Memory(with_children=cluster.is_local)
        self._changes: list[dict[str, str]] = []
        self._pauses: dict[str, dict[str, Any]] = {}
        self._findings: list[dict[str, str]] = []
        self._is_small = self._profile not in FULL_SIZE or variables.TINY in self._variables
        self.numbers: dict[str, Finding] = {}  # what the metrics of the steps showed, by code
        self.snapshots: dict[str, SnapshotSummary] = {}  # in the folder, by id
        self._keeps_snapshots = True
        self._rest = ""
        self.log_chars = 0
        self.has_ended = False
        self._writing = threading.Lock()
        self._folder: RunFolder | None = None
        with contextlib.suppress(OSError):  # a full disk must not keep the job from running
            self._folder = RunFolder(self._id).claimed()
            remove_oldest(RUN)
        self._write(None)

    def take_log(self, text: str) -> list[Finding]:
        """Record a piece of the job's log, and return what the metrics of its steps show for the first time."""
        self._keep_log(text)
        self.log_chars += len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        now = time.time()
        found = []
        for line in lines:
            steps = len(self._phases.steps)
            self._phases.take(line, now)
            if len(self._phases.steps) > steps:
                found += self._judge_step(now)
        return found

    def _judge_step(self, now: float) -> list[Finding]:
        trainer, steps = self._phases.trainer, self._phases.steps
        found = [] if trainer is None else trainer.judge_numbers(steps, small=self._is_small)
        new = [one for one in found if one.code not in self.numbers]
        self.numbers |= {one.code: one for one in new}
        self._findings += [{**one.as_json(), "at_s": f"{now - self._started:.0f}"} for one in new]
        return new

    @property
    def folder(self) -> Path | None:
        """The run's folder; None where none could be made."""
        return None if self._folder is None else self._folder.path

    @property
    def is_paused(self) -> bool:
        """Whether a process of the job is paused."""
        return any(entry["end_s"] is None for entry in self._pauses.values())

    @property
    def phases_ended(self) -> int:
        """How many phases and steps have ended."""
        return len(self._phases.ended) + len(self._phases.taken) + len(self._phases.steps)

    def take_hang(self, lines: Sequence[str], *, why: str, fix: str) -> None:
        """Record that the job hangs: lines for its log, and a finding of the run."""
        self._keep_log("".join(f"raydebug: {line}\n" for line in lines))
        at_s = f"{time.time() - self._started:.0f}"
        self._findings.append(
            {"code": "run.hangs", "severity": "error", "what": lines[0], "why": why, "fix": fix, "at_s": at_s}
        )
        self._write(None)

    def take_findings(self, findings: Sequence[dict[str, str]]) -> None:
        """Record what was found out about the run, as `report` shows it."""
        self._findings += findings

    def take_pauses(self, pauses: list[ListedPause]) -> None:
        """Record the job's pauses as they are listed now."""
        now_s = time.time() - self._started
        listed = {str(pause["id"]) for pause in pauses}
        for pause in pauses:
            if pause["id"] not in self._pauses and len(self._pauses) < MOST_PAUSES:
                start_s = now_s - float(pause.get("since_s") or 0)
                about = {"where": name_place(pause), "who": name_owner(pause), "start_s": round(start_s, 3)}
                kept = {"id": pause["id"], "kind": pause.get("kind"), "exception": name_reason(pause) or None}
                self._pauses[str(pause["id"])] = {**kept, **about, "end_s": None}
        for pause_id, entry in self._pauses.items():
            if entry["end_s"] is None and pause_id not in listed:
                entry["end_s"] = round(now_s, 3)

    def take_snapshots(self) -> None:
        """Write the snapshots of new crashes into the folder (`raydebug snapshot` writes its own); say once why not."""
        if self._folder is None or not self._keeps_snapshots:
            return
        try:
            for one in fetch_snapshots(self._cluster, self._id):
                if one["id"] not in self.snapshots and one.get("kind") == "crash":
                    self._folder.add_snapshot(one["id"], fetch_snapshot(self._cluster, self._id, one["id"]))
                    self.snapshots[one["id"]] = one
        except RaydebugError:
            pass  # a gateway that is gone, or of an earlier version
        except OSError as error:
            self._keeps_snapshots = False
            render.say(f"snapshots of crashes are not kept: {error}")

    async def watch_memory(self, dashboard: Dashboard) -> None:
        """Sample memory until cancelled, and write the record every WRITE_EVERY_S."""
        written = time.monotonic()
        while True:
            with contextlib.suppress(RaydebugError, KeyError, TypeError):
                await asyncio.to_thread(self._sample, dashboard)
            await asyncio.to_thread(self.take_snapshots)
            if time.monotonic() - written >= WRITE_EVERY_S:
                written = time.monotonic()
                await asyncio.to_thread(self._write, None)
            await asyncio.sleep(SAMPLE_EVERY_S)

    def read_changes(self, dashboard: Dashboard) -> None:
        """Read what the profile changed, which the driver has written beside Ray's logs (profile/apply.py)."""
        if self._profile is None:
            return
        name = variables.PROFILE_REPORT.format(job=self._id)
        with contextlib.suppress(RaydebugError, ValueError):
            heads = [node["node_id"] for node in dashboard.nodes() if node.get("is_head_node")]
            if heads and name in dashboard.log_names(heads[0]):
                self._changes = json.loads(dashboard.log_text(heads[0], name))

    def end(self, status: str, exit_code: int, first_error: dict[str, str] | None) -> None:
        """Record how the run ended."""
        if self._rest:
            self.take_log("\n")
        self.take_pauses([])
        self._write({"status": status.lower(), "exit_code": exit_code, "first_error": first_error})

    def _sample(self, dashboard: Dashboard) -> None:
        from raydebug.jobs.logs import rank_of

        if not self._changes:
            self.read_changes(dashboard)
        job_id = dashboard.job(self._id).get("job_id")
        titles: dict[int, str] = {}
        for actor in dashboard.actors(str(job_id)) if job_id else ():
            rank = rank_of(actor)
            titles[actor["pid"]] = f"{actor['class_name']} rank {rank}" if rank is not None else actor["class_name"]
        at_s = time.time() - self._started
        for node in dashboard.nodes():
            if node["state"] == "ALIVE":
                self._memory.take(node["node_ip"], dashboard.node_statistics(node["node_id"]), at_s, titles)

    def _keep_log(self, text: str) -> None:
        if self._folder is not None:
            try:
                self._folder.add_log(text)
            except OSError:
                self._folder = None

    def _write(self, end: Mapping[str, object] | None) -> None:
        with self._writing:  # what a sample began to write must not come after the end
            self.has_ended |= end is not None
            if end is not None or not self.has_ended:
                self._write_document(end)

    def _write_document(self, end: Mapping[str, object] | None) -> None:
        if self._folder is None:
            return
        now = time.time()
        cluster = self._cluster
        document = {
            "kind": RUN,
            "id": self._id,
            "command": self._command,
            "working_dir": self._working_dir,
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
            "findings": self._findings,
            "snapshots": list(self.snapshots.values()),
            "log": LOG,
        }
        try:
            self._folder.write(document)
        except OSError:
            self._folder = None
