"""Records of processes are checked by type and size on arrival: a bad record reaches no list and ends no task."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import types
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_fuzzer import hello
from gateway_under_test import TOKEN, GatewayUnderTest
from raydebug.client.gateway_client import describe_failed_tasks, fetch_pauses, fetch_processes, fetch_stacks
from raydebug.gateway.background import keep_running
from raydebug.protocol import records, wire
from raydebug.protocol.records import BadRecord
from raydebug.worker import records as worker_records

PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
GOOD = {"kind": "breakpoint", "file": "/x.py", "line": 3, "function": "work", "pid": 7}


class HostileProcess:
    """A process with the token, which any code of a job has, that sends arbitrary messages."""

    def __init__(self, gateway: GatewayUnderTest, purpose: str, about: Any) -> None:
        self._gateway, self._purpose, self._about = gateway, purpose, about
        self._decoder = wire.Decoder()
        self._received: list[wire.Message] = []

    async def dial(self) -> str:
        """Dial in, and return the gateway's last event."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._gateway.dial_port)
        mine = wire.new_nonce()
        self.send("hello", hello(mine))
        theirs = (await self.receive())["body"]["nonce"]
        proof = wire.proof(TOKEN, wire.AS_PROCESS, mine, theirs)
        self.send("proof", {"proof": proof, "purpose": self._purpose, "process": {"secret": "own", **self._about}})
        return str((await self.receive())["event"])

    def send(self, event: str, body: Any) -> None:
        self.writer.write(wire.encode({"seq": 1, "type": "event", "event": event, "body": body}))

    async def receive(self) -> wire.Message:
        while not self._received:
            data = await self.reader.read(65536)
            assert data, "the gateway closed the connection"
            self._received += self._decoder.feed(data)
        return self._received.pop(0)

    async def set_up(self) -> None:
        """Answer the requests that set up the session."""
        seen = ""
        while seen != "configurationDone":
            message = await self.receive()
            seen = message["command"]
            self.writer.write(wire.encode(wire.response(1, message, {})))

    def answer_all(self, body: Any) -> asyncio.Task[None]:
        """Answer every further request with the same body."""

        async def answer() -> None:
            while True:
                message = await self.receive()
                self.writer.write(wire.encode({**wire.response(1, message), "body": body}))

        return asyncio.ensure_future(answer())


HOSTILE: dict[str, Any] = {
    "expires_s as text": {"expires_s": "abc"},
    "expires_s without end": {"expires_s": float("inf")},
    "expires_s not a number": {"expires_s": float("nan")},
    "exception as a list": {"exception": [1]},
    "where as an object": {"where": {"a": 1}},
    "function of 10 MB": {"function": "f" * 10_000_000},
    "file of 100 kB": {"file": "/" + "x" * 100_000},
    "line as text": {"line": "3"},
    "line as true": {"line": True},
    "rank of 2**80": {"rank": 2**80},
    "kind as null and a list": {"kind": [None]},
    "stood_s as text": {"stood_s": "long"},
    "watchdog as text": {"watchdog": "soon"},
    "watchdog with a name of 2 kB": {"watchdog": {"name": "w" * 2000, "after_s": 1}},
}
STOPPED = {"threadId": 1, "reason": "breakpoint"}


@pytest.mark.timeout(90)
async def test_f58_hostile_records_of_pauses(gateway):
    """F58: a bad record is refused with a log line and is not listed; lists, expiry and other pauses keep working."""
    gateway.start(PAUSES)
    (real,) = gateway.pauses()
    process = HostileProcess(gateway, "pause", {"pid": 7, "secret": "hostile"})
    assert await process.dial() == "welcome"
    await process.set_up()
    answering = process.answer_all({"stackFrames": [{"id": {}, "name": ["x"], "line": "7"}]})
    for bad in HOSTILE.values():
        process.send("raydebugPause", {"threadId": 1, "record": {**GOOD, **bad}})
    for body in (None, [], 5, {"threadId": "one"}, {"threadId": [1]}, {"threadId": 1, "record": []}):
        process.send("raydebugPause", body)
        process.send("stopped", body)
        process.send("thread", body)
        process.send("raydebugPauseBrokenOff", body)
    process.send("stopped", STOPPED)  # a stop without a record that can be read is still a stop
    process.writer.write(wire.encode({"type": "response", "request_seq": [1], "body": 5}))
    process.writer.write(wire.encode({"type": "request", "seq": {}, "command": [1]}))
    listed: list[Any] = []
    while not listed:
        assert not answering.done(), f"{answering}: {gateway.log[-3000:]}"
        listed = [p for p in await asyncio.to_thread(fetch_pauses, gateway) if p["pid"] == 7]
    assert [(p["kind"], p["file"], p["function"]) for p in listed] == [("breakpoint", None, None)]
    answering.cancel()
    process.writer.close()
    await process.writer.wait_closed()
    assert gateway.log.count("a record is refused") >= len(HOSTILE)
    assert "Traceback" not in gateway.log
    assert len(gateway.log) < 20_000
    (pause,) = gateway.pauses()
    assert pause["id"] == real["id"]
    while gateway.pauses()[0]["expires_in_s"] is None:  # the task that expires pauses is alive
        time.sleep(0.1)


