"""One session at a pause: what becomes of code that its client leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway_under_test import GatewayUnderTest
from paused_programs import PausedProgram
from raydebug.console.session import GatewayAddress

PAUSES = 'prompt = "ok"\nbreakpoint()\n'
IGNORES = """import time
end = time.monotonic() + 1
while time.monotonic() < end:
    try:
        time.sleep(0.05)
    except KeyboardInterrupt:
        pass
"""


async def test_code_that_has_not_begun(serve: Callable[..., PausedProgram], shared_gateway: GatewayUnderTest) -> None:
    """A client that leaves interrupts its code also where the process begins it only later, behind other code."""
    program = serve(PAUSES)
    address = GatewayAddress(shared_gateway.gateway_host, shared_gateway.gateway_port, shared_gateway.token)
    session = await address.open(program.id, steal=False, on_output=lambda _: None)
    codes = (f"exec({IGNORES!r})", "exec('while True: pass')")
    running = [asyncio.ensure_future(session.evaluate(code)) for code in codes]
    await asyncio.sleep(0.2)
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await session.leave()
    session = await address.open(program.id, steal=False, on_output=lambda _: None)
    assert await asyncio.wait_for(session.evaluate("prompt"), 10) == "ok"
    await session.leave()
