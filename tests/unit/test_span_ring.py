"""Spans of a process: kept in a ring, said once, with ids and without secrets; and recorded in the run's folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.gateway.channel import wall_ahead_ns
from raydebug.jobs import span_log
from raydebug.jobs.span_log import SpanLog
from raydebug.jobs.submit import Job, job_variables
from raydebug.protocol import records, wire
from raydebug.protocol.questions import MOST_AT_ONCE, SpansRecord
from raydebug.runs.folder import SPANS, TASKS
from raydebug.worker import control_channel, last_words, spans


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Begin and end with an empty ring that records."""
    spans._forget()
    spans.keep_phases()
    yield
    spans._forget()
    spans.open_spans.clear()
    spans.begun.clear()
    spans.recorders.clear()


def said(**body: Any) -> SpansRecord:
    """Return what the process says, as the gateway reads it."""
    return records.read(json.loads(json.dumps(spans.spans_since(body))), SpansRecord)  # type: ignore[arg-type]


def test_the_end_of_a_step_says_its_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray kills the trainer's actor as its job ends; what a gateway misses that does not read is counted as lost."""
    here, there = socket.socketpair()
    monkeypatch.setattr(last_words, "_connection", (here, threading.Lock()))
    with spans.span("step"), spans.span("gen"):
        pass
    (event,) = wire.Decoder().feed(there.recv(10_000))
    assert [one["name"] for one in event["body"]["spans"]] == ["gen", "step"]
    assert said()["spans"] == []
    here.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while here.send(b" " * 4096):
            pass
    with spans.span("step"), spans.span("gen"):
        pass
    assert said()["lost"] == 2
    assert last_words._connection is None
    with pytest.raises(BrokenPipeError):
        here.send(b" ")
    here.close()
    there.close()


def test_an_answer_that_cannot_be_sent_is_lost_and_counted() -> None:
    """Where the connection ends before an answer, its spans and those that it calls lost are in the next count."""
    for _ in range(spans.MOST + 7):
        with spans.span("s"):
            pass

    def fail(_: Any) -> None:
        raise BrokenPipeError

    channel: Any = SimpleNamespace(send=fail)
    asked = wire.request(1, "spans", {})
    control_channel._ControlChannel._respond(channel, asked, spans.spans_since({}))
    assert said()["lost"] == MOST_AT_ONCE + 7


def test_each_span_is_said_once() -> None:
    """Answers are bounded, in order, and together have each span once."""
    for number in range(2500):
        with spans.span(f"s{number}"):
            pass
    answers = [said(), said(), said(), said()]
    assert [(len(one["spans"]), one["more"]) for one in answers] == [
        (1000, True),
        (1000, True),
        (500, False),
        (0, False),
    ]
    assert [one["name"] for answer in answers for one in answer["spans"]] == [f"s{n}" for n in range(2500)]
    assert all(one["began_ns"] <= one["ended_ns"] <= time.monotonic_ns() for one in answers[0]["spans"])
    assert {one["lost"] for one in answers} == {0}
    with spans.span("kept"):
        pass
    assert said(most=0)["spans"] == [], "a question for the clock takes none"
    assert len(said()["spans"]) == 1


def test_a_full_ring_says_what_it_lost() -> None:
    """Nothing is lost silently: what the ring has dropped is counted, once."""
    for _ in range(spans.MOST + 300):
        with spans.span("s"):
            pass
    assert [said()["lost"], said()["lost"]] == [300, 0]
    while said()["more"]:
        pass
    for _ in range(spans.MOST + 7):
        with spans.span("s"):
            pass
    assert said()["lost"] == 7


def test_names_are_cut_and_without_secrets() -> None:
    """A name has at most 200 characters, its control characters are visible, and secrets are hidden."""
    cut = "q" * 174 + " https://user:hunter2hunter2@host/"  # in the middle of the secret
    for name in ("x" * 5000, "a\x1b[31m\n", "key sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD", cut):
        with spans.span(name):
            pass
    long, escaped, *secrets = (one["name"] for one in said()["spans"])
    assert (len(long), escaped) == (200, "a\\x1b[31m\\n")
    assert not any("abcdefghijklmnop" in one or "hunt" in one for one in secrets)


