"""The root session of an editor, and the child sessions that it makes the editor open."""

from __future__ import annotations

import asyncio

import pytest

from gateway_under_test import TOKEN, GatewayUnderTest
from raydebug.dap import RequestFailed
from raydebug.gateway.board import Board
from raydebug.gateway.client_requests import Refused
from raydebug.gateway.numbers import Numbers
from raydebug.gateway.processes import Process
from raydebug.gateway.root_session import RootSession, child_configuration, read_ranks
from raydebug.protocol.messages import COPIES

PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
TWICE = "def work(i):\n    breakpoint()\n    return i\n\nfor i in range(2):\n    work(i)\nprint('done')\n"


async def open_parent(gateway: GatewayUnderTest, **arguments):
    session = await gateway.connect_editor()
    await session.request("attach", {"token": TOKEN, "target": "all", **arguments})
    await session.next_event("initialized", timeout_s=20)
    await session.request("configurationDone")
    return session


async def open_child(gateway: GatewayUnderTest, configuration: dict[str, object]):
    """Return a session that an editor starts with the configuration it received."""
    session = await gateway.connect_editor()
    await session.request("attach", configuration)
    await session.request("configurationDone")
    await session.next_event("stopped", timeout_s=10)
    return session


async def test_every_pause_is_announced_once(gateway):
    """The root session starts a session for each existing and each new pause, with a whole configuration."""
    first = gateway.start(PAUSES, RANK="0")
    gateway.pauses()
    connect = {"host": "127.0.0.1", "port": gateway.gateway_port}
    mappings = [{"localRoot": "/here", "remoteRoot": "/there"}]
    parent = await open_parent(
        gateway, connect=connect, name="raydebug", type="debugpy", request="attach", pathMappings=mappings,
        raydebugCopies=mappings,
        justMyCode=False, subProcess=False, preLaunchTask="build",
    )  # fmt: skip
    assert (await parent.request("threads"))["threads"] == []
    child = await parent.next_child()
    assert len(child.pop("raydebugParent")) == 16
    assert child == {
        "name": "pause 1: rank 0 program0.py:3", "type": "debugpy", "request": "attach", "connect": connect,
        "token": TOKEN, "target": "1", "justMyCode": False, "subProcess": False, "pathMappings": mappings,
    }  # fmt: skip
    gateway.start(PAUSES)
    child = await parent.next_child()
    assert (child["name"], child["target"]) == ("pause 2: program1.py:3", "2")
    session, stopped = await gateway.attach(child["target"])
    await session.request("disconnect")
    await asyncio.sleep(0.3)
    assert parent.children.empty(), "a session that was closed is not opened again by itself"
    await parent.request("disconnect")
    await parent.close()
    assert stopped["pause"]["id"] == "2"
    assert len(gateway.pauses(2)) == 2, "the end of the first session leaves every pause"
    assert first.poll() is None


async def test_next_pause_of_a_process_goes_to_its_session(gateway):
    """The next pause of a process with an open session arrives in that session, which ends with the process."""
    program = gateway.start(TWICE)
    gateway.pauses()
    parent = await open_parent(gateway)
    child = await parent.next_child()
    session, stopped = await gateway.attach(child["target"])
    await session.request("continue", {"threadId": stopped["threadId"]})
    again = (await session.next_event("stopped", timeout_s=20))["body"]
    assert again["pause"]["id"] == "2"
    await session.request("disconnect")
    await asyncio.sleep(0.3)
    assert parent.children.empty(), "a session that was closed at its second pause is not opened again either"
    assert (await (await open_parent(gateway)).next_child())["target"] == "2", "but by who attaches anew"
    session, stopped = await gateway.attach("2")
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.next_event("terminated", timeout_s=20)
    await parent.close()
    assert program.communicate(timeout=60)[0] == "done\n"


async def test_pause_of_a_session_that_was_closed_while_it_ran(gateway):
    """A process that was resumed and whose session was closed gets a new session at its next breakpoint."""
    gateway.start("import time\n" + TWICE.replace("return i", "time.sleep(0.5)"))
    gateway.pauses()
    parent = await open_parent(gateway)
    session, stopped = await gateway.attach((await parent.next_child())["target"])
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.request("disconnect")
    assert (await parent.next_child())["target"] == "2"


