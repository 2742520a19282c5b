"""`raydebug trace`: a recorded run becomes one file, and says where a slow step lost time."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from raydebug.cli.app import whole_app
from raydebug.errors import RaydebugError
from raydebug.jobs.span_log import COLUMNS
from raydebug.runs.folder import read_run
from raydebug.runs.timeline import Process, Recorded, Span, read_recorded
from raydebug.trace.lanes import Event, arrange, groups_of
from raydebug.trace.why import explain, slowest
from raydebug.trace.write import write_trace
from trace_files import process, recorded_run, run_folder, span


def read(folder: Path) -> Recorded:
    return read_recorded(read_run(folder))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return recorded_run(tmp_path / "raydebug-recorded")


def test_the_lanes_of_a_recorded_run(recorded: Path) -> None:
    """Lanes are in order: run, curves, trainer, ranks, agents, engine, the rest, with steps, requests and pauses."""
    found = read(recorded)
    groups = groups_of(found)
    titles = [group.title for group in groups]
    assert [title.partition(" (")[0] for title in titles] == [
        "01 run", "02 metrics and memory", "03 TaskRunnerV1", "04 WorkerDict rank 0", "05 AgentLoopWorkerTQ",
        "06 vLLMHttpServer", "07 GlobalRequestLoadBalancer", "08 process", "09 RewardLoopWorker",
        "10 SimpleStorageUnit", "11 TransferQueueController",
    ]  # fmt: skip
    lanes = {group.title.split(" (")[0][3:]: group for group in groups}
    trainer = [event for lane in lanes["TaskRunnerV1"].lanes for event in lane.events]
    assert sum(event.name == "step" for event in trainer) == 5
    requests = [event for group in groups for lane in group.lanes if lane.title.startswith("vLLM requests")
                for event in lane.events]  # fmt: skip
    assert len(requests) == 80
    pauses = [event for lane in groups[0].lanes if lane.title.startswith("pauses") for event in lane.events]
    assert len(pauses) == 2
    assert {"samples: generate", "samples: reward"} <= {lane.title for group in groups for lane in group.lanes}
    last = found.end
    for group in groups:
        for lane in group.lanes:
            for event in lane.events:
                assert found.start - 1 <= event.start <= (event.end or event.start) <= last + 1, event


def test_the_file(recorded: Path) -> None:
    """Chrome's format has the events of each lane in order, counters, and top lanes in the order of their names."""
    written = write_trace(read(recorded))
    assert written.path == recorded / "trace.json.gz"
    events = json.loads(gzip.decompress(written.path.read_bytes()))["traceEvents"]
    assert sum(event["ph"] in "Xi" for event in events) == written.events
    assert sum(event["ph"] == "C" for event in events) > 100, "memory and metrics are counters"
    last: dict[tuple[int, int], float] = {}
    for event in events:
        if event["ph"] in "Xi":
            lane = event["pid"], event["tid"]
            assert event["ts"] >= last.get(lane, 0.0), event
            assert event.get("dur", 0) >= 0
            last[lane] = event["ts"]
    tops = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert tops == sorted(tops), "the viewer sorts top lanes by their names"
    assert written.path.stat().st_mode & 0o077 == 0, "only its owner reads it"


def test_overlapping_events_go_to_the_first_free_lane() -> None:
    """Events that overlap are drawn in lanes of their own; with nesting, one inside of another stays with it."""

    def event(start: float, end: float | None) -> Event:
        return Event(f"{start:g}", start, end, {})

    lanes = arrange("x", [event(0, 4), event(1, 2), event(2, 6), event(4, 5), event(7, None)])
    assert [(lane.title, [one.name for one in lane.events]) for lane in lanes] == [
        ("x", ["0", "4", "7"]), ("x (2)", ["1", "2"]),
    ]  # fmt: skip
    nested = arrange("x", [event(0, 4), event(1, 2), event(2, 6)], nested=True)
    assert [[one.name for one in lane.events] for lane in nested] == [["0", "1"], ["2"]]


