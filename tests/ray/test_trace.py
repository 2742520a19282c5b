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