async def test_terminal_that_waits_comes_first(gateway):
    """A terminal that waits with `attach next` gets a pause first; the editor opens a session after its release."""
    parent = await open_parent(gateway)
    waiting = asyncio.ensure_future(gateway.attach("next"))
    await asyncio.sleep(0.2)
    gateway.start(PAUSES)
    session, _ = await waiting
    await asyncio.sleep(0.2)
    assert parent.children.empty()
    await session.request("disconnect")
    assert (await parent.next_child())["target"] == "1"


@pytest.mark.parametrize("wish", [{"ranks": [1, 3]}, {"ranks": "1,3"}, {"job": "mine"}], ids=str)
async def test_only_the_wanted_ranks_or_job(gateway, wish):
    """With `ranks` or `job` the root session starts sessions for those pauses alone."""
    for rank, job in (("0", "other"), ("1", "mine")):
        gateway.start(PAUSES, RANK=rank, RAYDEBUG_JOB=job)
        gateway.pauses(int(rank) + 1)
    parent = await open_parent(gateway, **wish)
    assert (await parent.next_child())["name"] == "pause 2: rank 1 program1.py:3"
    await asyncio.sleep(0.3)
    assert parent.children.empty()


async def test_breakpoints_in_the_first_session_say_where_they_count(gateway):
    """Breakpoints that an editor sends to the root session are unverified, with the reason; nothing else fails."""
    parent = await open_parent(gateway)
    source = {"path": "/x.py"}
    answer = await parent.request("setBreakpoints", {"source": source, "breakpoints": [{"line": 4}]})
    (one,) = answer["breakpoints"]
    assert (one["verified"], one["line"]) == (False, 4)
    assert "the session of each pause" in one["message"]
    assert await parent.request("setExceptionBreakpoints", {"filters": []}) == {}
    with pytest.raises(RequestFailed, match="this session has no pause for 'evaluate'") as refused:
        await parent.request("evaluate", {"expression": "1"})
    assert refused.value.body["error"]["code"] == "parent.no-pause"
    with pytest.raises(RequestFailed, match="attached already"):
        await parent.request("attach", {"token": TOKEN, "target": "1"})


async def test_client_without_start_debugging(gateway):
    """A client without `startDebugging` gets a refusal that asks for a pause, and no event that it may reject."""
    gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    session = await gateway.connect()  # as Helix does
    with pytest.raises(RequestFailed, match="does not offer startDebugging") as refused:
        await session.request("attach", {"token": TOKEN, "target": "all"})
    assert refused.value.body["error"]["code"] == "attach.no-child-sessions"
    assert '"target": "3" (an id of `raydebug paused`)' in str(refused.value)
    assert session.events.empty()
    await session.request("attach", {"token": TOKEN, "target": pause["id"]})
    await session.request("configurationDone")
    assert (await session.next_event("stopped", timeout_s=20))["body"]["pause"]["id"] == pause["id"]
    await session.close()


@pytest.mark.parametrize("how", ["disconnects", "is gone"])
async def test_end_of_the_first_session_ends_those_it_opened(gateway, how):
    """When the root session disconnects or breaks, its child sessions end; every pause stays and waits."""
    for rank in range(3):
        gateway.start(PAUSES, RANK=str(rank))
    before = [pause["id"] for pause in gateway.pauses(3)]
    parent = await open_parent(gateway)
    configurations = [await parent.next_child() for _ in range(3)]
    children = [await open_child(gateway, one) for one in configurations[:2]]
    alone, _ = await gateway.attach(before[2])
    if how == "disconnects":
        await parent.request("disconnect")
    else:
        await parent.close()
    for child in children:
        ended = await child.next_event("terminated", timeout_s=20)
        assert "the task stays paused" in ended["body"]["reason"]
    assert (await alone.request("threads"))["threads"], "a session that was opened otherwise stays"
    await alone.request("disconnect")
    late = await gateway.connect_editor()  # the editor was about to start it
    with pytest.raises(RequestFailed, match="the session that opened this one has ended"):
        await late.request("attach", configurations[2])
    await late.close()
    assert [pause["id"] for pause in gateway.pauses(3)] == before