async def test_a_process_that_gives_itself_the_instance_of_another(gateway):
    """The instance that lists show does not lead to a process's place: its pause stays, and `attach` leads to it."""
    gateway.start(f"from raydebug.worker import control_channel\ncontrol_channel.open_channel()\n{PAUSES}")
    (real,) = gateway.pauses()
    (instance,) = [each["instance"] for each in fetch_stacks(gateway, timeout_s=10.0)]
    process = HostileProcess(gateway, "pause", {"pid": 666, "instance": instance, "dials": 7})
    assert await process.dial() == "welcome"
    await process.set_up()
    process.send("raydebugPause", {"threadId": 1, "record": {**GOOD, "function": "of_another", "nth": 1}})
    process.send("stopped", STOPPED)
    pauses = await asyncio.to_thread(gateway.pauses, 2)
    assert [pause["function"] for pause in pauses if pause["id"] == real["id"]] == [real["function"]]
    channel = HostileProcess(gateway, "control", {"pid": 666})
    assert await channel.dial() == "welcome"
    channel.send("known", {"breaks": [], "set": []})
    listing = asyncio.ensure_future(asyncio.to_thread(fetch_processes, gateway))
    while (asked := await channel.receive()).get("command") != "describe":
        pass
    channel.writer.write(wire.encode({**wire.response(1, asked), "body": {"pid": 666, "instance": instance}}))
    assert 666 in [each["pid"] for each in await listing]
    stacks = await asyncio.to_thread(fetch_stacks, gateway, timeout_s=1.0)
    assert [each["pid"] for each in stacks if each["instance"] == instance] == [real["pid"]]


async def test_f58_hostile_processes(gateway):
    """F58: a process whose own record has a wrong type or a name of 2 kB is refused before it is listed."""
    bad: list[Any] = [{"pid": "1"}, {"pid": 1, "ip": ["x"]}, {"job": "j" * 2000}, {"dials": 1e400}, {"is_driver": 1}]
    for about in bad:
        for purpose in ("pause", "control"):
            process = HostileProcess(gateway, purpose, about)
            await process.dial()
            assert await process.reader.read() == b""
    assert fetch_processes(gateway) == []
    assert gateway.log.count("refused") == 2 * len(bad)
    assert "Traceback" not in gateway.log


async def test_f58_hostile_control_messages(gateway):
    """F58: bad messages of a control channel are refused with a log line; `ps --processes` shows the valid ones."""
    own = {"where": "x.py:1", "source": "/x.py", "line": 1}
    messages: list[tuple[str, Any]] = [
        ("known", {"breaks": [5]}),
        ("known", {"breaks": [{**own, "id": "b1", "policy": {"every": "x"}}]}),
        ("known", {"set": {"a": 1}}),
        ("break", {"id": ["b1"], "state": "set"}),
        ("break", None),
    ]
    answers: list[Any] = [{"doing": "text"}, {"doing": {"file": 5}}, [], {"pid": 7, "title": "it", "extra": "dropped"}]
    process = HostileProcess(gateway, "control", {"pid": 7, "secret": "hostile"})
    assert await process.dial() == "welcome"
    process.send("known", {"breaks": [{**own, "id": "b" + "9" * 500}], "set": []})
    for event, body in messages:
        process.send(event, body)
    process.writer.write(wire.encode({"type": "response", "request_seq": [1], "body": 5}))
    process.writer.write(wire.encode({"type": "response", "request_seq": 99, "body": {"doing": 5}}))  # nobody's
    for body in answers:
        listing = asyncio.ensure_future(asyncio.to_thread(fetch_processes, gateway))
        while (asked := await process.receive()).get("command") != "describe":
            pass
        process.writer.write(wire.encode({**wire.response(1, asked), "body": body}))
        (listed,) = await listing
    assert (listed["pid"], listed["title"], listed["doing"]) == (7, "it", None)
    process.writer.close()
    assert gateway.log.count("a record is refused") == len(messages) + len(answers) - 1
    assert "Traceback" not in gateway.log