def training(folder: Path, *, slow: int, document: dict[str, Any] | None = None) -> Recorded:
    """Return a run of 8 steps of 10 s, of which `slow` generates for 38 s longer."""
    rows, samples, at = [], [], 0.0
    for step in range(1, 9):
        gen_s = 45.0 if step == slow else 7.0
        rows += [
            span("gen", at, at + gen_s),
            span("adv", at + gen_s, at + gen_s + 1),
            span("step", at, at + gen_s + 3, of=str(step)),
        ]
        for number in range(4):
            last = step == slow and number == 3
            end = at + (gen_s - 0.1 if last else 6.8)
            name, note = ("tool_calls", "search") if last else ("generate_sequences", "")
            samples.append(span(name, at + (8 if last else 0.1), end, task=number, of=f"u{number}", note=note))
        at += gen_s + 3
    lines = process("trainer", *rows, actor="TaskRunner") + process("agents", *samples, actor="AgentLoopWorker")
    return read(run_folder(folder, lines, document))


def test_why_a_step_was_slow(tmp_path: Path) -> None:
    """The sentence has the step's time and what is more than usual, the phase, and the sample that it waited for."""
    found = training(tmp_path / "r", slow=5)
    assert explain(found, 5).text == (
        "step 5 took 48 s, 38 s more than usual: generate waited 38 s for one sample (uid u3, tool search, 37 s)"
    )
    assert explain(found, 4).text == "step 4 took 10 s, no more than its neighbours: their median is 10 s"
    worst = slowest(found)
    assert worst is not None
    assert (worst.step, worst.phase, worst.sample) == (5, "gen", "u3")
    assert slowest(training(tmp_path / "healthy", slow=0)) is None
    with pytest.raises(RaydebugError, match="step 9 is not recorded"):
        explain(found, 9)


Step = tuple[str, float, list[tuple[float, float]], list[tuple[float, float]]]
"""Its phase and how long that took; begin and end in it of each sample, and of the work of each rank."""


def timed_span(name: str, start: float, end: float, task: int | None = None, of: str = "") -> Span:
    return Span(name, start, end, 9, task, of, "", {})


def steps_with(slow: Step, *, usual: Step) -> Recorded:
    """A run of eleven steps, of which the sixth is slow: of each its one phase, samples and the work of ranks in it."""
    trainer, others, now = Process({"actor": "TaskRunner", "pid": 1}), list[Process](), 100.0
    for number in range(1, 12):
        phase, seconds, samples, works = slow if number == 6 else usual
        trainer.spans += [timed_span(phase, now, now + seconds), timed_span("step", now, now + seconds, of=str(number))]
        for pid in range(50, 50 + max(1, len(works)) - len(others)):
            others.append(Process({"actor": "Worker" if works else "AgentLoopWorker", "pid": pid, "rank": None}))
        others[0].spans += [
            timed_span("generate_sequences", now + begin, now + end, 1000 * number + nth, f"{number}-{nth}")
            for nth, (begin, end) in enumerate(samples)
        ]
        for worker, (begin, end) in zip(others, works, strict=False):
            worker.spans.append(timed_span("train_batch", now + begin, now + end))
        now += seconds
    for each in (trainer, *others):
        each.spans.sort(key=lambda span: (span.start, -span.end))
    run: Any = SimpleNamespace(id="made-up", steps=[], pauses=[], findings=[])
    return Recorded(run, 0.0, 1e6, [trainer, *others], [])


LATE_SAMPLE = [(0.0, 10.0)] * 7 + [(0.0, 30.0)]  # one is alone for 20 s, as in every step
LATE_RANK = [(0.0, 14.5)] * 3 + [(0.0, 19.5)]


@pytest.mark.parametrize(
    ("slow", "usual", "words"),
    [
        (("gen", 68.0, [(38.0, 48.0)] * 7 + [(38.0, 68.0)], []), ("gen", 30.0, LATE_SAMPLE, []),
         "generate began to work 38 s later than usual"),
        (("gen", 68.0, LATE_SAMPLE, []), ("gen", 30.0, LATE_SAMPLE, []),
         "generate went on 38 s longer after its last work"),
        (("update_actor", 28.0, [], [(8.0, 22.5)] * 3 + [(8.0, 27.5)]), ("update_actor", 20.0, [], LATE_RANK),
         "update_actor began to work 8.0 s later than usual"),
        (("gen", 70.0, [(0.0, 30.0)] * 6 + [(0.0, 69.5), (0.0, 69.9)], []), ("gen", 30.0, [(0.0, 29.9)] * 8, []),
         "generate waited 40 s for 2 samples (uid 6-7, uid 6-6)"),
    ],
    ids=["the engine woke up late", "something behind the samples", "all ranks began late", "two samples"],
)  # fmt: skip
def test_who_is_always_late_does_not_explain_a_step(slow: Step, usual: Step, words: str) -> None:
    """What a phase waits for in every step is not why one step was slow."""
    assert explain(steps_with(slow, usual=usual), 6).text.endswith(f" more than usual: {words}")