async def test_child_that_ends_leaves_the_others(gateway):
    """A child session that ends by itself ends neither other ones nor the root session."""
    for rank in range(2):
        gateway.start(PAUSES, RANK=str(rank))
    gateway.pauses(2)
    parent = await open_parent(gateway)
    first, second = [await open_child(gateway, await parent.next_child()) for _ in range(2)]
    await first.request("disconnect")
    assert (await second.request("threads"))["threads"]
    assert (await parent.request("threads"))["threads"] == []
    await parent.request("disconnect")
    await second.next_event("terminated", timeout_s=20)
    gateway.pauses(2)


async def test_missing_and_wrong_token(gateway):
    """A missing token and a wrong one have different refusals; the text that editors show has cause and fix."""
    said = []
    for token in ({}, {"token": None}, {"token": ""}, {"token": "x" * 64}):
        session = await gateway.connect_editor()
        with pytest.raises(RequestFailed) as refused:
            await session.request("attach", {"target": "all", **token})
        error = refused.value.body["error"]
        assert str(refused.value) == error["format"] == f"{error['cause']}; {error['fix']}"
        assert error["showUser"] is True
        said.append((error["code"], error["cause"]))
        await session.close()
    assert said[0] == said[1] == said[2] == ("auth.missing-token", "no token was sent")
    assert said[3] == ("auth.wrong-token", "the token is not this cluster's")


async def test_what_is_offered_is_answered(gateway):
    """Steps into a target are offered and answered; `goto` is neither offered nor forwarded."""
    gateway.start(
        "def inner(x):\n    return x\n\ndef work():\n    breakpoint()\n    return inner(inner(1))\n\nwork()\n"
    )
    (pause,) = gateway.pauses()
    session, stopped = await gateway.attach(pause["id"])
    offered = await session.request("initialize")
    assert offered["supportsStepInTargetsRequest"] is True
    assert not offered.get("supportsGotoTargetsRequest")
    thread = {"threadId": stopped["threadId"]}
    await session.request("next", thread)
    await session.next_event("stopped", timeout_s=20)
    frame = (await session.request("stackTrace", thread))["stackFrames"][0]
    targets = (await session.request("stepInTargets", {"frameId": frame["id"]}))["targets"]
    assert [one["label"] for one in targets] == ["inner(1)", "inner(inner(1))"]
    await session.request("stepIn", {**thread, "targetId": targets[1]["id"]})
    await session.next_event("stopped", timeout_s=20)
    frame = (await session.request("stackTrace", thread))["stackFrames"][0]
    assert (frame["name"], frame["line"]) == ("inner", 2)
    for command in ("goto", "gotoTargets"):
        with pytest.raises(RequestFailed, match=f"'{command}' is not offered here"):
            await session.request(command, {**thread, "targetId": 0, "line": 1, "source": {"path": "/x.py"}})
    await session.close()


async def test_first_session_needs_the_token(gateway):
    """S10: a client without the token learns of no pause, also not as a root session."""
    gateway.start(PAUSES)
    gateway.pauses()
    session = await gateway.connect()
    with pytest.raises(RequestFailed, match="the token is not this cluster's"):
        await session.request("attach", {"token": "x" * 64, "target": "all"})
    with pytest.raises(RequestFailed, match="before 'attach'"):
        await session.request("configurationDone")
    await asyncio.sleep(0.3)
    assert session.events.empty()


async def test_files_are_named_as_the_client_has_them(gateway):
    """With pathMappings, frames have the client's file names; a file that exists only in the cluster is read there."""
    gateway.start("import json\n\ndef work():\n    breakpoint()\n    json.dumps([1])\n    return 1\n\nwork()\n")
    (pause,) = gateway.pauses()
    mappings = [{"localRoot": "/my/project", "remoteRoot": str(gateway.folder)}]
    session, stopped = await gateway.attach(pause["id"], pathMappings=mappings)
    thread = {"threadId": stopped["threadId"]}
    frames = (await session.request("stackTrace", thread))["stackFrames"]
    assert frames[0]["source"]["path"] == "/my/project/program0.py"
    source = {"path": "/my/project/program0.py"}
    set_ = await session.request("setBreakpoints", {"source": source, "breakpoints": [{"line": 6}]})
    (one,) = set_["breakpoints"]
    assert (one["verified"], one["source"]["path"]) == (True, "/my/project/program0.py")
    for step in ("next", "stepIn"):
        await session.request(step, thread)
        await session.next_event("stopped", timeout_s=20)
    (inside, *_) = (await session.request("stackTrace", thread))["stackFrames"]
    assert inside["source"]["path"].endswith("/json/__init__.py")
    reference = inside["source"]["sourceReference"]
    text = await session.request("source", {"source": inside["source"], "sourceReference": reference})
    assert "def dumps(" in text["content"]
    other, _ = await gateway.attach(pause["id"], steal=True)
    frames = (await other.request("stackTrace", thread))["stackFrames"]
    assert frames[1]["source"]["path"] == f"{gateway.folder}/program0.py", "another client has names of its own"


