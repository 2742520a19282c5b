"""The session that an editor opens first, and the sessions of the pauses that it makes the editor open."""

from __future__ import annotations

import asyncio

import pytest
from gateway_door import TOKEN, Door, visit

from raydebug.dap import wire
from raydebug.dap.session import RequestFailed
from raydebug.gateway.parent import child_configuration, read_ranks
from raydebug.gateway.refusals import Refused

PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
TWICE = "def work(i):\n    breakpoint()\n    return i\n\nfor i in range(2):\n    work(i)\nprint('done')\n"


async def open_parent(door: Door, **arguments):
    """Return a session as an editor's first one, configured."""
    session = await door.connect()
    await session.request("attach", {"token": TOKEN, "target": "all", **arguments})
    await session.next_event("initialized", timeout_s=5)
    await session.request("configurationDone")
    return session


async def next_child(session):
    return (await session.next_event("debugpyAttach", timeout_s=10))["body"]


def test_every_pause_is_announced_once(door):
    """The first session is told of each pause that stands and of each one as it happens, with a whole configuration."""
    first = door.start(PAUSES, RANK="0")
    door.pauses()

    async def look():
        connect = {"host": "127.0.0.1", "port": door.gateway_port}
        mappings = [{"localRoot": "/here", "remoteRoot": "/there"}]
        parent = await open_parent(
            door, connect=connect, name="raydebug", type="debugpy", request="attach", pathMappings=mappings,
            justMyCode=False, subProcess=False, preLaunchTask="build",
        )  # fmt: skip
        assert (await parent.request("threads"))["threads"] == []
        assert await next_child(parent) == {
            "name": "pause 1: rank 0 program0.py:3", "type": "debugpy", "request": "attach", "connect": connect,
            "token": TOKEN, "target": "1", "justMyCode": False, "subProcess": False, "pathMappings": mappings,
        }  # fmt: skip
        door.start(PAUSES)
        child = await next_child(parent)
        assert (child["name"], child["target"]) == ("pause 2: program1.py:3", "2")
        session, stopped = await door.attach(child["target"])
        await session.request("disconnect")
        await asyncio.sleep(0.3)
        assert parent.events.empty(), "a session that was closed is not opened again by itself"
        await parent.request("disconnect")
        await parent.close()
        assert stopped["pause"]["id"] == "2"

    visit(door, look)
    assert len(door.pauses(2)) == 2, "the end of the first session leaves every pause"
    assert first.poll() is None


def test_next_pause_of_a_process_goes_to_its_session(door):
    """The next pause of a process whose session is open comes there, and ends with the process."""
    program = door.start(TWICE)
    door.pauses()

    async def look():
        parent = await open_parent(door)
        child = await next_child(parent)
        session, stopped = await door.attach(child["target"])
        await session.request("continue", {"threadId": stopped["threadId"]})
        again = (await session.next_event("stopped", timeout_s=5))["body"]
        assert again["pause"]["id"] == "2"
        await session.request("disconnect")
        await asyncio.sleep(0.3)
        assert parent.events.empty(), "a session that was closed at its second pause is not opened again either"
        assert (await next_child(await open_parent(door)))["target"] == "2", "but by who attaches anew"
        session, stopped = await door.attach("2")
        await session.request("continue", {"threadId": stopped["threadId"]})
        await session.next_event("terminated", timeout_s=5)
        await parent.close()

    visit(door, look)
    assert program.communicate(timeout=10)[0] == "done\n"


def test_pause_of_a_session_that_was_closed_while_it_ran(door):
    """A process that was let run and whose session was closed gets a new session at its next breakpoint."""
    door.start("import time\n" + TWICE.replace("return i", "time.sleep(0.5)"))
    door.pauses()

    async def look():
        parent = await open_parent(door)
        session, stopped = await door.attach((await next_child(parent))["target"])
        await session.request("continue", {"threadId": stopped["threadId"]})
        await session.request("disconnect")
        assert (await next_child(parent))["target"] == "2"

    visit(door, look)


def test_terminal_that_waits_comes_first(door):
    """A terminal that waits with `attach next` gets a pause; the editor is told of it only when it is let go."""

    async def look():
        parent = await open_parent(door)
        waiting = asyncio.ensure_future(door.attach("next"))
        await asyncio.sleep(0.2)
        door.start(PAUSES)
        session, _ = await waiting
        await asyncio.sleep(0.2)
        assert parent.events.empty()
        await session.request("disconnect")
        assert (await next_child(parent))["target"] == "1"

    visit(door, look)


@pytest.mark.parametrize("wish", [{"ranks": [1, 3]}, {"ranks": "1,3"}, {"job": "mine"}], ids=str)
def test_only_the_wanted_ranks_or_job(door, wish):
    """With `ranks` or `job` the first session is told of those pauses alone."""
    for rank, job in (("0", "other"), ("1", "mine")):
        door.start(PAUSES, RANK=rank, RAYDEBUG_JOB=job)
        door.pauses(int(rank) + 1)

    async def look():
        parent = await open_parent(door, **wish)
        assert (await next_child(parent))["name"] == "pause 2: rank 1 program1.py:3"
        await asyncio.sleep(0.3)
        assert parent.events.empty()

    visit(door, look)