def test_a_signal_handler_that_ends_the_process_while_spans_are_said() -> None:
    """The thread that says spans may be interrupted by a signal handler that says them too."""

    def interrupted() -> None:
        with spans._saying:
            found.append(said()["spans"])

    found: list[Any] = []
    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(5)
    assert found == [[]]


def test_a_child_has_an_empty_ring() -> None:
    """A child that is forked in a span says neither the spans of its parent nor the one that it was forked in."""
    with spans.span("before"):
        pass
    with spans.span("outer"):
        child = os.fork()
        if child == 0:
            try:
                assert said()["spans"] == []
                with spans.span("own"):
                    pass
            except BaseException:
                os._exit(9)
    if child == 0:
        os._exit(0 if [one["name"] for one in said()["spans"]] == ["own"] else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [one["name"] for one in said()["spans"]] == ["before", "outer"]


def test_what_cannot_be_read_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the frames of another trainer cannot be read, its phases are timed without ids."""
    monkeypatch.setattr(spans, "step_of", lambda _: 1 / 0)
    with spans.span("step"):
        pass
    assert [(one["name"], "of" in one) for one in said()["spans"]] == [("step", False)]


class Plain:
    """An object with plain attributes, as those of verl."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_samples_and_steps_have_ids() -> None:
    """The timers of a sample have its uid and the names of its tools, that of a step its number."""

    async def _run_agent_loop(trajectory: dict[str, Any], **kwargs: Any) -> None:
        await loop(Plain(tool_calls=[Plain(name="search"), Plain(name="run")]))

    async def loop(agent_data: Any) -> None:
        with spans.span("generate_sequences"):
            await asyncio.sleep(0)
        with spans.span("tool_calls"):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(_run_agent_loop({"sample_index": n, "rollout_n": n}, uid=f"u{n}") for n in range(2)))

    asyncio.run(main())

    class Trainer:
        def __init__(self) -> None:
            self.global_steps = 7

        def fit(self) -> None:
            with spans.span("step"), spans.span("gen"):
                pass

    Trainer().fit()
    found = [(one["name"], one.get("of"), one.get("note"), "task" in one) for one in said()["spans"]]
    assert sorted(found[:4]) == [
        ("generate_sequences", "u0-0", None, True), ("generate_sequences", "u1-1", None, True),
        ("tool_calls", "u0-0", "search, run", True), ("tool_calls", "u1-1", "search, run", True),
    ]  # fmt: skip
    assert found[4:] == [("gen", None, None, False), ("step", "7", None, False)]


ENGINE = """
import asyncio
class Output:
    def __init__(self, n): self.prompt_token_ids, self.outputs = [1, 2, 3], [type("O", (), {"token_ids": [0] * n})]
class AsyncLLM:
    async def generate(self, prompt, sampling_params, request_id, *, priority=0):
        for n in sampling_params.counts:
            await asyncio.sleep(0)
            yield Output(n)
        if prompt == "bad":
            raise ValueError("bad")
"""


