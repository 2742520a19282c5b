"""How much memory a run's processes and GPUs take over time, as each node's agent of Ray measures it.

The agent looks every few seconds at the workers of its node (ray 2.60.0 dashboard/modules/reporter/reporter_agent.py).
Children of workers, such as vLLM's engine, are not in its list; on this machine they are counted by their parent.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20
NODE = "all processes of the node"


@dataclass
class Memory:
    """Collects samples.

    Args:
        with_children: the workers are processes of this machine, so that their children can be looked at.
    """

    with_children: bool = False
    processes: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    gpus: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def take(self, node: str, statistics: dict[str, Any], at_s: float, titles: dict[int, str]) -> None:
        """Enter what a node's agent measured.

        Args:
            node: its address.
            statistics: of the dashboard's /nodes/ID.
            at_s: seconds since the run began.
            titles: how the job's workers are called, by pid; workers of others are left out.
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

    def _take_gpu(self, gpu: dict[str, Any], node: str, at_s: float) -> None:
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

    def describe(self) -> dict[str, Any]:
        """Return the parts `memory` and `gpus` of a run's document."""
        memory = [{"process": p, "node": n, "samples": samples} for (p, n), samples in self.processes.items()]
        gpus = [{"name": name, "node": node, **entry} for (name, node), entry in self.gpus.items()]
        return {"memory": memory, "gpus": gpus}
