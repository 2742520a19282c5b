"""Record a run in its folder while it runs, so that a run that is cut off leaves what there was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

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
# The record of any run stays small: what is written every WRITE_EVERY_S takes 50 ms of processor time.
MOST_SAMPLES = 32_000  # of all processes and GPUs together; with more, each keeps half of its samples
LEAST_OF_SERIES = 64  # samples that each of very many processes may have nevertheless
MOST_SERIES = 4_000  # processes and GPUs; later ones are not recorded
REST_CHARS = 2**20  # of a line of the log that has not ended
MOST_PAUSES = 10_000
MIB = 2**20
NODE = "all processes of the node"
FULL_SIZE = (None, "full", "fast-load", "train-only")  # profiles that leave batches and responses as they are


Sample: TypeAlias = tuple[float, ...]
"""(seconds, MiB) of a process, (seconds, MiB, % busy) of a GPU, from this moment until the next sample: the highest
memory and the mean load."""


@dataclass
class Series:
    """The samples of one process or GPU, in order; `in_last` measurements are in the last one."""

    samples: list[Sample] = field(default_factory=list)
    in_last: int = 1

    def add(self, sample: Sample, every_s: float) -> int:
        """Add a measurement, to the last sample if that is of the same `every_s`; return how many samples are new."""
        last = self.samples[-1] if self.samples else None
        if last is None or not every_s or last[0] // every_s != sample[0] // every_s:
            if last is not None and every_s:
                self.samples[-1] = _rounded(last)
            self.samples.append(sample)
            self.in_last = 1
            return 1
        self.in_last += 1
        means = (mean + (load - mean) / self.in_last for mean, load in zip(last[2:], sample[2:], strict=True))
        self.samples[-1] = (last[0], max(last[1], sample[1]), *means)
        return 0

    def thin(self, every_s: float) -> int:
        """Keep one sample for each `every_s`; return how many are left."""
        groups = [list(same) for _, same in groupby(self.samples, lambda sample: sample[0] // every_s)]
        self.in_last *= len(groups[-1])
        self.samples = [_merged(same) for same in groups]
        return len(self.samples)


def _merged(same: Sequence[Sample]) -> Sample:
    loads = zip(*(one[2:] for one in same), strict=True)
    return _rounded((same[0][0], max(one[1] for one in same), *map(fmean, loads)))


def _rounded(sample: Sample) -> Sample:
    return tuple(map(round, sample))  # whole numbers are encoded three times as fast


@dataclass
class Memory:
    """Memory samples of the processes and GPUs of a run, at most MOST_SAMPLES: a long run has fewer for each hour.

    Args:
        with_children: the workers are processes of this machine, so that their children can be measured.
    """

    with_children: bool = False
    processes: dict[tuple[str, str], Series] = field(default_factory=dict)
    gpus: dict[tuple[str, str], Series] = field(default_factory=dict)
    totals_mib: dict[tuple[str, str], float] = field(default_factory=dict)  # of the GPUs
    every_s: float = 0.0  # between two samples, once they are thinned out
    count: int = 0

    def take(self, node: str, statistics: Mapping[str, Any], at_s: float, titles: dict[int, str]) -> None:
        """Add the measurements of a node's agent.

        Args:
            node: its address.
            statistics: of the dashboard's /nodes/ID.
            at_s: seconds since the run began.
            titles: names of the job's workers, by pid; other workers are ignored.
        """
        at_s = round(at_s, 1)
        used = Counter({NODE: (statistics.get("mem") or [0, 0, 0, 0])[3]})  # bytes; processes of one name together
        for worker in statistics.get("workers") or ():
            pid = worker.get("pid")
            if pid not in titles:
                continue
            used[titles[pid]] += (worker.get("memoryInfo") or {}).get("rss", 0)
            if self.with_children:
                used.update(_memory_of_children(pid, titles[pid]))
        for process, size in used.items():
            self._add(self.processes, (process, node), (at_s, round(size / MIB)))
        for gpu in statistics.get("gpus") or ():
            key = (f"GPU {gpu.get('index')}: {gpu.get('name')}", node)
            self.totals_mib[key] = float(gpu.get("memoryTotal") or 0)
            mib, load = round(gpu.get("memoryUsed") or 0), round(gpu.get("utilizationGpu") or 0)
            self._add(self.gpus, key, (at_s, mib, load))

    def _add(self, those: dict[tuple[str, str], Series], key: tuple[str, str], sample: Sample) -> None:
        series = len(self.processes) + len(self.gpus)
        if key not in those and series >= MOST_SERIES:
            return
        self.count += those.setdefault(key, Series()).add(sample, self.every_s)
        while self.count > max(MOST_SAMPLES, LEAST_OF_SERIES * series):
            self.every_s = 2 * (self.every_s or SAMPLE_EVERY_S)
            self.count = sum(one.thin(self.every_s) for one in chain(self.processes.values(), self.gpus.values()))

    def describe(self) -> dict[str, object]:
        """Return the parts `memory` and `gpus` of a run's document."""
        memory = [{"process": p, "node": n, "samples": one.samples} for (p, n), one in self.processes.items()]
        gpus = [
            {"name": name, "node": node, "total_mib": self.totals_mib[name, node], "samples": one.samples}
            for (name, node), one in self.gpus.items()
        ]
        return {"memory": memory, "gpus": gpus}