def test_the_report_has_the_slowest_step(tmp_path: Path) -> None:
    """The page of a run says where its slowest step lost time; without one it says nothing."""
    for name, slow, count in (("slow", 5, 1), ("healthy", 0, 0)):
        step = {"end_s": 10.0, "seconds": 9.0, "metrics": {}}
        found = training(tmp_path / name, slow=slow, document={"steps": [{"step": n, **step} for n in (1, 2)]})
        page = tmp_path / f"{name}.html"
        CliRunner().invoke(whole_app(), ["report", str(found.run.folder), "--output", str(page)])
        assert page.read_text().count("38 s more than usual: generate waited 38 s for one sample") == count


def test_why_without_spans(tmp_path: Path) -> None:
    """Of a trainer without timers the steps and phases of its log count."""

    def step(number: int, gen_s: float) -> dict[str, Any]:
        metrics = {"timing_s/gen": gen_s, "timing_s/step": 9.0}
        return {"step": number, "end_s": 10.0 * number, "seconds": gen_s + 1, "metrics": metrics}

    steps = [step(number, 8.0 if number == 4 else 2.0) for number in range(1, 8)]
    steps[3]["metrics"]["timing_s/agent_loop/slowest/response_length"] = 4096.0  # no time
    text = "step 4 took 9.0 s, 6.0 s more than usual: generate took 8.0 s, 6.0 s more than usual"
    assert explain(read(run_folder(tmp_path / "r", [], {"steps": steps})), 4).text == text
    ended = [*process("t", *(span("step", n, n + 3, of=str(n)) for n in (1, 2))), {"ended": "200 MiB"}]
    found = read(run_folder(tmp_path / "ended", ended, {"steps": steps}))
    assert explain(found, 4).text == text, "of a record of spans that has ended before"
    assert "the record of spans ends before the run: spans.jsonl has its most, 200 MiB" in found.notes


def test_why_a_step_paused(recorded: Path) -> None:
    """A pause at a breakpoint is no slow phase: it is named as what it is."""
    assert explain(read(recorded), 4).text == (
        "step 4 took 168 s, 159 s more than usual: pause 2 at data/reward.py:15 compute_score held it for 138 s"
    )


def test_why_alone(tmp_path: Path) -> None:
    """A single step is compared with nothing, and says so."""
    found = read(run_folder(tmp_path / "r", process("t", span("gen", 0, 4), span("step", 0, 5, of="1"))))
    text = "step 1 took 5.0 s; gen took 4.0 s of it; there is no other step to compare with"
    assert explain(found, 1).text == text


def test_clocks_of_nodes(tmp_path: Path) -> None:
    """A node whose clock is behind by 1000 s is drawn where it belongs; both ends of a span move by the same."""
    ahead = 1_000_000_000_000
    lines = [
        {"process": "b", "pid": 2, "wall_ns": 5},
        {"clock": "b", "at_ns": 0, "offset_ns": ahead, "error_ns": 9},
        {"clock": "b", "at_ns": 60 * 10**9, "offset_ns": ahead + 10**6, "error_ns": 9},
        {"spans": "b", "rows": [{"name": "gen", "began_ns": 59 * 10**9, "ended_ns": 61 * 10**9}]},
        {"process": "c", "pid": 3, "wall_ns": ahead},  # it has ended before its clock was compared
        {"spans": "c", "rows": [{"name": "gen", "began_ns": 10**9, "ended_ns": 2 * 10**9}]},
    ]
    found = read(run_folder(tmp_path / "r", lines))
    assert [(one.spans[0].start, one.spans[0].end) for one in found.processes] == [(1059, 1061), (1001, 1002)]


