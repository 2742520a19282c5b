"""The trace of a job in a real cluster: phases of an actor by verl's timers, Ray's tasks, and none of it on request."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydebug.cluster.state import Cluster
from raydebug.runs.folder import SPANS, TASKS, load_run
from raydebug.runs.timeline import read_recorded
from raydebug.trace.lanes import groups_of
from raydebug.trace.why import explain
from runs import Run, raydebug, starting_runs, wait_for

pytestmark = pytest.mark.timeout(180)
# verl 0.9.1 utils/profiler/performance.py in its shape
TIMERS = """
import time
from contextlib import contextmanager

def _timer(name, timing_raw):
    began = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - began

@contextmanager
def marked_timer(name, timing_raw):
    yield from _timer(name, timing_raw)
"""
TRAINING = """
import time, ray
from ray.util.state import list_tasks
ray.init()

@ray.remote
class Trainer:
    def __init__(self):
        self.global_steps = 0

    def prepare(self):
        pass

    def fit(self):
        from verl.utils.profiler.performance import marked_timer
        for self.global_steps in (1, 2):
            raw = {}
            with marked_timer("step", raw), marked_timer("gen", raw):
                time.sleep(0.2)
        print("steps have ended", flush=True)

trainer = Trainer.remote()
ray.get(trainer.prepare.remote())
# A worker reports its tasks each second; what it has not reported as it is killed is lost.
while not list_tasks(filters=[("name", "=", "Trainer.prepare"), ("state", "=", "FINISHED")]):
    time.sleep(0.2)
ray.get(trainer.fit.remote())
"""

SLOW_SPOTS = """
import asyncio, time, ray
import numpy as np
from verl.utils.profiler.performance import marked_timer
ray.init()
SLOW_S = 2.0
SPOTS = {spots}

def nap(spot, where):
    time.sleep(SLOW_S if spot == where else 0.02)

@ray.remote
class Replica:
    def generate(self, spot, number):
        nap(spot, f"replica {{number}}")

@ray.remote
class AgentLoopWorker:
    async def generate(self, spot, number, replica):
        samples = [{{"uid": f"u{{number}}{{n}}"}} for n in (0, 1)]
        await asyncio.gather(*(self._run_agent_loop(spot, replica, kwargs=sample) for sample in samples))
        nap(spot, f"tokenizer {{number}}")

    async def _run_agent_loop(self, spot, replica, kwargs):
        raw, mine = {{}}, kwargs["uid"] == "u10"
        with marked_timer("generate_sequences", raw):
            await replica.generate.remote(spot, kwargs["uid"][1])
            await asyncio.sleep(SLOW_S if mine and spot == "one sample" else 0.02)
        with marked_timer("compute_score", raw):
            await asyncio.sleep(SLOW_S if mine and spot == "reward of one sample" else 0.02)

@ray.remote
class WorkerDict:
    def __init__(self, rank):
        self.rank = rank

    def update_actor(self, spot):
        nap(spot, f"rank {{self.rank}}")

    def save_checkpoint(self, spot):
        nap(spot, f"checkpoint {{self.rank}}")

    def update_weights(self, spot):
        nap(spot, f"weights {{self.rank}}")

@ray.remote
class Trainer:
    def __init__(self):
        self.global_steps = 0

    def fit(self):
        replicas = [Replica.options(max_concurrency=4).remote() for _ in range(2)]
        agents = [AgentLoopWorker.remote() for _ in range(2)]
        ranks = [WorkerDict.options(name=f"WorkerDict_0:{{n}}").remote(n) for n in range(2)]
        ray.get([agent.generate.remote("", n, replicas[n]) for n, agent in enumerate(agents)])
        for self.global_steps, spot in enumerate(SPOTS, 1):
            raw = {{}}
            with marked_timer("step", raw):
                nap(spot, "loader")
                with marked_timer("gen", raw):
                    ray.get([agent.generate.remote(spot, n, replicas[n]) for n, agent in enumerate(agents)])
                with marked_timer("old_log_prob", raw):
                    nap(spot, "large object")
                for name in ("update_actor", "save_checkpoint", "update_weights"):
                    with marked_timer(name, raw):
                        ray.get([getattr(rank, name).remote(spot) for rank in ranks])