def _memory_of_children(pid: int, title: str) -> Counter[str]:
    """Return the bytes of a worker's children, those of one program together."""
    import psutil

    found = Counter[str]()
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, IndexError):
                name = child.cmdline()[0].split()[0].rpartition("/")[2]
                found[f"{name} of {title}"] += child.memory_info().rss
    return found


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
        self._lock = digest_of(cluster.flavour)
        self._phases = Phases(self._started)
        self._step_texts: dict[int, str] = {}
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
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-REST_CHARS:]
        now = self._now()
        found = []
        for line in lines:
            steps = self._phases.step_count
            self._phases.take(line, now)
            if self._phases.step_count > steps:
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
        return len(self._phases.ended) + len(self._phases.taken) + self._phases.step_count

    def take_hang(self, lines: Sequence[str], *, why: str, fix: str) -> None:
        """Record that the job hangs: lines for its log, and a finding of the run."""
        self._keep_log("".join(f"raydebug: {line}\n" for line in lines))
        at_s = f"{self._now() - self._started:.0f}"
        self._findings.append(
            {"code": "run.hangs", "severity": "error", "what": lines[0], "why": why, "fix": fix, "at_s": at_s}
        )
        self._write(None)

    def take_findings(self, findings: Sequence[dict[str, str]]) -> None:
        """Record what was found out about the run, as `report` shows it."""
        self._findings += findings

    def take_pauses(self, pauses: list[ListedPause]) -> None:
        """Record the job's pauses as they are listed now."""
        now_s = self._now() - self._started
        listed = {str(pause["id"]) for pause in pauses}
        for pause in pauses:
            if pause["id"] in self._pauses:
                self._pauses[pause["id"]]["end_s"] = None  # the gateway has restarted
            elif len(self._pauses) < MOST_PAUSES:
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
        with contextlib.suppress(RaydebugError, ValueError, RecursionError):
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
        at_s = self._now() - self._started
        for node in dashboard.nodes():
            if node["state"] == "ALIVE":
                self._memory.take(node["node_ip"], dashboard.node_statistics(node["node_id"]), at_s, titles)

    def _now(self) -> float:
        """Return the time in seconds since the epoch; it goes on steadily when the clock is set."""
        return self._ahead_s + time.monotonic()

    def _keep_log(self, text: str) -> None:
        if self._folder is not None:
            try:
                self._folder.add_log(text)
            except OSError:
                self._folder = None

    def _encoded_steps(self) -> str:
        """Return the steps as JSON; each is encoded once, as it does not change."""
        known = self._step_texts
        self._step_texts = {one["step"]: known.get(one["step"]) or json.dumps(one) for one in [*self._phases.steps]}
        return f"[{', '.join(self._step_texts.values())}]"

    def _write(self, end: Mapping[str, object] | None) -> None:
        with self._writing:  # what a sample began to write must not come after the end
            self.has_ended |= end is not None
            if end is not None or not self.has_ended:
                self._write_document(end)

    def _write_document(self, end: Mapping[str, object] | None) -> None:
        if self._folder is None:
            return
        now = self._now()
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
            "step_count": self._phases.step_count,  # `steps` has fewer in a long run
            **self._memory.describe(),
            "pauses": list(self._pauses.values()),
            "findings": self._findings,
            "snapshots": list(self.snapshots.values()),
            "log": LOG,
        }
        try:
            self._folder.write(document, steps=self._encoded_steps())
        except OSError:
            self._folder = None
