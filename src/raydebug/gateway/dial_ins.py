"""The port that processes dial: proves each of them, then holds its session."""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Any

from raydebug.dap import wire
from raydebug.dap.keepalive import notice_loss
from raydebug.dap.session import ConnectionLost, RequestFailed
from raydebug.gateway.control import Control
from raydebug.gateway.pauses import Pauses
from raydebug.gateway.processes import Process
from raydebug.worker import handshake

log = logging.getLogger("raydebug.gateway")

PROOF_TIMEOUT_S = 5.0
MAX_UNPROVEN_BYTES = 16 * 1024
MAX_UNPROVEN = 64  # at one time; further ones wait their turn, as every process of a job may dial in one moment
CONTROL = "control"  # worker/dial.py
# A process whose node is out of reach is given up once it has not acknowledged what it was asked for this long, or was
# silent for about 20 s. A container that stands still (docker pause) and a busy process acknowledge: their kernel does.
UNACKNOWLEDGED_S = 6.0


class DialIns:
    """The port that processes dial: proves each of them, then holds its session."""

    def __init__(self, token: str, pauses: Pauses, control: Control) -> None:
        self._token = token
        self._pauses = pauses
        self._control = control
        self._turns = asyncio.Semaphore(MAX_UNPROVEN)
        self._by_instance: weakref.WeakValueDictionary[str, Process] = weakref.WeakValueDictionary()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one connection; whoever cannot prove to hold the token learns nothing and leaves no trace."""
        peer = writer.get_extra_info("peername")
        try:
            async with asyncio.timeout(PROOF_TIMEOUT_S), self._turns:
                purpose, about = await self._prove(reader, writer)
            notice_loss(reader, writer, unacknowledged_s=UNACKNOWLEDGED_S)
            if purpose == CONTROL:
                await self._control.serve(about, reader, writer)
                return
            process = Process(about, self._pauses)
            await self._supersede(process)
            await process.hold(reader, writer)
            log.info("process dialled in: %s", process.title)
        except (OSError, TimeoutError, wire.WireError, RequestFailed, ConnectionLost, ValueError) as error:
            log.warning("dial-in from %s refused: %s", peer, error or type(error).__name__)
            writer.close()

    async def _supersede(self, process: Process) -> None:
        earlier = self._by_instance.get(process.instance)
        if process.instance:
            self._by_instance[process.instance] = process
        if earlier is not None and not earlier.ended:
            await earlier.superseded()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, dict[str, Any]]:
        decoder = wire.Decoder(max_header_bytes=256, max_body_bytes=MAX_UNPROVEN_BYTES)
        hello = await _receive(reader, decoder, "hello")
        theirs, mine = str(hello.get("nonce", "")), handshake.new_nonce()
        if len(theirs) < handshake.NONCE_BYTES:
            raise ConnectionRefusedError("no nonce")
        proof = handshake.gateway_proof(self._token, theirs, mine)
        writer.write(wire.encode(wire.event(1, "proof", {"nonce": mine, "proof": proof})))
        answer = await _receive(reader, decoder, "proof")
        if not handshake.same(handshake.process_proof(self._token, theirs, mine), answer.get("proof")):
            writer.write(wire.encode(wire.event(2, "refused", {"reason": "wrong token"})))
            raise ConnectionRefusedError("wrong token")
        writer.write(wire.encode(wire.event(2, "welcome", {})))
        return str(answer.get("purpose")), dict(answer.get("process") or {})


async def _receive(reader: asyncio.StreamReader, decoder: wire.Decoder, name: str) -> dict[str, Any]:
    while True:
        data = await reader.read(4096)
        if not data:
            raise ConnectionResetError("closed before it proved itself")
        for message in decoder.feed(data):  # the process sends its next message only after our answer
            if message.get("event") != name:
                raise ConnectionRefusedError(f"'{message.get('event')}' instead of '{name}'")
            return dict(message.get("body") or {})