STEPS_S = (10, 10, 10, 15, 10, 10, 10)
HEAD = ["task_id", "name", "worker_pid", "start_time_ms", "end_time_ms", "node_id", "func_or_class_name"]


@pytest.mark.parametrize("has_clock", [True, False])
def test_tasks_of_a_node_whose_clock_is_ahead(tmp_path: Path, has_clock: bool) -> None:
    """Ray's tasks are drawn in the run's clock; a node whose clock nobody has compared is not blamed for it."""
    spans, tasks, at = [], [], 0.0
    for step, took_s in enumerate(STEPS_S, 1):
        spans += [span("step", at, at + took_s, of=str(step)), span("update_actor", at + 1, at + took_s)]
        for pid, ahead_s in ((2, 0), (3, 4)):
            times = (1000 + at + 1 + ahead_s) * 1e3, (1000 + at + took_s + ahead_s) * 1e3
            tasks.append([f"t{step}{pid}", "W.update_actor", pid, *times, f"n{pid}", "W.update_actor"])
        at += took_s
    lines = process("d", *spans, node_id="n2")
    lines += process("w", span("load", 0, 1), pid=3, node_id="n3", wall_ns=4 * 10**9)
    folder = run_folder(tmp_path / "r", [line for line in lines if has_clock or line.get("clock") != "w"])
    (folder / "tasks.json").write_text(json.dumps({"version": 1, "cut": False, "columns": HEAD, "rows": tasks}))
    found = read(folder)
    usual = "step 4 took 15 s, 5.0 s more than usual: update_actor took 14 s, 5.0 s more than usual"
    assert explain(found, 4).text == usual
    assert len({one.tasks[0].start for one in found.processes if one.tasks}) == (1 if has_clock else 2)


def test_ranks_of_several_nodes(tmp_path: Path) -> None:
    """verl numbers its ranks over all nodes, and names an actor by its number in the node."""
    names = ["aWorkerDict_0:0", "aWorkerDict_0:1", "aWorkerDict_1:0", "aWorkerDict_1:1", "bWorkerDict_1:0"]
    rows = [["t", name, pid, 1e6, 1e6 + 5, "n", "WorkerDict.__init__"] for pid, name in enumerate(names, 10)]
    folder = run_folder(tmp_path / "r", [])
    (folder / "tasks.json").write_text(json.dumps({"version": 1, "cut": True, "columns": HEAD, "rows": rows}))
    titles = [group.title.partition("WorkerDict ")[2] for group in groups_of(read(folder))]
    assert titles == [*(f"rank {rank} (pid {10 + rank})" for rank in range(4)), "(pid 14)"]


def test_many_steps(tmp_path: Path) -> None:
    """The time to find where steps lost time grows as their number does."""
    rows = [span(name, n, n + 0.9, of=str(n)) for n in range(20_000) for name in ("step", "gen")]
    lines = [line for at in range(0, len(rows), 1000) for line in process("a", *rows[at : at + 1000])]
    found = read(run_folder(tmp_path / "r", lines))
    began = time.process_time()
    assert slowest(found) is None
    assert time.process_time() - began < 10  # 20,000 times 20,000 spans take minutes


def test_a_run_that_does_not_say_when_it_began(tmp_path: Path) -> None:
    """Its spans are not called malformed; a process whose description is lost is drawn without its id."""
    lines = process("a", span("gen", 1, 2))[1:]
    found = read(run_folder(tmp_path / "r", lines, {"started": None}))
    assert found.notes[0].startswith("run.json does not say when the run began")
    assert not any("malformed" in note for note in found.notes)
    assert [group.title for group in groups_of(read(run_folder(tmp_path / "r", lines)))] == ["01 process (pid ?)"]


