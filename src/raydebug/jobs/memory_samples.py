"""Samples of the memory of a run's processes and GPUs: a long run keeps fewer for each hour."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from raydebug.runs.record import NODE, GpuLoad, ProcessMemory

MOST_SAMPLES = 32_000  # of all processes and GPUs together; with more, each keeps half of its samples
LEAST_OF_SERIES = 64  # samples that each of very many processes may have nevertheless
MOST_SERIES = 4_000  # processes and GPUs; later ones are not recorded
MIB = 2**20
# As often as Ray's agents measure. Source: dashboard/modules/reporter/reporter_consts.py, REPORTER_UPDATE_INTERVAL_MS:
# 2.5 s in ray 2.41.0, 5 s in ray 2.60.0.
SAMPLE_EVERY_S, SAMPLE_AT_MOST_S = 2.5, 5.0

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
        merged = list[Sample]()
        for same in groups:
            loads = zip(*(sample[2:] for sample in same), strict=True)
            merged.append(_rounded((same[0][0], max(sample[1] for sample in same), *map(fmean, loads))))
        self.samples = merged  # at once: another thread reads them
        return len(merged)


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
        children = _children_by_parent() if self.with_children else {}
        used = Counter({NODE: (statistics.get("mem") or [0, 0, 0, 0])[3]})  # bytes; processes of one name together
        for worker in statistics.get("workers") or ():
            pid = worker.get("pid")
            if pid not in titles:
                continue
            used[titles[pid]] += (worker.get("memoryInfo") or {}).get("rss", 0)
            used.update(_memory_of_children(pid, titles[pid], children))
        for process, size in used.items():
            self._add(self.processes, (process, node), (at_s, round(size / MIB)))
        for gpu in statistics.get("gpus") or ():
            key = (f"GPU {gpu.get('index')}: {gpu.get('name')}", node)
            self.totals_mib[key] = float(gpu.get("memoryTotal") or 0)
            mib, load = round(gpu.get("memoryUsed") or 0), round(gpu.get("utilizationGpu") or 0)
            self._add(self.gpus, key, (at_s, mib, load))

    def _add(self, those: dict[tuple[str, str], Series], key: tuple[str, str], sample: Sample) -> None:
        count = len(self.processes) + len(self.gpus)
        if key not in those and count >= MOST_SERIES:
            return
        self.count += those.setdefault(key, Series()).add(sample, self.every_s)
        while self.count > max(MOST_SAMPLES, LEAST_OF_SERIES * count):
            self.every_s = 2 * (self.every_s or SAMPLE_EVERY_S)
            every = chain(self.processes.values(), self.gpus.values())
            self.count = sum(series.thin(self.every_s) for series in every)

    def describe(self) -> tuple[list[ProcessMemory], list[GpuLoad]]:
        """Return the parts `memory` and `gpus` of a run's document."""
        processes, gpu_series = [*self.processes.items()], [*self.gpus.items()]  # another thread adds to them
        memory = [ProcessMemory(process=name, node=node, samples=one.samples) for (name, node), one in processes]
        gpus = [
            GpuLoad(name=name, node=node, total_mib=self.totals_mib[name, node], samples=one.samples)
            for (name, node), one in gpu_series
        ]
        return memory, gpus


def _children_by_parent() -> dict[int, list[int]]:
    """Return the children of each process of this machine.

    One pass for all workers: psutil's `children` would read all of /proc for each of them.
    """
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                after_name = (folder / "stat").read_bytes().rpartition(b")")[2].split()  # which may hold any character
                found.setdefault(int(after_name[1]), []).append(int(folder.name))
    return found


def _memory_of_children(pid: int, title: str, children: dict[int, list[int]]) -> Counter[str]:
    """Return the bytes of a worker's children and of theirs, those of one program together; each counts once."""
    import psutil

    found = Counter[str]()
    below = children.pop(pid, [])
    while below:
        child = below.pop()
        below += children.pop(child, [])
        with contextlib.suppress(psutil.Error, IndexError):
            process = psutil.Process(child)
            name = process.cmdline()[0].split()[0].rpartition("/")[2]
            found[f"{name} of {title}"] += process.memory_info().rss
    return found