def test_breakpoints_in_the_first_session_say_where_they_count(door):
    """Red dots that an editor sends to the first session are unverified there, with the reason; nothing else fails."""

    async def look():
        parent = await open_parent(door)
        source = {"path": "/x.py"}
        answer = await parent.request("setBreakpoints", {"source": source, "breakpoints": [{"line": 4}]})
        (one,) = answer["breakpoints"]
        assert (one["verified"], one["line"]) == (False, 4)
        assert "the session of each pause" in one["message"]
        assert await parent.request("setExceptionBreakpoints", {"filters": []}) == {}
        with pytest.raises(RequestFailed, match="no pause is here for 'evaluate'") as refused:
            await parent.request("evaluate", {"expression": "1"})
        assert refused.value.body["error"]["code"] == "parent.no-pause"
        with pytest.raises(RequestFailed, match="attached already"):
            await parent.request("attach", {"token": TOKEN, "target": "1"})

    visit(door, look)


def test_start_debugging_where_the_editor_offers_it(door):
    """An editor that offers `startDebugging` is sent that request instead of the event, as debugpy does."""
    door.start(PAUSES)
    door.pauses()

    async def look():
        reader, writer = await asyncio.open_connection("127.0.0.1", door.gateway_port)
        asked = [
            ("initialize", {"clientName": "Neovim", "supportsStartDebuggingRequest": True}),
            ("attach", {"token": TOKEN, "target": "all", "type": "python"}),
            ("configurationDone", {}),
        ]
        for seq, (command, arguments) in enumerate(asked, 1):
            writer.write(wire.encode(wire.request(seq, command, arguments)))
        decoder, seen = wire.Decoder(), []
        while not any(m["type"] == "request" for m in seen):
            seen += decoder.feed(await reader.read(65536))
        assert seen[-1]["command"] == "startDebugging"
        assert seen[-1]["arguments"]["request"] == "attach"
        configuration = seen[-1]["arguments"]["configuration"]
        assert (configuration["type"], configuration["target"]) == ("python", "1")
        assert configuration["connect"] == {"host": "127.0.0.1", "port": door.gateway_port}
        assert [m.get("event") for m in seen].count("debugpyAttach") == 0

    visit(door, look)


def test_first_session_needs_the_token(door):
    """S10: no pause is named to a client that has no token, also not as an editor's first session."""
    door.start(PAUSES)
    door.pauses()

    async def look():
        session = await door.connect()
        with pytest.raises(RequestFailed, match="the token is not this cluster's"):
            await session.request("attach", {"token": "x" * 64, "target": "all"})
        with pytest.raises(RequestFailed, match="before 'attach'"):
            await session.request("configurationDone")
        await asyncio.sleep(0.3)
        assert session.events.empty()

    visit(door, look)


def test_files_are_named_as_the_client_has_them(door):
    """With pathMappings, frames carry the client's names; a file that only the cluster has is read there."""
    door.start("import json\n\ndef work():\n    breakpoint()\n    json.dumps([1])\n    return 1\n\nwork()\n")
    (pause,) = door.pauses()

    async def look():
        mappings = [{"localRoot": "/my/project", "remoteRoot": str(door.folder)}]
        session, stopped = await door.attach(pause["id"], pathMappings=mappings)
        thread = {"threadId": stopped["threadId"]}
        frames = (await session.request("stackTrace", thread))["stackFrames"]
        assert frames[0]["source"]["path"] == "/my/project/program0.py"
        source = {"path": "/my/project/program0.py"}
        set_ = await session.request("setBreakpoints", {"source": source, "breakpoints": [{"line": 6}]})
        (one,) = set_["breakpoints"]
        assert (one["verified"], one["source"]["path"]) == (True, "/my/project/program0.py")
        for step in ("next", "stepIn"):
            await session.request(step, thread)
            await session.next_event("stopped", timeout_s=5)
        (inside, *_) = (await session.request("stackTrace", thread))["stackFrames"]
        assert inside["source"]["path"].endswith("/json/__init__.py")
        reference = inside["source"]["sourceReference"]
        text = await session.request("source", {"source": inside["source"], "sourceReference": reference})
        assert "def dumps(" in text["content"]
        other, _ = await door.attach(pause["id"], steal=True)
        frames = (await other.request("stackTrace", thread))["stackFrames"]
        assert frames[1]["source"]["path"] == f"{door.folder}/program0.py", "another client has names of its own"

    visit(door, look)


def test_ranks_and_mappings_that_cannot_be_read(door):
    """`ranks` and `pathMappings` that are none are refused with what they look like."""

    async def look():
        for arguments, code in (({"ranks": "a"}, "attach.bad-ranks"), ({"pathMappings": 5}, "attach.bad-mappings"),
                                ({"pathMappings": [{"localRoot": "/x"}]}, "attach.bad-mappings")):  # fmt: skip
            session = await door.connect()
            with pytest.raises(RequestFailed) as refused:
                await session.request("attach", {"token": TOKEN, "target": "all", **arguments})
            assert refused.value.body["error"]["code"] == code

    visit(door, look)
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
    """A pause's session goes the first one's way: the same address, or an adapter that the editor starts."""
    configuration = child_configuration(arguments, PAUSE, GATEWAY)
    expected = {"type": "debugpy", "justMyCode": False, "name": "pause 7: b.py:2", "target": "7", **where}
    assert configuration == expected
