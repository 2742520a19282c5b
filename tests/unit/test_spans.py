"""Phases of a training: noted as verl's timers run, without a trace when they have ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from raydebug.worker import spans


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Take no span and no recorder over, and leave none behind."""
    for kept in (all_kept := (spans.open_spans, spans.begun, spans.recorders)):
        kept.clear()
    yield
    for kept in all_kept:
        kept.clear()


def module(text: str) -> ModuleType:
    """Return a module with verl's functions in their shape."""
    made = ModuleType("performance")
    exec("from contextlib import contextmanager\n" + text, made.__dict__)
    return made


GENERATOR = """
def _timer(name, timing_raw):
    yield
    timing_raw[name] = timing_raw.get(name, 0) + 1

@contextmanager
def marked_timer(name, timing_raw, color=None):
    yield from _timer(name, timing_raw)
"""
MANAGER = """
@contextmanager
def _timer(name, timing_raw):
    yield
    timing_raw[name] = timing_raw.get(name, 0) + 1

marked_timer = lambda *given: _timer(*given)
"""
STATE = """
class RLInsightLogger:
    @classmethod
    @contextmanager
    def trace_state(cls, state_name, state_lane_id=None, **labels):
        assert cls is RLInsightLogger
        yield state_lane_id
"""


@pytest.mark.parametrize("text", [GENERATOR, MANAGER], ids=["generator", "context manager"])
def test_timers(text: str) -> None:
    """Each timer of verl is a span while it runs, nested ones too, and verl's own time is measured as before."""
    made = module(text)
    spans.watch(made)
    spans.watch(made)  # a module may be seen twice
    raw: dict[str, int] = {}
    with made.marked_timer("step", raw), made.marked_timer("gen", raw):
        assert [one.name for one in spans.open_spans.values()] == ["step", "gen"]
    assert (raw, spans.open_spans, spans.begun) == ({"step": 1, "gen": 1}, {}, {"step", "gen"})
    with contextlib.suppress(ZeroDivisionError), made.marked_timer("adv", raw):
        raise ZeroDivisionError
    assert spans.open_spans == {}, "a phase that fails has ended"


def test_states() -> None:
    """The states of verl's ranks and engines are spans."""
    made = module(STATE)
    spans.watch(made)
    with made.RLInsightLogger.trace_state("vllm_generate", state_lane_id="replica_0"):
        assert [one.name for one in spans.open_spans.values()] == ["vllm_generate"]
    assert spans.open_spans == {}
    with made.RLInsightLogger.trace_state("vllm_generate", "replica_0") as lane:
        assert lane == "replica_0"


def test_spans_of_tasks() -> None:
    """A span knows the task of asyncio that is in it, and recorders hear of its begin and its end."""
    heard: list[tuple[str, bool]] = []
    spans.recorders.append(lambda span, has_ended: heard.append((span.name, has_ended)))

    async def main() -> None:
        with spans.span("tool_calls"):
            (found,) = spans.open_spans.values()
            assert found.task == id(asyncio.current_task())

    asyncio.run(main())
    with spans.span("gen"):
        (found,) = spans.open_spans.values()
        assert found.task is None
    assert heard == [("tool_calls", False), ("tool_calls", True), ("gen", False), ("gen", True)]


def test_fork() -> None:
    """A child that is forked in a phase of its parent is in none."""
    with spans.span("gen"):
        if (child := os.fork()) == 0:
            os._exit(len(spans.open_spans))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_recorder_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A recorder of ours that fails, here in two threads at once, is taken out by one of them, and both go on."""
    both, ended = threading.Barrier(2), []

    def fail(*_: object) -> None:
        both.wait(60)
        raise ZeroDivisionError

    def work() -> None:
        with spans.span("gen"):
            pass
        ended.append(True)

    spans.recorders.append(fail)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (ended, spans.recorders, spans.open_spans) == ([True, True], [], {})
    assert "raydebug: a recorder of phases has failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "hooked"),
    [
        ({"RAYDEBUG_JOB": "j"}, "True 2"),
        ({"RAYDEBUG_JOB": "j", "RAYDEBUG_SPANS": "0"}, "True 1"),
        ({}, "False 0"),
    ],
)
def test_hook_in_a_job(tmp_path: Path, variables: dict[str, str], hooked: str) -> None:
    """verl's modules are watched in a process of a job as they are imported; spans are kept unless they are off."""
    folder = tmp_path / "verl" / "utils" / "profiler"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        (path / "__init__.py").touch()
    for file, text in ((folder / "performance.py", GENERATOR), (folder.parent / "tracking.py", STATE)):
        file.write_text("from contextlib import contextmanager\n" + text)
    program = (
        "import sys; from raydebug.worker import import_hooks; import_hooks.install()\n"
        "from verl.utils import tracking; from verl.utils.profiler import performance\n"
        "print(hasattr(performance._timer, '_raydebug'),"
        " len(getattr(sys.modules.get('raydebug.worker.spans'), 'recorders', ())))"
    )
    path = f"{Path(__file__).resolve().parents[2] / 'src'}:{tmp_path}"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path, **variables},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == hooked
