"""The trace of a job in a real cluster: phases of an actor by verl's timers, Ray's tasks, and none of it on request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydebug.cluster.state import Cluster
from raydebug.jobs.run_folder import SPANS, TASKS, load_run
from raydebug.trace.lanes import groups_of
from raydebug.trace.record import read_recorded
from runs import Run, starting_runs

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


def test_a_job_without_spans(train: Callable[..., Run]) -> None:
    """With --no-spans neither spans nor Ray's tasks are recorded."""
    train("--no-spans").end()
    folder = Path(load_run()["folder"])
    assert not (folder / SPANS).exists()
    assert not (folder / TASKS).exists()