def test_read_keeps_what_the_table_names():
    """A record keeps the fields of its table that are not null, and none besides."""
    given = {**GOOD, "rank": None, "unknown": {"deep": 1}, "watchdog": {"name": "torch", "after_s": 1.5, "more": 1}}
    assert records.read(given, records.PauseRecord) == {**GOOD, "watchdog": {"name": "torch", "after_s": 1.5}}
    with pytest.raises(BadRecord, match=r"^'function' of the record is not a text of at most 1024 bytes$"):
        records.read({"function": "é" * 513}, records.PauseRecord)
    assert records.read({"function": "é" * 512}, records.PauseRecord)


def test_a_fork_of_the_driver_is_not_the_driver(monkeypatch):
    """A child of the driver has a copy of Ray's mode, and is not a driver."""
    worker = SimpleNamespace(connected=True, mode=0, node_ip_address="n")
    monkeypatch.setitem(sys.modules, "ray._private.worker", SimpleNamespace(global_worker=worker, SCRIPT_MODE=0))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=SimpleNamespace))
    monkeypatch.setattr(worker_records, "_ray_pid", os.getpid())
    assert worker_records.describe_process()["is_driver"] is True
    monkeypatch.setattr(worker_records, "_ray_pid", os.getppid())
    assert worker_records.describe_process()["is_driver"] is False


@pytest.mark.parametrize("kind", [records.PauseRecord, records.WorkRecord])
def test_earlier_release(kind):
    """A record that lacks a field that we write is read without it: an earlier release may not have had it."""
    work = {**worker_records.describe_process(), **worker_records.describe_work()}
    pause = {**worker_records.describe_pause(sys._getframe(), "breakpoint"), "where": "x.py:3", "expires_s": 5.0}
    written: Any = pause if kind is records.PauseRecord else work
    for lacking in ("", *written):
        sent = {name: value for name, value in written.items() if name != lacking}
        assert records.read(sent, kind) == {name: value for name, value in sent.items() if value is not None}


def test_process_that_is_importing_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process imports Ray it can be described, as one that is not connected."""
    monkeypatch.setitem(sys.modules, "ray._private.worker", types.ModuleType("ray._private.worker"))
    assert worker_records.describe_process()["worker_id"] is None
    assert worker_records.describe_work()["actor"] is None


async def test_background_task_that_dies(caplog):
    """A background task of the gateway that dies is restarted with back-off, and reported with its reason."""
    task, ran = {"name": "expiry", "state": "running", "restarts": 0, "reason": None}, []

    async def fail() -> None:
        ran.append(len(ran))
        if len(ran) < 4:
            raise ValueError(f"number {len(ran)}")
        await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR, logger="raydebug.gateway"):
        running = asyncio.ensure_future(keep_running(task, fail, 0.01))
        while len(ran) < 4:
            await asyncio.sleep(0.01)
    running.cancel()
    assert (task["name"], task["state"], task["restarts"]) == ("expiry", "running", 3)
    assert task["reason"].startswith("ValueError: number 3 (test_records.py:")
    waits = [record.getMessage().rpartition("in ")[2] for record in caplog.records]
    assert waits == ["0.01 s", "0.02 s", "0.04 s"]
    (line,) = describe_failed_tasks({"tasks": [task], "problem": None})
    assert line.startswith("the gateway's task 'expiry' died: ValueError: number 3")
    assert line.endswith("restarted 3 times, it runs again")


def test_ps_of_a_gateway_that_does_not_answer(gateway):
    """The status of a gateway that does not answer says so, and lists no task."""
    from raydebug.client.gateway_client import fetch_status

    assert fetch_status(gateway)["problem"] is None
    gateway.kill()
    status = fetch_status(gateway)
    assert status["tasks"] == []
    assert "Connection refused" in describe_failed_tasks(status)[0]
    gateway.open()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_PROCID": "3"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
        ({"SLURM_PROCID": "3", "WORLD_SIZE": "8"}, 3),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "\u00b2", "WORLD_SIZE": "x"}, None),
        ({"SLURM_PROCID": "3", "RANK": "1"}, 1),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "RAY_RAYLET_PID": "9"}, None),  # srun ... ray start
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, None),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "RANK": "1", "RAY_RAYLET_PID": "9"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
    ],
)
def test_rank(monkeypatch, variables, expected):
    """SLURM_PROCID is a rank in a step of several tasks only, and never below Ray: every process below Slurm has it."""
    from raydebug.worker import records as worker_records

    others = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
    for name in (*worker_records.RANK_VARIABLES, *worker_records.BELOW_RAY, *others):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert worker_records.rank() == expected
