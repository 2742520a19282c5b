"""Sends seeded random DAP, HTTP and dial-in frames to both ports of a gateway, with and without its token.

A frame is well formed with random fields, or one whose bytes were changed. Frames that would resume a pause name a
thread that does not exist: what is paused has to stay so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from gateway_under_test import TOKEN, GatewayUnderTest
from raydebug.gateway import client_requests
from raydebug.protocol import questions, records, wire

AT_ONCE = 64  # connections
CONVERSATION = 40  # frames with the token
STRANGERS = 12  # frames without it
ANSWER_S = 5.0
ASKED_S = 0.05  # how long a control channel answers questions
NO_THREAD = 99_999
LONG = 3000
DEEP = 300

READ = (*client_requests.NUMBERS, *client_requests.TEXTS, *client_requests.LISTS)


class Fuzzer:
    """Makes and sends frames.

    Args:
        gateway: the gateway.
        pauses: the ids of pauses that a client may attach to.
        seed: of everything that is random here.
    """

    def __init__(self, gateway: GatewayUnderTest, pauses: list[str], seed: int) -> None:
        self._gateway = gateway
        self._chance = random.Random(seed)
        self._targets = [*pauses, *pauses, "all", "next", "0", "pid:1", "pid:x@y", "worker:", "worker:abc", ""]
        self._asks = [self._dap, self._dial_in, self._control, *2 * [self._dap_stranger], *2 * [self._dial_stranger]]
        self._asks += 6 * [self._http]  # a connection each
        self.sent: Counter[str] = Counter()  # frames, by kind
        self.connections = 0
        self._goal = 0

    async def run(self, frames: int) -> None:
        """Send at least this many frames."""
        self._goal = sum(self.sent.values()) + frames
        await asyncio.gather(*(self._work() for _ in range(AT_ONCE)))

    async def _work(self) -> None:
        while sum(self.sent.values()) < self._goal:
            ask = self._chance.choice(self._asks)
            with contextlib.suppress(OSError):  # the gateway closes what it does not like
                async with asyncio.timeout(ANSWER_S):
                    await ask()
            self.connections += 1

    # Values

    def value(self, depth: int = 2) -> Any:
        """Return any JSON value, mostly an unusual one."""
        chance = self._chance
        kind = chance.randrange(12)
        if kind < 4:
            return chance.choice([0, 1, -1, 2, 7, 2**31, 2**53, 2**63, 2**80, 1.5, 1e308, float("inf"), float("nan")])
        if kind < 8:
            return self._text()
        if kind == 8:
            return chance.choice([None, True, False])
        if depth == 0 or chance.random() < 0.05:
            return self._deep() if chance.random() < 0.3 else []
        if kind == 9:
            return [self.value(depth - 1) for _ in range(chance.randrange(4))]
        return {self._text()[:20]: self.value(depth - 1) for _ in range(chance.randrange(4))}

    def _text(self) -> str:
        chance = self._chance
        texts = ["", "x", "\0", "\ud800", "é", "\x1b]52;c;eA==\x07", "a\nb INFO audit: attach", "\u202e", "/etc/passwd"]
        return chance.choice([*texts, "y" * chance.randrange(LONG), chr(chance.randrange(0xD7FF)) * 3])

    def _deep(self) -> Any:
        value: Any = 1
        for _ in range(self._chance.randrange(DEEP)):
            value = [value] if self._chance.random() < 0.5 else {"a": value}
        return value

    def _fields(self, names: list[str], good: dict[str, Any]) -> dict[str, Any]:
        """Return some fields, good or any."""
        chosen = self._chance.sample(names, min(len(names), self._chance.randrange(1, 7)))
        return {name: good[name] if name in good and self._chance.random() < 0.5 else self.value() for name in chosen}

    def _record(self, kind: type[Any], good: dict[str, Any]) -> dict[str, Any]:
        """Return some fields of a record, good or any."""
        return self._fields([*kind.__annotations__], good)

    def _frame(self, message: Any, *, may_break: bool = True) -> bytes:
        frame = wire.encode(message) if isinstance(message, dict) else json.dumps(message).encode()
        if not may_break or self._chance.random() > 0.02:
            return frame
        data = bytearray(frame)
        for _ in range(self._chance.randrange(1, 4)):
            at = self._chance.randrange(len(data))
            match self._chance.randrange(4):
                case 0:
                    data[at] = self._chance.randrange(256)
                case 1:
                    del data[at]
                case 2:
                    data[at:at] = self._chance.randbytes(self._chance.randrange(8))
                case _:
                    data += data[: at // 4]
            if not data:
                break
        return bytes(data)

    # DAP

    def _request(self, seq: int) -> bytes:
        commands = [*client_requests.FORWARDED] * 2 + ["initialize", "configurationDone", "attach", "terminate"]
        command = self._chance.choice([*commands, "launch", "restart", "", "pydevdAuthorize", self._text()])
        good = {"threadId": 1, "frameId": 2, "variablesReference": 3, "levels": 1, "expression": "secret", "line": 3,
                "context": "repl", "source": {"path": "/x.py"}, "breakpoints": [{"line": 1}], "name": "secret",
                "value": "41", "text": "sec", "column": 3, "filters": ["uncaught"], "token": "x" * 64}  # fmt: skip
        names = sorted({*READ, *good, "format", "steal", "ranks"})
        arguments: Any = self._fields(names, good)
        resumes = command in client_requests.RESUMING
        if resumes:
            arguments["threadId"] = self._chance.choice([NO_THREAD, *range(2, 50)])  # the others are those of frames
        elif self._chance.random() < 0.05:
            arguments = self.value()
        message: Any = {"seq": seq, "type": "request", "command": command, "arguments": arguments}
        if not resumes and self._chance.random() < 0.05:
            message[self._chance.choice(["seq", "type", "command", "arguments"])] = self.value()
        return self._frame(message, may_break=not resumes)

    async def _dap(self) -> None:
        target = self._chance.choice(self._targets)
        attach = {"token": TOKEN, "target": target, "steal": self._chance.random() < 0.5}
        if self._chance.random() < 0.3:
            attach |= {"ranks": self.value(), "job": self.value(), "pathMappings": self.value()}
        start = [("initialize", {"supportsStartDebuggingRequest": True}), ("attach", attach), ("configurationDone", {})]
        frames = [wire.encode(wire.request(seq, *one)) for seq, one in enumerate(start, 1)]
        frames += [self._request(seq) for seq in range(4, self._chance.randrange(5, CONVERSATION))]
        frames.append(wire.encode(wire.request(9999, "disconnect")))
        await self._converse("DAP", self._gateway.gateway_port, frames)

    async def _dap_stranger(self) -> None:
        frames = [self._request(seq) for seq in range(1, self._chance.randrange(2, STRANGERS))]
        await self._converse("DAP without token", self._gateway.gateway_port, frames)

    async def _converse(self, kind: str, port: int, frames: list[bytes]) -> None:
        """Send frames, in pieces of any size, and read until the gateway closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            reading = asyncio.ensure_future(self._drop(reader))
            data = b"".join(frames)
            self.sent[kind] += len(frames)
            while data:
                size = self._chance.choice([1, 40, 4096, len(data)])
                writer.write(data[:size])
                data = data[size:]
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            await reading
        finally:
            writer.transport.abort()

    @staticmethod
    async def _drop(reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass

    # HTTP

    async def _http(self) -> None:
        chance = self._chance
        method = chance.choice(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
        paths = [
            "/health", "/status", "/pauses", "/processes", "/processes/stacks", "/processes/x", "/pause", "/breaks",
            "/breaks/b1", "/jobs/x", "/stacks", "/",
        ]  # fmt: skip
        path = chance.choice([*paths, "//", "/" + "x" * chance.randrange(LONG), "http://evil/", "/%ff?a=b"])
        body = self._body()
        headers = {"Host": chance.choice(["localhost", "localhost", "localhost", "evil.example", "[::1", ""])}
        if chance.random() < 0.6:
            headers["Authorization"] = f"Bearer {TOKEN}"
        if chance.random() < 0.8:
            headers["Content-Length"] = str(len(body) if chance.random() < 0.9 else chance.choice([-1, 10**9, "x"]))
        else:
            headers["Transfer-Encoding"] = "chunked"
        if chance.random() < 0.1:
            headers[chance.choice(["Origin", "Expect", "X-" + "x" * chance.randrange(LONG)])] = "100-continue"
        head = f"{method} {path} HTTP/1.{chance.choice('11109')}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        frame = bytearray(head.encode("latin-1", "replace") + body)
        if chance.random() < 0.05:
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        await self._converse("HTTP", self._gateway.gateway_port, [bytes(frame)])

    def _body(self) -> bytes:
        chance = self._chance
        one = self._record(
            records.BreakpointSpec, {"where": "x.py:1", "source": "/x.py", "line": 1, "policy": {"every": 2}}
        )
        document: Any = chance.choice(
            [
                {"breaks": self.value(), "job": self.value()},
                {"breaks": [{**one, "job": "none"}], "job": "none"},
                {"only": self.value(), "job": self.value(), "timeout_s": 0.01},
                {"body": self.value()},
                {"target": chance.choice(["pid:1", "worker:x", self.value()]), "timeout_s": self.value()},
                self.value(),
            ]
        )
        data = json.dumps(document).encode()
        if chance.random() < 0.1:
            data = chance.choice([data[: len(data) // 2], b"[" * 20_000, chance.randbytes(50), b""])
        return data

    # Dial-in

    async def _prove(
        self, purpose: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, AsyncIterator[wire.Message]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.dial_port)
        messages, mine = _messages(reader), wire.new_nonce()
        writer.write(wire.encode(wire.event(1, "hello", hello(mine))))
        answer = await anext(messages)
        proof = wire.proof(TOKEN, wire.AS_PROCESS, mine, answer["body"]["nonce"])
        about = {"pid": 4_000_000, "secret": self._chance.choice(["a", "b", "c", [1], 5])}
        if self._chance.random() < 0.2:
            about |= self._record(records.ProcessRecord, about)
        writer.write(wire.encode(wire.event(2, "proof", {"proof": proof, "purpose": purpose, "process": about})))
        self.sent["dial-in"] += 2
        await anext(messages)
        return reader, writer, messages

    async def _dial_in(self) -> None:
        reader, writer, messages = await self._prove("pause")
        try:
            async for message in messages:
                answer: Any = wire.response(1, message, {})
                goes_on = self._chance.random() < 0.98
                if not goes_on:
                    answer[self._chance.choice(["success", "body", "request_seq", "command"])] = self.value()
                writer.write(wire.encode(answer))
                self.sent["dial-in"] += 1
                if not goes_on or message.get("command") == "configurationDone":
                    break
            frames = [self._process_message() for _ in range(self._chance.randrange(CONVERSATION))]
            self.sent["dial-in"] += len(frames)
            writer.write(b"".join(frames))
            writer.write_eof()
            await self._drop(reader)
        finally:
            writer.transport.abort()

    def _process_message(self) -> bytes:
        record = self._record(records.PauseRecord, {"kind": "breakpoint", "file": "/x.py", "line": 3, "function": "f",
                                                 "expires_s": 5.0, "request": "r1", "stood_s": 1.0})  # fmt: skip
        thread = self._chance.choice([1, 2, 3, 3, self.value()])
        bodies: dict[str, Any] = {
            "raydebugPause": {"threadId": thread, "record": record},
            "stopped": {"threadId": thread, "reason": "breakpoint"},
            "raydebugPauseBrokenOff": {"threadId": thread, "reason": self.value()},
            "thread": {"threadId": thread, "reason": "exited"},
            "continued": {"threadId": thread},
            "output": {"category": "stdout", "output": self._text()},
        }
        event = self._chance.choice([*bodies])
        body = bodies[event] if self._chance.random() < 0.9 else self.value()
        message: dict[str, Any] = {"type": "event", "event": event, "seq": 1, "body": body}
        if self._chance.random() < 0.2:
            message = {"type": self._chance.choice(["response", "request"]), "request_seq": self.value(), "seq": 3,
                       "success": True, "command": self._text(), "body": self.value()}  # fmt: skip
        return self._frame(message)

    async def _control(self) -> None:
        reader, writer, messages = await self._prove("control")
        asking = asyncio.ensure_future(self._ask_processes())
        try:
            known = {"breaks": [], "set": []}
            frames = [wire.encode(wire.event(1, "known", known))]
            frames += [self._control_message() for _ in range(self._chance.randrange(CONVERSATION))]
            self.sent["control"] += len(frames)
            writer.write(b"".join(frames))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASKED_S):
                    async for message in messages:
                        if message["type"] == "request":
                            writer.write(self._control_answer(message))
                            self.sent["control"] += 1
            writer.write_eof()
            await self._drop(reader)
            await asking
        finally:
            asking.cancel()
            writer.transport.abort()

    async def _ask_processes(self) -> None:
        path = self._chance.choice(["/stacks", *(f"/processes/{name}" for name in ("describe", "stacks", "frames"))])
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\r\n"
        await self._converse("HTTP", self._gateway.gateway_port, [head.encode() + b"{}"])

    def _control_message(self) -> bytes:
        own = {"where": "x.py:1", "source": "/x.py", "line": 1, "id": "b1", "job": "none", "policy": {"max": 1}}
        bodies: dict[str, Any] = {
            "known": {"breaks": [self._record(records.BreakpointSpec, own)], "set": [self._text()]},
            "break": {"id": self._text(), "state": "set", "message": self._text()},
        }
        event = self._chance.choice([*bodies])
        body = bodies[event] if self._chance.random() < 0.8 else self.value()
        return self._frame({"type": "event", "event": event, "seq": 1, "body": body})

    def _control_answer(self, asked: wire.Message) -> bytes:
        """Return an answer to a question."""
        name = asked["command"]
        good = {"pid": 7, "threads": [{"name": "MainThread", "frames": []}], "known": [], "cause": "x"}
        kind = questions.QUESTIONS[name].answer if name in questions.QUESTIONS else questions.Nothing
        body = self._record(kind, good) if self._chance.random() < 0.9 else self.value()
        answer: Any = {**wire.response(1, asked), "body": body}
        if self._chance.random() < 0.1:
            answer[self._chance.choice(["success", "message", "request_seq", "command"])] = self.value()
        return self._frame(answer)

    async def _dial_stranger(self) -> None:
        mine = wire.new_nonce()
        bodies = [hello(mine), {"nonce": self.value()}, self.value(), {"proof": "0" * 64, "process": self.value()}]
        events = ["hello", "proof", "welcome", self._text()]
        frames = []
        for _ in range(self._chance.randrange(1, 4)):
            event, body = self._chance.choice(events), self._chance.choice(bodies)
            frames.append(self._frame({"seq": 1, "type": "event", "event": event, "body": body}))
        await self._converse("dial-in without token", self._gateway.dial_port, frames)


def hello(nonce: str) -> dict[str, Any]:
    """Return the body of the first message of a process that holds the token."""
    return {"nonce": nonce, "proof": wire.proof(TOKEN, wire.AS_HELLO, nonce)}


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[wire.Message]:
    decoder = wire.Decoder()
    while data := await reader.read(65536):
        for message in decoder.feed(data):
            yield message
    raise ConnectionResetError("the gateway closed the connection")
