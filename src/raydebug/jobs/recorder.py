"""Record a run in its folder while it runs, so that a run that is cut off leaves what there was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.client.gateway_client import fetch_snapshot, fetch_snapshots, name_owner, name_place, name_reason
from raydebug.cluster.kinds import kind_of
from raydebug.errors import RaydebugError
from raydebug.jobs.deaths import DeathWatch
from raydebug.jobs.memory_samples import SAMPLE_AT_MOST_S, SAMPLE_EVERY_S, Memory
from raydebug.jobs.pace import Pace
from raydebug.jobs.phases import Phases
from raydebug.jobs.span_log import SpanLog
from raydebug.jobs.submit import folder_of
from raydebug.protocol import variables
from raydebug.protocol.listings import ListedPause
from raydebug.protocol.names import name_process
from raydebug.protocol.secrets import without_secret_arguments, without_secrets
from raydebug.protocol.snapshot import SnapshotSummary
from raydebug.runs.folder import LOG, RunFolder, remove_oldest
from raydebug.runs.record import RUN, Change, Pause, Run, read_changes
from raydebug.settings.flavours import digest_of

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard, JobInfo
    from raydebug.cluster.state import Cluster
    from raydebug.findings import Finding
    from raydebug.protocol.death import EndedProcess
    from raydebug.trainers.trainer import Trainer

WRITE_EVERY_S = 5.0
# The record of any run stays small: what is written every WRITE_EVERY_S takes 50 ms of processor time.
REST_CHARS = 2**20  # of a line of the log that has not ended
MOST_PAUSES = 10_000
# A line in which Ray speaks of the cluster: of an almost full disk it does so every ten seconds, however the job goes.
# Source: ray 2.60.0 _private/worker.py `print_worker_logs`; observed.
_OF_CLUSTER = re.compile(r"(?:\x1b\[[0-9;]*m)*\((?:raylet|autoscaler|gcs_server)\b")
FULL_SIZE = (None, "full", "fast-load", "train-only")  # profiles that leave batches and responses as they are


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
        self._ahead_s = time.time() - time.monotonic()  # the clock may be set while the job runs
        self._started = (about.get("start_time") or time.time() * 1000) / 1000
        self._variables = without_secrets((about.get("runtime_env") or {}).get("env_vars") or {})
        self._command = without_secret_arguments(command)
        folder = folder_of(about.get("entrypoint") or "")
        self._working_dir = None if folder is None else str(kind_of(cluster).runner().here(folder))
        self._profile = self._variables.get(variables.PROFILE)
        self._lock = digest_of(cluster.flavour, None if cluster.kind == "compose" else cluster.python)
        self._phases = Phases(self._started, trainer=_trainer_of(command, Path(self._working_dir or ".")))
        self._step_texts: dict[int, str] = {}
        self._memory = Memory(with_children=cluster.is_local)
        self._titles: dict[tuple[str, int], str] = {}  # of actors, by node and pid
        # Workers that ran when Ray's table of actors was read, by node, pid and name: for a new one it is read again.
        self._known_workers: set[tuple[str, int, str]] = set()
        self._changes: list[Change] = []
        self._pauses: dict[str, Pause] = {}
        self._findings: list[dict[str, str]] = []
        self._is_small = self._profile not in FULL_SIZE or variables.TINY in self._variables
        self.numbers: dict[str, Finding] = {}  # what the metrics of the steps showed, by code
        self.snapshots: dict[str, SnapshotSummary] = {}  # in the folder, by id
        self._keeps_snapshots = True
        self._held: dict[tuple[str, int], int] = {}  # bytes of each process, by node and pid, when last measured
        self.deaths = DeathWatch(cluster, self._id, self._progress_of)
        self._rest = ""
        self.log_chars = 0  # without what Ray says of the cluster
        self.has_ended = False
        self._writing = threading.Lock()
        self._folder: RunFolder | None = None
        self._has_gaps = False
        with self._allowing_gaps():  # a full disk must not keep the job from running
            self._folder = RunFolder(self._id).claimed()
            remove_oldest(RUN)
        self.spans = SpanLog(cluster, self._id, None if self._variables.get(variables.SPANS) == "0" else self.folder)
        self._write(None)

    def take_log(self, text: str) -> list[Finding]:
        """Record a piece of the job's log, and return what the metrics of its steps show for the first time."""
        self._keep_log(text)
        *lines, rest = (self._rest + text).split("\n")
        self.log_chars += len(text) - sum(len(line) + 1 for line in lines if _OF_CLUSTER.match(line))
        self._rest = rest[-REST_CHARS:]
        now, phases = self._now(), self._phases
        shown: list[Finding] = []
        for line in lines:
            steps = phases.step_count
            phases.take(line, now)
            if phases.step_count > steps and phases.trainer is not None:
                findings = phases.trainer.judge_numbers(phases.steps, small=self._is_small)
                new = [finding for finding in findings if finding.code not in self.numbers]
                self.numbers |= {finding.code: finding for finding in new}
                self._findings += [{**finding.as_json(), "at_s": f"{now - self._started:.0f}"} for finding in new]
                shown += new
        return shown

    @property
    def folder(self) -> Path | None:
        """The run's folder; None where none could be made."""
        return None if self._folder is None else self._folder.path

    @property
    def is_paused(self) -> bool:
        """Whether a process of the job is paused."""
        return any(pause.end_s is None for pause in self._pauses.values())

    @property
    def phases_ended(self) -> int:
        """How many phases and steps have ended."""
        return len(self._phases.ended) + len(self._phases.taken) + self._phases.step_count

    @property
    def step_seconds(self) -> list[float]:
        """How long each step took."""
        return [step["seconds"] for step in self._phases.steps]

    @property
    def step_ends(self) -> list[float] | None:
        """When each step has ended, in seconds since the epoch; None where no trainer is recognised."""
        if self._phases.trainer is None:
            return None
        return [self._started + step["end_s"] for step in self._phases.steps]

    @property
    def last_metrics(self) -> Mapping[str, float]:
        """The metrics of the last step."""
        return self._phases.steps[-1]["metrics"] if self._phases.steps else {}

    def take_hang(self, lines: Sequence[str], *, why: str, fix: str) -> None:
        """Record that the job hangs: lines for its log, and a finding of the run."""
        self._keep_log("".join(f"raydebug: {line}\n" for line in lines))
        self.take_finding("run.hangs", "error", lines[0], why=why, fix=fix)

    def take_finding(self, code: str, severity: str, what: str, *, why: str, fix: str) -> None:
        """Record something that was found now, while the job runs."""
        at_s = f"{self._now() - self._started:.0f}"
        self._findings.append({"code": code, "severity": severity, "what": what, "why": why, "fix": fix, "at_s": at_s})
        self._write(None)

    def _progress_of(self, ended: EndedProcess) -> tuple[int, str, int | None]:
        steps, pid, node_id = self._phases.steps, ended.get("pid"), ended.get("node_id")
        held = [rss for (of, key), rss in self._held.items() if key == pid and node_id in (None, of)]
        return held[0] if len(held) == 1 else 0, self._phases.current, steps[-1]["step"] + 1 if steps else None

    def take_findings(self, findings: Sequence[dict[str, str]]) -> None:
        """Record what was found out about the run, as `report` shows it."""
        self._findings += findings

    def take_pauses(self, pauses: list[ListedPause]) -> None:
        """Record the job's pauses as they are listed now."""
        now_s = self._now() - self._started
        listed = {str(pause["id"]) for pause in pauses}
        for pause in pauses:
            if pause["id"] in self._pauses:
                self._pauses[pause["id"]] = replace(self._pauses[pause["id"]], end_s=None)  # the gateway has restarted
            elif len(self._pauses) < MOST_PAUSES:
                start_s = now_s - float(pause.get("since_s") or 0)
                self._pauses[str(pause["id"])] = Pause(
                    id=str(pause["id"]),
                    kind=str(pause.get("kind") or "?"),
                    exception=name_reason(pause) or None,
                    where=name_place(pause),
                    who=name_owner(pause),
                    start_s=round(start_s, 3),
                )
        for pause_id, recorded in self._pauses.items():
            if recorded.end_s is None and pause_id not in listed:
                self._pauses[pause_id] = replace(recorded, end_s=round(now_s, 3))

    def take_snapshots(self, *, last: bool = False) -> None:
        """Write the snapshots of new crashes into the folder (`raydebug snapshot` writes its own); say once why not.

        Each is fetched whole before it is written: after a failure, a full disk, only the last call tries again.
        """
        if self._folder is None or not (self._keeps_snapshots or last):
            return
        try:
            for snapshot in fetch_snapshots(self._cluster, self._id):
                if snapshot["id"] not in self.snapshots and snapshot.get("kind") == "crash":
                    self._folder.add_snapshot(snapshot["id"], fetch_snapshot(self._cluster, self._id, snapshot["id"]))
                    self.snapshots[snapshot["id"]] = snapshot
        except RaydebugError:
            pass  # a gateway that is gone, or of an earlier version
        except OSError as error:
            if self._keeps_snapshots:
                render.say(f"snapshots of crashes are not kept: {error}")
            self._keeps_snapshots = False

    async def watch_memory(self, dashboard: Dashboard) -> None:
        """Sample memory until cancelled, and write the record every WRITE_EVERY_S."""
        written, pace = time.monotonic(), Pace(self._cluster, SAMPLE_EVERY_S, SAMPLE_AT_MOST_S, can_wait=True)
        while True:
            with contextlib.suppress(RaydebugError, KeyError, TypeError):
                await asyncio.to_thread(self._sample, dashboard)
            await asyncio.to_thread(self.take_snapshots)
            if time.monotonic() - written >= WRITE_EVERY_S:
                written = time.monotonic()
                await asyncio.to_thread(self._write, None)
            await pace.wait()

    def read_changes(self, dashboard: Dashboard) -> None:
        """Read what the profile changed, which the driver has written beside Ray's logs (profile/apply_profile.py)."""
        if self._profile is None:
            return
        name = variables.PROFILE_REPORT.format(job=self._id)
        with contextlib.suppress(RaydebugError, ValueError, RecursionError):
            heads = [node["node_id"] for node in dashboard.nodes() if node.get("is_head_node")]
            if heads and name in dashboard.log_names(heads[0]):
                self._changes = read_changes(json.loads(dashboard.log_text(heads[0], name)))

    def end(self, status: str, exit_code: int, first_error: dict[str, str] | None) -> None:
        """Record how the run ended."""
        if self._rest:
            self.take_log("\n")
        self.take_pauses([])
        self._write({"status": status.lower(), "exit_code": exit_code, "first_error": first_error})

    def _sample(self, dashboard: Dashboard) -> None:
        if not self._changes:
            self.read_changes(dashboard)
        at_s = self._now() - self._started
        nodes = {node["node_id"]: node["node_ip"] for node in dashboard.nodes() if node["state"] == "ALIVE"}
        statistics: dict[str, Mapping[str, Any]] = {}
        for node_id in nodes:
            with contextlib.suppress(RaydebugError):  # it has just ended
                statistics[node_id] = dashboard.node_statistics(node_id)
        workers = [(node_id, worker) for node_id, found in statistics.items() for worker in found.get("workers") or ()]
        seen = {(node_id, worker.get("pid", 0), _name_of(worker)) for node_id, worker in workers}
        if not seen <= self._known_workers and (job_id := dashboard.job(self._id).get("job_id")):
            from raydebug.jobs.logs import rank_of

            self._known_workers = seen
            for actor in dashboard.actors(job_id):
                about = {"actor": actor["class_name"], "rank": rank_of(actor)}
                self._titles[str(actor.get("node_id")), actor["pid"]] = name_process(about)
        for node_id, found in statistics.items():
            titles = {pid: title for (of, pid), title in self._titles.items() if of == node_id}
            self._memory.take(nodes[node_id], found, at_s, titles)
        for node_id, worker in workers:
            self._held[node_id, worker.get("pid", 0)] = (worker.get("memoryInfo") or {}).get("rss", 0)

    def _now(self) -> float:
        """Return the time in seconds since the epoch; it does not jump when the clock is set."""
        return self._ahead_s + time.monotonic()

    def _keep_log(self, text: str) -> None:
        if self._folder is not None:
            with self._allowing_gaps():
                self._folder.add_log(text)

    @contextlib.contextmanager
    def _allowing_gaps(self) -> Iterator[None]:
        """Say once that a part of the record cannot be written; the next one may be: a disk is full for a while."""
        try:
            yield
        except OSError as error:
            if not self._has_gaps:
                render.say(f"note: the record of this run is not whole: {error}")
            self._has_gaps = True

    def _write(self, end: Mapping[str, Any] | None) -> None:
        with self._writing:  # what a sample began to write must not come after the end
            self.has_ended |= end is not None
            if end is not None or not self.has_ended:
                self._write_document(end)

    def _write_document(self, end: Mapping[str, Any] | None) -> None:
        if self._folder is None:
            return
        now = self._now()
        cluster = self._cluster
        memory, gpus = self._memory.describe()
        run = Run(
            kind=RUN,
            id=self._id,
            command=self._command,
            working_dir=self._working_dir,
            cluster={name: getattr(cluster, name) for name in ("name", "kind", "flavour", "debugger")},
            profile=self._profile,
            changes=self._changes,
            variables=self._variables,
            lock={"flavour": cluster.flavour, "sha256": self._lock},
            started=self._started,
            ended=now if end else None,
            **(end or {"status": "running"}),
            phases=self._phases.spans(now - self._started if end else None),
            step_count=self._phases.step_count,
            memory=memory,
            gpus=gpus,
            pauses=list(self._pauses.values()),
            findings=self._findings,
            snapshots=list(self.snapshots.values()),
            # A copy of the values: another thread adds certificates.
            deaths=[certificate.as_json() for certificate in list(self.deaths.certificates.values())],
            log=LOG,
        )
        known = self._step_texts  # each step is encoded once, as it does not change
        self._step_texts = {step["step"]: known.get(step["step"]) or json.dumps(step) for step in [*self._phases.steps]}
        with self._allowing_gaps():
            self._folder.write(run, steps=f"[{', '.join(self._step_texts.values())}]")


def _name_of(worker: Mapping[str, Any]) -> str:
    """Return the name that Ray gives a worker's process, `ray::WorkerDict`, without a method that runs.

    `ray::WorkerDict.__init__` stays a name of its own: Ray's table has the pid of an actor when that has returned.
    """
    name = str(next(iter(worker.get("cmdline") or ()), ""))
    return name if name.endswith(".__init__") else name.partition(".")[0]


def _trainer_of(command: Sequence[str], folder: Path) -> Trainer | None:
    """Return the trainer of a command, itself or by a script; None if it is unknown, or there are several."""
    from raydebug.commands.trainings import find_trainings

    try:
        programs = [training.program for training in find_trainings(command, os.environ, folder)]
    except RaydebugError:  # a script that cannot be read
        return None
    trainers = {program.trainer.name: program.trainer for program in programs}
    return next(iter(trainers.values())) if len(trainers) == 1 else None
