"""Questions to processes: each answer finds its question, and what becomes of one without an answer is a result."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import ask_processes, save_pause
from raydebug.errors import RaydebugError
from raydebug.gateway import channel as gateway_channel
from raydebug.gateway import snapshots
from raydebug.gateway.board import Board
from raydebug.gateway.channel import ControlChannel, NoAnswer
from raydebug.gateway.client_requests import Refused
from raydebug.gateway.control import Control
from raydebug.gateway.numbers import Numbers
from raydebug.gateway.pause_requests import PauseRequests, describe_location
from raydebug.gateway.processes import Process
from raydebug.protocol import messages, questions, records, wire
from raydebug.protocol.questions import DESCRIBE, FRAMES, PAUSE, QUESTIONS, STACKS, FramesBody, Nothing, StacksBody
from raydebug.worker import control_channel
from simulated_processes import Peer

OPEN = "from raydebug.worker import control_channel\ncontrol_channel.open_channel()\n"
WAITS = OPEN + "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


def test_every_question_has_its_function() -> None:
    """Each question of the table has a function in worker/, and each function a question."""
    assert control_channel.ANSWERED_BY.keys() == QUESTIONS.keys()
    program = (
        "from raydebug.worker import control_channel as c; print(*(callable(c._function(n)) for n in c.ANSWERED_BY))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * len(QUESTIONS)


# The gateway's end


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def channel(peer: Peer) -> ControlChannel:
    return ControlChannel({"pid": 1}, peer)


async def begin(*asking: Any) -> list[asyncio.Future[Any]]:
    """Begin to ask, and return the coming answers."""
    begun = [asyncio.ensure_future(one) for one in asking]
    await asyncio.sleep(0)
    return begun


async def test_answers_out_of_order(channel: ControlChannel, peer: Peer) -> None:
    """Answers are told apart by the ids of their questions, whatever the order and however alike they are."""
    names = ("a", "b", "c")
    begun = await begin(*(channel.ask(FRAMES, FramesBody(digests=[name])) for name in names))
    assert len({asked["seq"] for asked in peer.asked}) == 3
    for asked in reversed(peer.asked):
        known = [{"digest": asked["arguments"]["digests"][0], "frames": []}]
        channel.take(wire.response(1, asked, {"known": known, "more": "dropped"}))
        channel.take(wire.response(1, asked, {"known": []}))  # a second answer to the same question
    assert [(await one)["known"][0]["digest"] for one in begun] == [*names]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"success": False, "message": "unknown"}, NoAnswer("unknown")),
        ({"success": False, "message": "KeyError: 'x'"}, NoAnswer("failed", "KeyError: 'x'")),
        ({"success": False}, NoAnswer("failed", "None")),
        ({"success": False, "message": [1]}, NoAnswer("failed", "[1]")),
    ],
)
async def test_a_process_that_says_why_not(
    channel: ControlChannel, peer: Peer, answer: dict[str, Any], expected: NoAnswer
) -> None:
    """A question that the process does not know, and one that failed there, are results with their causes."""
    (asking,) = await begin(channel.ask(STACKS, StacksBody()))
    channel.take({"type": "response", "request_seq": peer.asked[0]["seq"], **answer})
    assert await asking == expected


async def test_an_answer_that_is_not_what_the_table_says(channel: ControlChannel, peer: Peer) -> None:
    """An answer of another type is refused by name, and is no silence."""
    (asking,) = await begin(channel.ask(DESCRIBE, Nothing()))
    with pytest.raises(records.BadRecord, match="'pid' of the answer to 'describe' is not a whole number"):
        channel.take(wire.response(1, peer.asked[0], {"pid": "7"}))
    assert (await asking).state == messages.FAILED


async def test_a_late_answer(channel: ControlChannel, peer: Peer) -> None:
    """A question that was given up is not sent again: its late answer is that of the next equal one."""
    digests = StacksBody(digests=True)
    assert await channel.ask(STACKS, digests, 0.001) == NoAnswer(messages.SILENT)
    begun = await begin(channel.ask(STACKS, digests), channel.ask(STACKS, digests), channel.ask(STACKS, StacksBody()))
    assert [asked["arguments"] for asked in peer.asked] == [digests, digests, {}]  # one serves one
    channel.take(wire.response(1, peer.asked[0], {"world": 2}))
    assert await begun[0] == {"world": 2}
    assert [one.done() for one in begun[1:]] == [False, False]


async def test_a_late_description(channel: ControlChannel, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late description of a process counts, and does not stand for one that was asked for after it."""
    monkeypatch.setattr(gateway_channel, "DESCRIBE_TIMEOUT_S", 0.001)
    await channel.update()
    assert not channel.answers
    monkeypatch.setattr(gateway_channel, "DESCRIBE_TIMEOUT_S", 60.0)
    (updating,) = await begin(channel.update())
    channel.take(wire.response(1, peer.asked[0], {"title": "late"}))
    assert (channel.answers, channel.about["title"], updating.done()) == (True, "late", False)
    channel.take(wire.response(1, peer.asked[1], {"title": "new"}))
    await updating
    assert (channel.answers, channel.about["title"]) == (True, "new")


