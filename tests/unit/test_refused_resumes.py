"""A thread that pydevd refuses to resume stays paused and listed: a pause ends only when its thread runs."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway_under_test import open_gateway
from raydebug.dap import RequestFailed

PAUSES = "def work():\n    secret = 41\n    breakpoint()\n    return secret\n\nprint('went on', work())\n"
NO_THREAD, NO_TARGET = 99, 999
REFUSED = {
    "goto": {"targetId": NO_TARGET},
    "next": {"threadId": NO_THREAD},
    "stepIn": {"threadId": NO_THREAD},
    "stepOut": {"threadId": NO_THREAD},
    "continue": {"threadId": NO_THREAD},
}


async def test_f57_refused_resume(gateway):
    """F57: after a refused goto, next, stepIn, stepOut or continue the pause is listed, attaches, steps and resumes."""
    program = gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    session, _ = await gateway.attach(pause["id"])
    for command, arguments in REFUSED.items():
        with pytest.raises(RequestFailed):
            await session.request(command, arguments)
        assert [p["id"] for p in gateway.pauses(state="attached")] == [pause["id"]], command
    await session.request("disconnect")
    assert [(p["id"], p["line"]) for p in gateway.pauses()] == [(pause["id"], 3)]
    session, stopped = await gateway.attach(pause["id"])
    assert stopped["pause"]["line"] == 3
    await session.request("next", {"threadId": stopped["threadId"]})
    await session.next_event("stopped", timeout_s=20)
    await session.request("continue", {"threadId": stopped["threadId"]})
    assert program.communicate(timeout=60)[0] == "went on 41\n"
    assert gateway.pauses(0) == []


async def test_f57_refused_resume_expires(tmp_path):
    """F57: a pause whose resume was refused still expires at its limit."""
    with open_gateway(tmp_path, "--pause-limit-s", "2") as gateway:
        program = gateway.start(PAUSES)
        (pause,) = gateway.pauses()
        session, _ = await gateway.attach(pause["id"])
        with pytest.raises(RequestFailed):
            await session.request("next", {"threadId": NO_THREAD})
        await session.close()
        assert program.communicate(timeout=30)[0] == "went on 41\n"


TWO = """
import threading, time
def wait_there(stop):
    while not stop.is_set():
        time.sleep(0.01)
stop = threading.Event()
threading.Thread(target=wait_there, args=(stop,), name="beside").start()
breakpoint()
stop.set()
print("went on", flush=True)
"""


async def test_f57_continue_of_a_thread_that_runs(gateway):
    """F57: `continue` for another, running thread of the process is refused; the pause stays."""
    program = gateway.start(TWO)
    (pause,) = gateway.pauses()
    session, stopped = await gateway.attach(pause["id"])
    threads = (await session.request("threads"))["threads"]
    (beside,) = [one["id"] for one in threads if one["id"] != stopped["threadId"]]
    with pytest.raises(RequestFailed, match=f"thread {beside} of the process is not paused"):
        await session.request("continue", {"threadId": beside})
    assert [p["id"] for p in gateway.pauses(state="attached")] == [pause["id"]]
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()
    assert program.communicate(timeout=60)[0] == "went on\n"
    assert gateway.pauses(0) == []


async def test_f57_id_of_a_frame_as_a_threads(gateway):
    """F57: `pause`, `continue` and steps with the id of a frame or a variable are refused; the session survives."""
    program = gateway.start(PAUSES)
    (pause,) = gateway.pauses()
    session, stopped = await gateway.attach(pause["id"])
    frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
    scopes = (await session.request("scopes", {"frameId": frames[0]["id"]}))["scopes"]
    for wrong in (frames[0]["id"], frames[1]["id"], scopes[0]["variablesReference"], 0, -1, NO_THREAD):
        for command in ("pause", *REFUSED):
            with pytest.raises(RequestFailed):
                await session.request(command, {"threadId": wrong, "targetId": 0})
    await session.request("pause", {"threadId": stopped["threadId"]})
    value = await session.request("evaluate", {"expression": "secret", "frameId": frames[0]["id"]})
    assert value["result"] == "41"
    await session.request("continue", {"threadId": stopped["threadId"]})
    await session.close()
    assert program.communicate(timeout=60)[0] == "went on 41\n"


LOOP = "for number in range(100):\n    value = number\n    breakpoint()\nprint('went on')\n"


@pytest.mark.timeout(120)
async def test_f57_next_breakpoint_before_the_confirmation(gateway):
    """F57: a thread that pauses again at once is listed each time, 100 times out of 100."""
    program = gateway.start(LOOP)
    gateway.pauses()
    session, stopped = await gateway.attach("next")
    for _ in range(99):
        await session.request("continue", {"threadId": stopped["threadId"]})
        stopped = (await session.next_event("stopped", timeout_s=10))["body"]
    begin = time.monotonic()
    while not gateway.pauses(state="attached") and time.monotonic() < begin + 5:
        await asyncio.sleep(0.01)
    await session.request("continue", {"threadId": stopped["threadId"]})
    assert program.communicate(timeout=60)[0] == "went on\n"
    assert gateway.pauses(0) == []