def test_requests() -> None:
    """A request to vLLM has its id, first output and tokens; one that fails or is left early has ended too."""
    module = ModuleType("async_llm")
    exec(ENGINE, module.__dict__)
    spans.watch_requests(module)
    spans.watch_requests(module)  # a module may be seen twice
    assert "request_id" in inspect.signature(module.AsyncLLM.generate).parameters

    def params(kind: str, *counts: int) -> Any:
        return SimpleNamespace(counts=counts, output_kind=SimpleNamespace(name=kind))

    async def main() -> list[int]:
        engine = module.AsyncLLM()
        whole = [len(one.outputs[0].token_ids) async for one in engine.generate("p", params("CUMULATIVE", 1, 2), "r1")]
        async for _ in engine.generate("p", params("DELTA", 1, 1, 1), request_id="r2", priority=1):
            pass
        with pytest.raises(ValueError, match="bad"):
            async for _ in engine.generate("bad", params("DELTA", 1), "r3"):
                pass
        left = engine.generate("p", params("CUMULATIVE", 1, 2, 3), "r4")
        await anext(left)
        await left.aclose()
        return whole

    assert asyncio.run(main()) == [1, 2], "the caller gets each output"
    found = said()["spans"]
    assert [(one["of"], one["prompt"], one["tokens"]) for one in found] == [
        ("r1", 3, 2), ("r2", 3, 3), ("r3", 3, 1), ("r4", 3, 1),
    ]  # fmt: skip
    assert all(one["began_ns"] <= one["first_ns"] <= one["ended_ns"] for one in found)


def test_the_option_of_run() -> None:
    """`run --no-spans` reaches the processes of the job, and otherwise no variable does."""
    job = Job(["python"], "/")
    assert job_variables(replace(job, spans=False), "j")["RAYDEBUG_SPANS"] == "0"
    assert "RAYDEBUG_SPANS" not in job_variables(job, "j")


# The recorder's side, with a gateway and a process


PROGRAM = """
import sys, time
from raydebug.worker import control_channel, spans
spans.keep_phases()
control_channel.open_channel()
print("ready", flush=True)
for line in sys.stdin:
    for number in range(int(line)):
        with spans.span(f"s{number}"): pass
    print("made", flush=True)
"""