async def test_a_process_that_cannot_describe_itself(
    channel: ControlChannel, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """Why a process cannot describe itself is told to a client that waits for its pause, and is in the log."""
    (updating,) = await begin(channel.update())
    channel.take(wire.refusal(1, peer.asked[0], "KeyError: 'x'"))
    await updating
    assert describe_location(channel) == "it cannot say where it is: KeyError: 'x'"
    assert [one.getMessage() for one in caplog.records] == ["process pid 1 on : 'describe' failed: KeyError: 'x'"]


async def test_end_of_the_process(channel: ControlChannel) -> None:
    """The end of a process is the result of each question that waits, and of each later one."""
    begun = await begin(channel.ask(DESCRIBE, Nothing()), channel.ask(PAUSE, {"request": "r1"}))
    channel.end()
    assert [await one for one in begun] == [NoAnswer(messages.ENDED)] * 2
    assert await channel.ask(DESCRIBE, Nothing()) == NoAnswer(messages.ENDED)


async def test_questions_that_are_given_up(channel: ControlChannel, peer: Peer) -> None:
    """Of the questions that nobody waits for some are kept; one that is waited for is never dropped."""
    pausing, leaving = await begin(channel.ask(PAUSE, {"request": "r1"}), channel.ask(PAUSE, {"request": "r2"}))
    leaving.cancel()
    await asyncio.wait([leaving])
    for number in range(2 * gateway_channel.MAX_GIVEN_UP):
        await channel.ask(FRAMES, FramesBody(digests=[str(number)]), 0.0)
    assert len(channel._asked) == 1 + gateway_channel.MAX_GIVEN_UP
    for asked in reversed(peer.asked):
        channel.take(wire.refusal(1, asked, "why"))
    assert await pausing == NoAnswer(messages.FAILED, "why")
    assert channel._asked == {}


async def asked_of(peer: Peer, name: str) -> wire.Message:
    """Wait until the process is asked a question, and return it."""
    while not (found := [one for one in peer.asked if one["command"] == name]):
        await asyncio.sleep(0)
    return found[-1]


@pytest.mark.timeout(30)
async def test_a_process_that_changes_its_instance(channel: ControlChannel, peer: Peer) -> None:
    """A process that names another instance while a client waits for its pause blocks no later request."""
    control = Control(Numbers())
    control.channels.add(channel)
    pause_requests = PauseRequests(control, Board(Numbers()))
    (pausing,) = await begin(pause_requests.pause("pid:1", "a test", print))
    channel.take(wire.response(1, await asked_of(peer, "describe"), {"pid": 1, "instance": "a"}))
    asked = await asked_of(peer, "pause")
    channel.about["instance"] = "b"
    channel.take(wire.response(1, asked, {"cause": "why"}))
    with pytest.raises(Refused, match="it cannot be paused: why"):
        await pausing
    assert pause_requests._requesters == {}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("is_kept", [True, False])
async def test_snapshot_of_a_pause(
    channel: ControlChannel, peer: Peer, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """A snapshot that the gateway has is returned after the answer; an answer alone is none."""
    monkeypatch.setattr(snapshots, "PAUSE_S", 3600.0)
    board, control, kept = Board(Numbers()), Control(Numbers()), snapshots.Snapshots()
    channel.about.update(instance="a", job="j1")
    control.channels.add(channel)
    control._of_instance["a"] = channel
    pause = board.begin(Process({"pid": 1, "instance": "a"}), 3, records.read({}, records.PauseRecord))
    (saving,) = await begin(kept.save_pause(pause.id, board, control))
    asked = await asked_of(peer, "save-pause")
    if is_kept:
        key = kept._expect("j1", {"id": asked["arguments"]["id"], "kind": "pause"})
        kept._keep(key, {"message": "", "data": ""})
        channel.take(wire.response(1, asked))
        assert (await saving)["id"] == key[1]
        return
    channel.take(wire.response(1, asked))
    with pytest.raises(Refused, match="its process could not make one: the gateway has not received it"):
        await saving


# The worker's end


SECRET = "hf_" + 30 * "x"
FAILING = """
import time
from raydebug.worker import control_channel
control_channel.ANSWERED_BY["fails"] = "pause_requests:fails"
from raydebug.worker import pause_requests
pause_requests.fails = lambda body: int(body["text"])
control_channel.open_channel()
time.sleep(60)
"""


class Asked:
    """A gateway of the test's own, which one process has dialled."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._decoder, self._received = connection, wire.Decoder(), list[wire.Message]()

    def send(self, message: wire.Message) -> None:
        self._connection.sendall(wire.encode(message))

    def receive(self) -> wire.Message:
        while not self._received:
            data = self._connection.recv(65536)
            assert data, "the process has closed the connection"
            self._received += self._decoder.feed(data)
        return self._received.pop(0)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Any]:
    """Be the gateway of a process of a job: its channel, after the handshake and its first message."""
    (tmp_path / "token").write_text("t" * 64)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"RAYDEBUG_GATEWAY": f"127.0.0.1:{server.getsockname()[1]}", "RAYDEBUG_TOKEN_PATH": f"{tmp_path}/token"}
        environment = {**os.environ, **place, "RAYDEBUG_JOB": "j1"}
        argv = [sys.executable, "-c", FAILING]
        with subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            server.settimeout(20)
            connection, _ = server.accept()
            connection.settimeout(20)
            gateway = Asked(connection)
            theirs = gateway.receive()["body"]["nonce"]
            mine = wire.new_nonce()
            gateway.send(
                wire.event(1, "proof", {"nonce": mine, "proof": wire.proof("t" * 64, wire.AS_GATEWAY, theirs, mine)})
            )
            assert gateway.receive()["event"] == "proof"
            gateway.send(wire.event(2, "welcome"))
            known = gateway.receive()
            assert known["event"] == "known"
            gateway.send(wire.event(3, "breaks", {"add": [], "remove": []}))
            birth = gateway.receive()
            assert (birth["event"], birth["body"]["started"] > 0) == ("birth", True)
            gateway.process = process
            yield gateway
            process.kill()
            connection.close()


def test_a_worker_answers_by_id(asked) -> None:
    """A worker answers each question by its id: also one that it does not know, and one that fails."""
    asked.send(wire.request(21, "stacks", {"digests": True}))
    asked.send(wire.request(22, "no such question"))
    asked.send(wire.request(23, "fails", {"text": SECRET}))
    asked.send(wire.request(24, "frames", {"digests": ["x"]}))
    found = [asked.receive() for _ in range(4)]
    assert [(one["request_seq"], one["success"]) for one in found] == [(21, True), (22, False), (23, False), (24, True)]
    assert found[0]["body"]["threads"][0]["digest"]
    why = "ValueError: invalid literal for int() with base 10: '(hidden)'"
    assert [one["message"] for one in found[1:3]] == ["unknown", why]
    assert found[3]["body"] == {"known": []}


def test_a_pause_is_answered_late(asked) -> None:
    """The thread of the channel answers other questions while a pause waits for its line."""
    asked.send(wire.request(21, "pause", {"request": "r1"}))  # the main thread sleeps
    asked.send(wire.request(22, "describe"))
    assert asked.receive()["request_seq"] == 22
    asked.send(wire.event(23, "withdraw", {"request": "r1"}))
    asked.send(wire.request(24, "describe"))
    assert asked.receive()["request_seq"] == 24


def test_breakpoints_that_fail_together(asked) -> None:
    """When breakpoints cannot be set at all, each is reported with the reason."""
    asked.send(wire.event(21, "breaks", {"add": [{"id": "b1", "where": "x.py:1", "policy": {}}]}))
    report = asked.receive()
    assert (report["event"], report["body"]["id"], report["body"]["state"]) == ("break", "b1", "failed")
    assert report["body"]["message"] == "KeyError: 'source'"


def test_what_needs_no_answer_gets_none(asked) -> None:
    """Events of the gateway are not answered; why one has failed is in the job's log."""
    asked.send(wire.event(22, "no such event", {"x": 1}))
    asked.send(wire.event(24, "withdraw", {"request": "r1"}))
    asked.send(wire.event(25, "withdraw", {}))
    asked.send(wire.request(26, "describe"))
    assert asked.receive()["request_seq"] == 26
    asked.process.kill()
    assert "raydebug: 'withdraw' of the gateway failed: KeyError: 'request'" in asked.process.stderr.read()


# Both, and HTTP


def ready(gateway: GatewayUnderTest, program: str = WAITS, **variables: str) -> subprocess.Popen[str]:
    process = gateway.start(program, RAYDEBUG_JOB="j1", **variables)
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def test_ask_processes(gateway: GatewayUnderTest) -> None:
    """One call of the client library asks all processes of a job, or some, and names each with its answer."""
    first, second = ready(gateway), ready(gateway)
    found = ask_processes(gateway, STACKS, {}, timeout_s=10.0)
    assert [one["process"]["pid"] for one in found] == sorted([first.pid, second.pid])
    assert {one["state"] for one in found} == {"answered"}
    for one in found:
        assert one["answer"] is not None
        assert one["answer"]["threads"][0]["frames"][0]["function"] == "<module>"
        assert one["process"]["title"]
    some = ask_processes(gateway, STACKS, {}, only=[found[0]["instance"]], timeout_s=10.0)
    assert [one["instance"] for one in some] == [found[0]["instance"]]
    assert ask_processes(gateway, STACKS, {}, job="j2", timeout_s=10.0) == []


def test_ask_a_process_that_is_stopped(gateway: GatewayUnderTest) -> None:
    """A stopped process is silent, and one that is killed while it is asked has ended."""
    process = ready(gateway)
    os.kill(process.pid, signal.SIGSTOP)
    (one,) = ask_processes(gateway, STACKS, {}, timeout_s=0.1)
    assert (one["process"]["pid"], one["state"], one["answer"]) == (process.pid, "silent", None)
    threading.Timer(0.5, process.kill).start()
    (one,) = ask_processes(gateway, STACKS, {}, timeout_s=20.0)
    assert (one["state"], one["answer"]) == ("ended", None)


@pytest.mark.parametrize("name", ["no-such", "pause", "withdraw", "breaks", "save-pause"])
def test_questions_of_the_gateway_alone(gateway: GatewayUnderTest, name: str) -> None:
    """A client cannot ask what no row is for, nor what the gateway keeps account of."""
    question = questions.Question(name, Nothing, Nothing, False)
    with pytest.raises(RaydebugError) as error:
        ask_processes(gateway, question, {}, timeout_s=1.0)
    assert str(error.value) == (
        "error: the gateway of cluster 'test' refused a request\n"
        f"cause: POST /processes/{name}: this gateway knows no question '{name}' of clients; "
        "it may be of another version\n"
        "fix: if its version differs, restart it with `raydebug down` and `raydebug up`"
    )


@pytest.mark.parametrize(
    "question",
    [{"timeout_s": 0}, {"timeout_s": 99}, {"only": 5}, {"job": 5}, {"body": 7}, {"body": {"digests": "x"}}, []],
)
def test_malformed(gateway: GatewayUnderTest, question: Any) -> None:
    """A question that is not what the table says is refused with HTTP 400."""
    connection = http.client.HTTPConnection(gateway.gateway_host, gateway.gateway_port, timeout=5)
    headers = {"Authorization": f"Bearer {gateway.token}"}
    connection.request("POST", "/processes/stacks", body=json.dumps(question), headers=headers)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (400, "http.malformed")


PAUSED = OPEN + "def f():\n    breakpoint()\n    return 1\nf()\n"
FAILS = """
from raydebug.worker import snapshot
def summarize(*_):
    raise MemoryError("no room")
snapshot.summarize = summarize
"""


def test_why_a_snapshot_of_a_pause_failed(gateway: GatewayUnderTest) -> None:
    """A failed snapshot of a pause is refused at once, with the reason that the process gives."""
    gateway.start(FAILS + PAUSED, RAYDEBUG_JOB="j1")
    (pause,) = gateway.pauses()
    with pytest.raises(RaydebugError) as error:
        save_pause(gateway, pause["id"])
    assert str(error.value) == (
        "error: the gateway of cluster 'test' refused a request\n"
        "cause: POST /snapshots: its process could not make one: MemoryError: no room\n"
        "fix: look at it with `raydebug attach`"
    )


PAUSES = """
import threading
from raydebug.worker import pause_requests
if {missing}:
    import sys
    sys.modules["debugpy"] = None
ask = pause_requests.pause_for({{"request": "r1"}})
threading.Thread(target=ask, args=(lambda answer: print("answer", answer, flush=True),)).start()
while True:
    number = 1
"""


@pytest.mark.parametrize("missing", [False, True])
def test_answer_to_a_pause(gateway: GatewayUnderTest, missing: bool) -> None:
    """A pause is answered only when the thread cannot pause, with the cause."""
    process = gateway.start(PAUSES.format(missing=missing))
    if missing:
        assert "debugpy cannot be loaded" in process.stdout.readline()
    gateway.pauses(0 if missing else 1)
    process.kill()
    assert process.stdout.read() == ""