trainer = Trainer.remote()
ray.get(trainer.fit.remote())
time.sleep(3)  # the workers report their tasks each second
"""
WORDS = {
    "loader": "the rest of the step",
    "replica 1": ": generate waited .* s for Replica ",
    "tokenizer 0": ": generate waited .* s for AgentLoopWorker ",
    "one sample": "for one sample [(]uid u10, generate, ",
    "reward of one sample": "for one sample [(]uid u10, reward, ",
    "large object": "old_log_prob took ",
    "rank 1": "update_actor waited .* s for WorkerDict rank 1 ",
    "checkpoint 0": "save_checkpoint waited .* s for WorkerDict rank 0 ",
    "weights 1": "update_weights waited .* s for WorkerDict rank 1 ",
}
"""By slow spot, a pattern of the answer to why its step was slow."""


@pytest.fixture
def train(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start the training in a folder that has a package `verl`: Ray's workers find what is beside the script."""
    folder = tmp_path / "verl" / "utils" / "profiler"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        (path / "__init__.py").touch()
    (folder / "performance.py").write_text(TIMERS)
    (tmp_path / "train.py").write_text(TRAINING)
    with starting_runs(cluster, cwd=tmp_path) as start:
        yield lambda *options: start(*options, "--", sys.executable, "train.py")


def test_a_job_leaves_its_trace(train: Callable[..., Run]) -> None:
    """The phases of an actor that ends at once are in the trace, with the numbers of steps and with Ray's tasks."""
    train().end()
    recorded = read_recorded(load_run())
    (trainer,) = [group for group in groups_of(recorded) if "Trainer (pid" in group.title]
    found = {lane.title: [event.name for event in lane.events] for lane in trainer.lanes}
    assert found["phases"] == ["step 1", "gen", "step 2", "gen"]
    assert "Trainer.prepare" in found["Ray tasks"]
    assert recorded.notes == []


@pytest.mark.long
def test_why_of_each_slow_spot(train: Callable[..., Run], tmp_path: Path) -> None:
    """A step that was slow for one reason is explained by its phase, and by the sample or the process that it was."""
    spots = [spot for name in WORDS for spot in ("", "", name)]
    (tmp_path / "train.py").write_text(SLOW_SPOTS.format(spots=[*spots, "", ""]))
    train().end()
    recorded = read_recorded(load_run())
    said = {name: explain(recorded, 3 * (number + 1)).text for number, name in enumerate(WORDS)}
    wrong = {name: text for name, text in said.items() if not re.search(WORDS[name], text)}
    assert not wrong, "\n".join(wrong.values())
    assert "no more than its neighbours" in explain(recorded, 7).text


def test_trace_while_it_runs(train: Callable[..., Run], tmp_path: Path) -> None:
    """The trace of a run that goes on has the tasks that Ray knows now, before its recorder has read them."""
    (tmp_path / "train.py").write_text(TRAINING + "time.sleep(600)\n")
    run = train()
    wait_for(lambda: "steps have ended" in run.text, "the steps", run=run)
    time.sleep(2)  # a worker reports its tasks each second
    tasks = load_run().folder / TASKS
    assert not tasks.exists() or "Trainer.fit" not in tasks.read_text()
    done = raydebug("trace", "-o", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    assert "Trainer.fit" in (tmp_path / "trace.json").read_text()
    assert "Trainer.fit" in tasks.read_text()


@pytest.mark.long
def test_a_thousand_spans_a_second(train: Callable[..., Run], tmp_path: Path) -> None:
    """Of 60,000 spans in a minute each one is recorded, and the process has grown by its ring at most."""
    program = """
import resource, time
import ray
from verl.utils.profiler.performance import marked_timer
ray.init()
time.sleep(3)  # the process is described before
before, began, slept_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), 0.0
for number in range(60_000):
    with marked_timer("part", {}):
        pass
    time.sleep(max(0.0, began + number / 1000 - time.monotonic()))
print("grown by", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, "KiB in", time.monotonic() - began)
time.sleep(5)
"""
    (tmp_path / "train.py").write_text(program)
    out = train().end(timeout_s=150)
    recorded = read_recorded(load_run())
    assert sum(one.name == "part" for process in recorded.processes for one in process.spans) == 60_000
    assert recorded.notes == []
    grown = re.search(r"grown by (\d+) KiB in (\d+)", out)
    assert grown is not None
    assert int(grown[1]) < 40_000
    assert int(grown[2]) < 65


@pytest.mark.long
def test_a_job_without_spans(train: Callable[..., Run]) -> None:
    """With --no-spans neither spans nor Ray's tasks are recorded."""
    train("--no-spans").end()
    folder = load_run().folder
    assert not (folder / SPANS).exists()
    assert not (folder / TASKS).exists()