class Made:
    """A process of job `j` that makes spans."""

    def __init__(self, gateway: GatewayUnderTest, *before: str) -> None:
        environ = {**gateway.environment, "RAYDEBUG_JOB": "j"}
        self.process = subprocess.Popen([*before, sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environ)  # fmt: skip
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def make(self, count: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self._line() == "made"

    def end(self) -> None:
        self.process.communicate(timeout=60)


def recorder(gateway: GatewayUnderTest, folder: Path) -> SpanLog:
    """Return what records the spans of job `j`."""
    folder.mkdir(exist_ok=True)
    return SpanLog(gateway, "j", folder)  # type: ignore[arg-type]


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind in spans.jsonl."""
    read = (json.loads(line) for line in (folder / SPANS).read_text().splitlines() if line)
    return [line for line in read if kind in line]


def names(folder: Path) -> list[str]:
    return [row["name"] for line in lines(folder, "spans") for row in line["rows"]]


@pytest.mark.timeout(120)
def test_spans_reach_the_folder_of_the_run(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """Each span is written once, with its process and its clock; a process that ends says its last ones."""
    made, folder = Made(gateway), tmp_path / "run"
    log = recorder(gateway, folder)
    made.make(2 * MOST_AT_ONCE + 5)
    log.take()
    log.take()
    assert names(folder) == [f"s{n}" for n in range(2 * MOST_AT_ONCE + 5)]
    (about,) = lines(folder, "process")
    assert about["pid"] == made.process.pid
    (clock,) = lines(folder, "clock")
    assert clock["error_ns"] > 0
    before, ended = len(names(folder)), 3 * MOST_AT_ONCE + 3
    made.make(ended)
    made.end()
    deadline = time.monotonic() + 20
    while len(names(folder)) < before + ended and time.monotonic() < deadline:
        log.take()
    log.take()
    assert names(folder)[before:] == [f"s{n}" for n in range(ended)], "all that it had as it ended"


@pytest.mark.timeout(120)
def test_a_recorder_that_was_killed(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """The next recorder of a run goes on behind a line that was cut off."""
    made, folder = Made(gateway), tmp_path / "run"
    made.make(2)
    recorder(gateway, folder).take()
    with (folder / SPANS).open("a") as file:
        file.write('{"spans": "x", "rows": [{"na')
    made.make(1)
    recorder(gateway, folder).take()
    made.end()
    text = (folder / SPANS).read_text()
    whole = [json.loads(line) for line in text.splitlines() if line and line[-1] == "}"]
    assert sum(len(line["rows"]) for line in whole if "spans" in line) == 3
    assert sum(line == {"version": 1} for line in whole) == 2


@pytest.mark.timeout(120)
def test_a_full_disk(
    gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk is said once, and ends neither the run nor the record: what could not be written comes later."""
    made, folder = Made(gateway), tmp_path / "run"
    log = recorder(gateway, folder)

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def full_after_some_bytes(path: Path) -> Iterator[Any]:
        with open_private(path) as file:
            yield SimpleNamespace(write=lambda data: (file.write(data[:9]), file.flush(), full()))

    open_private = span_log.open_private
    monkeypatch.setattr(span_log, "open_private", full)
    made.make(3)
    log.take()
    log.take()
    assert names(folder) == []
    monkeypatch.setattr(span_log, "open_private", full_after_some_bytes)
    log.take()
    monkeypatch.setattr(span_log, "open_private", open_private)
    log.take()
    log.take()
    assert capsys.readouterr().err == (
        "note: spans and tasks cannot be written now: [Errno 28] No space left on device\n"
    )
    assert len(names(folder)) == 3
    monkeypatch.setattr(span_log, "open_private", full)
    monkeypatch.setattr(span_log, "MOST_UNWRITTEN", 10)
    made.make(3)
    log.take()
    log.take()
    made.end()
    assert capsys.readouterr().err == "spans are recorded no further: [Errno 28] No space left on device\n"
    assert len(names(folder)) == 3


@pytest.mark.timeout(120)
def test_a_gateway_that_is_gone(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """Without a gateway nothing is recorded; when it runs again, nothing is missing."""
    made, folder = Made(gateway), tmp_path / "run"
    log = recorder(gateway, folder)
    gateway.kill()
    made.make(3)
    log.take()
    assert names(folder) == []
    gateway.open()
    deadline = time.monotonic() + 40
    while not names(folder) and time.monotonic() < deadline:
        log.take()
        time.sleep(0.2)
    made.end()
    assert names(folder) == ["s0", "s1", "s2"]


@pytest.mark.timeout(120)
def test_the_clock_of_another_node(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """A process whose CLOCK_MONOTONIC is 1000 s ahead is measured as such, as exactly as the record says."""
    apart = ["unshare", "--time", "--monotonic", "1000", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no time namespaces (unshare --time)")
    made, folder = Made(gateway, *apart), tmp_path / "run"
    made.make(1)
    recorder(gateway, folder).take()
    ahead_ns = wall_ahead_ns()
    made.end()
    (clock,) = lines(folder, "clock")
    error_ns = clock["offset_ns"] - (ahead_ns - 1000 * 10**9)
    print(f"error {error_ns / 1e3:.0f} us of at most {clock['error_ns'] / 1e3:.0f} us, load {os.getloadavg()[0]:.0f}")
    assert abs(error_ns) <= clock["error_ns"] + 100_000  # the time of day may be slewed meanwhile


def test_a_clock_that_is_set(gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the gateway's clock is set while a run is recorded, later spans stay beside the earlier ones."""
    log, hour = recorder(gateway, tmp_path / "run"), 3600 * 10**9
    monkeypatch.setattr(span_log, "time", SimpleNamespace(time_ns=lambda: 10**18 + 1010))
    said = {"spans": [{"name": "gen"}], "now_ns": 500, "sent_ns": 1000, "received_ns": 1010, "gateway_wall_ns": 10**18}
    for step in (0, hour):
        answer = [{"process": {"pid": 1}, "instance": "a", "answer": {**said, "gateway_wall_ns": 10**18 + step}}]
        monkeypatch.setattr(log, "_ask", lambda *_, answer=answer: answer)
        log._compare_clocks(["a"])
    assert [line["offset_ns"] for line in lines(tmp_path / "run", "clock")] == [10**18 + 505] * 2


@pytest.mark.parametrize(("ahead_s", "expected_s"), [(0, 0), (20, 20), (0.001, 0)])
def test_a_gateway_with_another_clock(
    gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, expected_s: float
) -> None:
    """Spans are in the clock of who records, as the run's pauses are; what an answer takes is no shift."""
    log, now = recorder(gateway, tmp_path / "run"), iter(range(10**18, 2 * 10**18, 2 * 10**6))
    monkeypatch.setattr(span_log, "time", SimpleNamespace(time_ns=lambda: next(now)))

    def answer(*_: Any) -> list[dict[str, Any]]:
        received_ns = 10**9
        wall_ns = next(now) - 10**6 + int(ahead_s * 1e9) - received_ns  # in the middle of the question
        said = {"now_ns": 0, "sent_ns": received_ns, "received_ns": received_ns, "gateway_wall_ns": wall_ns}
        return [{"process": {"pid": 1}, "instance": "a", "answer": said}]

    monkeypatch.setattr(log, "_ask", answer)
    log._compare_clocks(["a"])
    (clock,) = lines(tmp_path / "run", "clock")
    assert abs(clock["offset_ns"] - 10**18 - (ahead_s - expected_s) * 1e9) < 10**8


def test_a_clock_of_each_node(gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of each node has its clock compared, also where none of them makes spans: for Ray's tasks."""
    log, said = recorder(gateway, tmp_path / "run"), {"now_ns": 5, "sent_ns": 1, "received_ns": 9, "gateway_wall_ns": 0}
    processes = [(f"{node}{pid}", {"pid": pid, "node_id": node}) for node in ("n", "m") for pid in (1, 2)]

    def answer(_: Any, only: list[str]) -> list[dict[str, Any]]:
        asked = [one for one in processes if not only or one[0] in only]
        return [{"process": process, "instance": instance, "answer": said} for instance, process in asked]

    monkeypatch.setattr(log, "_ask", answer)
    log.take()
    for kind in ("process", "clock"):
        assert [line[kind] for line in lines(tmp_path / "run", kind)] == ["n1", "m1"]


def test_a_full_record(
    gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of spans ends with a line that says so, and Ray's tasks are recorded further."""
    monkeypatch.setattr(span_log, "MOST_BYTES", 2**20)
    log, folder = recorder(gateway, tmp_path / "run"), tmp_path / "run"
    log._write("x" * 2**20)
    log._write("more")
    log.take()
    log.take_tasks(SimpleNamespace(job=lambda _: {"job_id": "1"}, task_table=lambda _: ([], False)))  # type: ignore[arg-type]
    assert (folder / SPANS).read_text() == '{"version": 1}\n{"ended": "1 MiB"}\n'
    assert capsys.readouterr().err == "spans are recorded no further: spans.jsonl has 1 MiB\n"
    assert (folder / TASKS).exists()


def test_the_table_of_tasks(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """Of Ray's rows 14 columns are kept, never the environment of the job; the last table stays without Ray."""

    class Ray:
        def job(self, _job: str) -> dict[str, str]:
            return {"job_id": "01000000"}

        def task_table(self, _job_id: str) -> tuple[list[dict[str, Any]], bool]:
            hidden = {"runtime_env_info": {"serialized": "SECRET"}}
            return [
                {"task_id": "t1", "name": "work", **hidden},
                {"name": "get https://user:SECRET@host", "func_or_class_name": "f https://user:SECRET@host"},
            ], True

    log = recorder(gateway, tmp_path / "run")
    log.take_tasks(Ray())  # type: ignore[arg-type]
    text = (tmp_path / "run" / TASKS).read_text()
    assert "SECRET" not in text
    document = json.loads(text)
    assert (document["cut"], len(document["columns"]), document["rows"][0][:3]) == (True, 14, ["t1", None, "work"])
    log.take_tasks(SimpleNamespace(job=lambda _: {}))  # type: ignore[arg-type]
    assert (tmp_path / "run" / TASKS).read_text() == text