def test_a_run_that_was_cut_off(tmp_path: Path) -> None:
    """A line that was cut off, and records that are malformed, are left out and counted; the rest is drawn."""
    good = process("a", span("gen", 1, 2), span("gen", 3, 4))
    bad = [
        {"spans": "a", "rows": [{"name": "x"}, {"name": "x", "began_ns": 5, "ended_ns": 4}, 7, None]},
        {"spans": "a"}, {"clock": "a", "at_ns": "x"}, {"lost": "a", "count": 12}, [1], '{"spans": "a", "rows": [{"na',
        {"spans": "a", "rows": [{"name": "x", "began_ns": 10**30, "ended_ns": 10**30}]},
    ]  # fmt: skip
    found = read(run_folder(tmp_path / "r", good + bad))
    assert [one.name for one in found.processes[0].spans] == ["gen", "gen"]
    assert found.notes == [
        "2 lines of spans.jsonl cannot be read: the recorder was cut off",
        "7 records of spans.jsonl are malformed and left out",
        "12 spans were lost: a process made more than it keeps, or its connection ended",
        "Ray's table of tasks was not recorded",
    ]
    assert write_trace(found).events > 0


def test_an_empty_run(tmp_path: Path) -> None:
    """A run without anything gives a trace of what there is, and says what is missing."""
    folder = run_folder(tmp_path / "r", [])
    (folder / "spans.jsonl").unlink()
    found = read(folder)
    assert found.notes[0].startswith("no spans were recorded")
    assert write_trace(found).path.exists()
    with pytest.raises(
        RaydebugError, match=r"step 1 is not recorded(.|\n)*fix: `raydebug trace` for the file; of a run"
    ):
        explain(found, 1)


@pytest.mark.parametrize("name", ["run.json", "spans.jsonl", "tasks.json"])
def test_a_run_of_a_newer_version(recorded: Path, name: str) -> None:
    """Files of another version are refused with their name, and none of them is half read."""
    path = recorded / name
    path.write_text(
        path.read_text().replace('"version":1', '"version":2', 1).replace('"version": 1', '"version": 2', 1)
    )
    with pytest.raises(RaydebugError) as refused:
        read(recorded)
    assert (refused.value.code, name in refused.value.cause) == ("run.bad-record", True)
    assert "of version 2, and this raydebug reads 1" in refused.value.cause


def test_hostile_names(tmp_path: Path) -> None:
    """Names with control characters, other alphabets and lone surrogates are written."""
    names = ["\x1b[31m", "漢字", "\ud800", "x" * 5000]
    folder = run_folder(tmp_path / "r", process("a", *(span(name, n, n + 0.5) for n, name in enumerate(names))))
    events = json.loads(write_trace(read(folder), tmp_path / "t.json").path.read_text())["traceEvents"]
    assert {"漢字", "x" * 200} <= {event["name"] for event in events}


def test_tasks_join_their_process(tmp_path: Path) -> None:
    """A process with spans and tasks is one group; the row that creates an actor, which has no node, is in it too."""
    lines = process("a", span("gen", 1, 2), pid=7, node_id="n1", actor="Trainer trainer_0")
    lines += process("b", span("gen", 1, 2), pid=8)  # it has ended before it was asked who it is
    folder = run_folder(tmp_path / "r", lines)
    rows = [
        ["t1", 0, "Trainer.run", "FINISHED", "1", "a", "ACTOR_TASK", "Trainer.run", "n1", "w", 7, 0, 1_001_000.0, None],
        ["t2", 0, "Other.go", "FINISHED", "1", "b", "ACTOR_TASK", "Other.go", "n2", "w", 8, 0, 1_001_000.0, 1_001_500],
        *([f"c{pid}", 0, "X.__init__", "FINISHED", "1", "a", "ACTOR_CREATION_TASK", "X.__init__", None, None, pid, 0,
           1_000_500.0, 1_000_900.0] for pid in (7, 8)),
        ["t3", 0, "waits", "PENDING", "1", None, "NORMAL_TASK", "waits", None, None, None, 0, None, None],
        "no row",
    ]  # fmt: skip
    (folder / "tasks.json").write_text(json.dumps({"version": 1, "cut": False, "columns": COLUMNS, "rows": rows}))
    found = {group.title: [lane.title for lane in group.lanes] for group in groups_of(read(folder))}
    assert found == {
        "02 Trainer trainer_0 (pid 7)": ["phases", "Ray tasks"],
        "01 Other (pid 8)": ["phases", "Ray tasks"],
    }


