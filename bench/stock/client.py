"""A DAP client of debugpy's own port, as editors are: every connection begins as a session, `initialize` first.

`python -m bench.stock.client HOST PORT [ASK_EVERY_S]` attaches and prints what comes as JSON lines, for a client on
another host; with ASK_EVERY_S it asks for the threads so often, until that is answered after 60 s or not at all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from raydebug.dap import ConnectionLost, DapSession, RequestFailed

ANSWER_S = 15.0
Message = dict[str, Any]


class Client:
    """One session with a worker's adapter."""

    def __init__(self, session: DapSession, host: str, port: int) -> None:
        self.session = session
        self._where = {"host": host, "port": port}
        self.stopped: list[Message] = []

    @classmethod
    async def begin(cls, row: Message) -> Client:
        """Connect to a paused worker's port and say `initialize`; nothing is connected to and left."""
        host, port = str(row["ip"]), int(row["debugger_port"])
        client = cls(await DapSession.connect(host, port), host, port)
        await client.session.request(
            "initialize",
            {"clientName": "stock faults", "adapterID": "python", "pathFormat": "path"},
            timeout_s=ANSWER_S,
        )
        return client

    @classmethod
    async def attach(cls, row: Message, stops: int = 1) -> Client:
        """Attach, and wait for the first stop, or for so many.

        Raises:
            RequestFailed: the adapter refused.
            TimeoutError: it did not answer.
        """
        client = await cls.begin(row)
        wanted = {"type": "python", "request": "attach", "justMyCode": False, "connect": client._where}
        attached = client.session.send("attach", wanted)  # answered only after configurationDone
        initialized = asyncio.ensure_future(client.session.next_event("initialized", timeout_s=ANSWER_S))
        await asyncio.wait([attached, initialized], return_when=asyncio.FIRST_COMPLETED)
        if attached.done() and not (answer := attached.result()).get("success"):
            initialized.cancel()
            raise RequestFailed("attach", str(answer.get("message")), {})
        await initialized
        await client.session.request("setExceptionBreakpoints", {"filters": ["uncaught"]}, timeout_s=ANSWER_S)
        await client.session.request("configurationDone", timeout_s=ANSWER_S)
        await asyncio.wait_for(attached, ANSWER_S)
        for _ in range(stops):
            client.stopped.append((await client.session.next_event("stopped", timeout_s=ANSWER_S))["body"])
        return client

    @property
    def thread(self) -> int:
        """The thread that stopped first."""
        return int(self.stopped[0]["threadId"])

    async def frame(self) -> int:
        """Return the id of the user's frame."""
        answer = await self.session.request("stackTrace", {"threadId": self.thread}, timeout_s=ANSWER_S)
        frames = answer["stackFrames"]
        own = [f for f in frames if "/ray/" not in str((f.get("source") or {}).get("path"))]
        return int((own or frames)[0]["id"])

    async def evaluate(self, expression: str, context: str = "repl", within_s: float = ANSWER_S) -> str:
        """Evaluate in the user's frame."""
        arguments = {"expression": expression, "frameId": await self.frame(), "context": context}
        return str((await self.session.request("evaluate", arguments, timeout_s=within_s))["result"])

    async def go_on(self) -> None:
        """Let all threads run, and leave."""
        await self.session.request("continue", {"threadId": self.thread}, timeout_s=ANSWER_S)
        await self.leave()

    async def leave(self) -> None:
        """Disconnect as an editor does."""
        await self.session.request("disconnect", {"terminateDebuggee": False}, timeout_s=ANSWER_S)
        await self.session.close()

    async def drop(self) -> None:
        """Break the connection, as a client that is killed does."""
        self.session._writer.transport.abort()
        await asyncio.sleep(0.1)  # the loop closes the socket

    async def observe(self, for_s: float, until: str | None = None) -> list[str]:
        """Return what comes in this time, as `name after 0.1 s`: events, and the connection's end."""
        begin, seen = time.monotonic(), []
        while (rest := begin + for_s - time.monotonic()) > 0:
            try:
                message = await self.session.next_event(timeout_s=rest)
            except TimeoutError:
                break
            except ConnectionLost:
                seen.append(f"connection closed after {time.monotonic() - begin:.1f} s")
                break
            if (name := str(message["event"])) not in ("output", "debugpySockets", "module"):
                seen.append(f"{name} after {time.monotonic() - begin:.1f} s")
            if name == until:
                break
        return seen

    async def answers(self, within_s: float = 5.0) -> bool:
        """Say whether the session still answers a request, be it with a refusal."""
        try:
            await self.session.request("threads", timeout_s=within_s)
        except RequestFailed:
            return True
        except (TimeoutError, ConnectionLost):
            return False
        return True


async def _main(host: str, port: str, ask_every_s: str = "") -> None:
    begin = time.monotonic()
    try:
        client = await Client.attach({"ip": host, "debugger_port": port})
    except (RequestFailed, TimeoutError, ConnectionLost, OSError) as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print(json.dumps({"attached": round(time.monotonic() - begin, 2)}), flush=True)
    if not ask_every_s:
        for line in await client.observe(600.0):
            print(json.dumps({"seen": line}), flush=True)
        return
    while time.monotonic() < begin + 120:
        await asyncio.sleep(float(ask_every_s))
        asked = time.monotonic()
        answered = await client.answers(within_s=90.0)
        print(json.dumps({"answered": answered, "after s": round(time.monotonic() - asked, 1)}), flush=True)
        if not answered or asked > begin + 70:
            return


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
