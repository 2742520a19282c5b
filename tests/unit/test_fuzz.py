"""After random frames the gateway answers and every pause is listed, without tracebacks and without more memory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import psutil
import pytest

from gateway_fuzzer import Fuzzer
from gateway_under_test import PAUSES, GatewayUnderTest, visit

LONG = "RAYDEBUG_TEST_LONG"
SEED = 20260801
FRAMES, FRAMES_LONG = 5_000, 1_000_000
WARM_UP = 10  # one of so many frames, then memory is compared: the list of ended pauses has filled, as far as it may
GROWTH = 1.2
LIMIT_S = 3600.0
RANKS = 3


def memory_of(gateway: GatewayUnderTest) -> int:
    return psutil.Process(gateway.process.pid).memory_info().rss


def open_files(gateway: GatewayUnderTest) -> int:
    return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_f25_random_frames(gateway, record_property):
    """F25: after random frames to both ports, with and without token, the gateway and every pause are as before."""
    programs = [gateway.start(PAUSES, RANK=str(rank)) for rank in range(RANKS)]
    before = {pause["id"]: pause["pid"] for pause in gateway.pauses(RANKS)}
    fuzzer = Fuzzer(gateway, [*before], SEED)
    frames, begin = FRAMES_LONG if os.environ.get(LONG) else FRAMES, time.monotonic()
    visit(gateway, lambda: fuzzer.run(frames // WARM_UP), limit_s=LIMIT_S)
    files, memory = open_files(gateway), memory_of(gateway)
    visit(gateway, lambda: fuzzer.run(frames - frames // WARM_UP), limit_s=LIMIT_S)
    span = time.monotonic() - begin
    growth = memory_of(gateway) / memory
    record_property("frames", f"{sum(fuzzer.sent.values())} on {fuzzer.connections} connections in {span:.0f} s")
    record_property("of these", dict(fuzzer.sent))
    record_property("memory", f"{memory >> 10} KiB, then {growth:.3f} of it; log {len(gateway.log) >> 10} KiB")
    assert gateway.process.poll() is None
    bad = re.compile(r"Traceback|Logging error|Warning:|(?<!')exception", re.IGNORECASE)
    assert [line for line in gateway.log.splitlines() if bad.search(line)] == []
    assert growth <= GROWTH
    assert {pause["id"]: pause["pid"] for pause in gateway.pauses(RANKS)} == before
    deadline = time.monotonic() + 20
    while open_files(gateway) > files + 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert open_files(gateway) <= files + 5

    async def look() -> None:
        for pause_id in before:
            session, stopped = await gateway.attach(pause_id)
            thread = {"threadId": stopped["threadId"]}
            frame = (await session.request("stackTrace", thread))["stackFrames"][0]
            about = {"expression": "secret + 1", "frameId": frame["id"]}
            assert (await session.request("evaluate", about))["result"] == "42"
            await session.request("setVariable", {"variablesReference": await local_scope(session, frame["id"]),
                                                  "name": "secret", "value": "41"})  # fmt: skip
            await session.request("continue", thread)
            await session.close()

    visit(gateway, look, limit_s=60)
    assert [program.communicate(timeout=60)[0] for program in programs] == ["went on 41\n"] * RANKS


async def local_scope(session, frame_id: int) -> int:
    scopes = (await session.request("scopes", {"frameId": frame_id}))["scopes"]
    return int(scopes[0]["variablesReference"])