def test_ten_thousand_tasks(tmp_path: Path) -> None:
    """10,000 of Ray's tasks are drawn, and the trace says that Ray's table has no more of them."""
    rows = [
        [f"t{n}", 0, f"work{n % 7}", "FINISHED", "01", None, "NORMAL_TASK", "work", "n1", "w", 100 + n % 40, 0.0,
         1_000_000.0 + n, 1_000_500.0 + n] for n in range(10_000)
    ]  # fmt: skip
    folder = run_folder(tmp_path / "r", [])
    (folder / "tasks.json").write_text(json.dumps({"version": 1, "cut": True, "columns": COLUMNS, "rows": rows}))
    began = time.process_time()
    found = read(folder)
    assert write_trace(found).events >= 10_000
    print(f"{time.process_time() - began:.2f} s of CPU")
    assert found.notes == ["Ray has cut its table of tasks: 10,000 are drawn, others are missing"]


def test_many_spans(tmp_path: Path) -> None:
    """60,000 spans, 1,000 a second for a minute, are drawn."""
    rows = [span("gen", n / 1000, n / 1000 + 0.0005, thread=n % 4) for n in range(60_000)]
    lines = [line for at in range(0, 60_000, 1000) for line in process("a", *rows[at : at + 1000])]
    assert write_trace(read(run_folder(tmp_path / "r", lines))).events == 60_000


def test_the_newest_run_is_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RUN the newest run is drawn, also where a check is newer."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = tmp_path / "raydebug" / "runs"
    for name, age_s in (("raydebug-1", 20), ("raydebug-2", 10), ("check-3", 0)):
        document = run_folder(runs / name, []) / "run.json"
        os.utime(document, (time.time() - age_s,) * 2)
    done = CliRunner().invoke(whole_app(), ["trace"])
    assert done.stdout == f"{runs}/raydebug-2/trace.json.gz\n"


def test_the_verb(recorded: Path) -> None:
    """`trace` prints the file, `--why` one sentence, both as JSON too; a file that cannot be written is an error."""
    run = CliRunner().invoke
    app = whole_app()
    wrote = run(app, ["trace", str(recorded)])
    assert wrote.stdout == f"{recorded}/trace.json.gz\n"
    about = json.loads(run(app, ["trace", str(recorded), "-o", str(recorded / "t.json.gz"), "--json"]).stdout)
    assert (about["path"], about["notes"]) == (f"{recorded}/t.json.gz", [])
    assert run(app, ["trace", str(recorded), "--why", "2"]).stdout.startswith("step 2 took 9.4 s, no more than")
    why = json.loads(run(app, ["trace", str(recorded), "--why", "4", "--json"]).stdout)
    assert (why["step"], round(why["took_s"])) == (4, 168)
    for words, code in (
        (["-o", str(recorded)], "trace.unwritable"),
        (["--why", "2", "-o", "x.json"], "trace.options"),
        (["--why", "2", "--open"], "trace.options"),
    ):
        failed = run(app, ["trace", str(recorded), *words])
        assert isinstance(failed.exception, RaydebugError)
        assert failed.exception.code == code


def test_a_browser_in_the_terminal(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer serves while a browser runs that is waited for: this user's, and no name that leads here."""
    (recorded / "index.html").write_text("the viewer")
    monkeypatch.setattr("raydebug.trace.viewer.find_viewer", lambda: recorded)
    got = []

    def browse(url: str) -> None:
        with urllib.request.urlopen(url.partition("#")[0], timeout=20) as answer:
            got.append(answer.read())
        for method in ("GET", "HEAD"):
            other = urllib.request.Request(url.partition("#")[0], method=method, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="421"):
                urllib.request.urlopen(other, timeout=20)
        if os.getuid() == 0:
            asks = f"import urllib.request as u; print(u.urlopen({url.partition('#')[0]!r}).status)"
            argv = ["/usr/bin/env", "python3", "-c", asks]
            assert subprocess.run(argv, user=65534, cwd="/", capture_output=True, check=False).stdout == b""
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", browse)
    done = CliRunner().invoke(whole_app(), ["trace", str(recorded), "--open"])
    assert (got, done.exit_code) == ([b"the viewer"], 0), done.output