async def test_a_copy_that_is_made_while_a_client_waits(gateway):
    """A client names the copies again when it has a pause: its breakpoints and frames are those of the new one."""
    gateway.start("def work():\n    breakpoint()\n    return 1\n\nwork()\n")
    (pause,) = gateway.pauses()
    old, new = ({"localRoot": "/my/project", "remoteRoot": there} for there in ("/old", str(gateway.folder)))
    session, stopped = await gateway.attach(pause["id"], **{COPIES: [old]})
    asked = {"source": {"path": "/my/project/program0.py"}, "breakpoints": [{"line": 3}], COPIES: [old, new]}
    (one,) = (await session.request("setBreakpoints", asked))["breakpoints"]
    assert (one["verified"], one["source"]["path"]) == (True, "/my/project/program0.py")
    frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
    assert frames[0]["source"]["path"] == "/my/project/program0.py"


async def test_ranks_and_mappings_that_cannot_be_read(gateway):
    """Invalid `ranks` and `pathMappings` are refused with an example."""
    for arguments, code in (({"ranks": "a"}, "attach.bad-ranks"), ({"pathMappings": 5}, "attach.bad-mappings"),
                            ({"pathMappings": [{"localRoot": "/x"}]}, "attach.bad-mappings")):  # fmt: skip
        session = await gateway.connect_editor()
        with pytest.raises(RequestFailed) as refused:
            await session.request("attach", {"token": TOKEN, "target": "all", **arguments})
        assert refused.value.body["error"]["code"] == code
    assert read_ranks("0, 3") == {0, 3}
    assert read_ranks(None) is None
    with pytest.raises(Refused):
        read_ranks([])


PAUSE = {"id": "7", "rank": None, "file": "/a/b.py", "line": 2}
GATEWAY = ("10.0.0.9", 5678)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({}, {"connect": {"host": "10.0.0.9", "port": 5678}}),
        ({"connect": {"port": 99}}, {"connect": {"host": "10.0.0.9", "port": 99}}),
        ({"host": "h", "port": 1}, {"connect": {"host": "h", "port": 1}}),
        ({"listen": {"port": 0}, "debugAdapterPath": "/a.py"}, {"listen": {"port": 0}, "debugAdapterPath": "/a.py"}),
        ({"listen": {"port": 0}, "connect": {"host": "h", "port": 1}}, {"connect": {"host": "h", "port": 1}}),
    ],
    ids=str,
)
def test_way_of_a_session(arguments, where):
    """A child session connects as the root session does: to the same address, or through the editor's own adapter."""
    configuration = child_configuration(arguments, PAUSE, GATEWAY)
    expected = {"type": "debugpy", "justMyCode": False, "name": "pause 7: b.py:2", "target": "7", **where}
    assert configuration == expected


async def test_pause_that_dials_in_again():
    """The editor opens a session again for a pause that was lost and is reported again with its number."""
    board, asked = Board(Numbers()), []

    class To:
        def answer(self, message, body=None) -> None: ...

        def send(self, message) -> None:
            asked.append(message["arguments"]["configuration"]["target"])

    root = RootSession(To(), board, {}, ("127.0.0.1", 1))
    root.take({"command": "configurationDone"})
    for _ in range(2):
        pause = board.begin(Process({"pid": 4, "instance": "i1"}), 1, {"file": "x.py", "line": 3, "nth": 1})
        pause.stopped = {"threadId": 1}
        board.changed()
        count = len(asked)
        while len(asked) == count:
            await asyncio.sleep(0.01)
        board.end(pause, "its process lost its connection and has dialled in again")
    root.end()
    assert asked == [pause.id] * 2
