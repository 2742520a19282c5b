"""The snapshots that processes send: the gateway keeps them in memory, without parsing them, for `run` to fetch."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from typing import Any

from raydebug.gateway.board import Board
from raydebug.gateway.channel import ControlChannel, NoAnswer
from raydebug.gateway.client_requests import Refused
from raydebug.gateway.control import Control
from raydebug.gateway.kept import KeptPerJob, Living, size_of
from raydebug.gateway.pause_requests import choose
from raydebug.protocol import messages, records, wire
from raydebug.protocol.questions import SAVE_PAUSE, SavePauseBody
from raydebug.protocol.records import BadRecord
from raydebug.protocol.snapshot import IS_ID, MAX_FILE_BYTES, MAX_OF_JOB, SnapshotMessage, SnapshotSummary

log = logging.getLogger("raydebug.gateway")

MAX_KEPT_BYTES = 64 * 1024 * 1024  # of all jobs
MAX_OF_PAUSES = 100  # of a job: the last ones that clients have asked for
READ_BYTES = 64 * 1024
TRANSFER_S = 30.0
PAUSE_S = 4.0  # a client waits for 5 s
_Key = tuple[str, str]  # job and id


class Snapshots:
    """All snapshots, oldest first."""

    def __init__(self, living: Living = tuple) -> None:
        self._kept = KeptPerJob[tuple[SnapshotSummary, bytes]](MAX_KEPT_BYTES, MAX_OF_JOB + MAX_OF_PAUSES, living)
        self._expected: dict[_Key, SnapshotSummary] = {}  # accepted, not received yet
        self._requested = set[_Key]()  # of pauses

    def of_job(self, job: str) -> list[SnapshotSummary]:
        """Return the summaries of a job's snapshots, oldest first."""
        return [summary for summary, _ in self._kept.of_job(job)]

    def file_of(self, job: str, snapshot_id: str) -> bytes | None:
        """Return the file of a snapshot."""
        return next((file for summary, file in self._kept.of_job(job) if summary.get("id") == snapshot_id), None)

    async def receive(self, about: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive one snapshot from an authenticated process.

        Raises:
            BadRecord: a message is not as protocol/ describes it.
        """
        job = records.read(about, records.ProcessRecord, "the process").get("job") or ""
        decoder = wire.Decoder(max_body_bytes=2 * MAX_FILE_BYTES)
        key: _Key | None = None
        try:
            async with asyncio.timeout(TRANSFER_S):
                while data := await reader.read(READ_BYTES):
                    for message in decoder.feed(data):
                        if message.get("event") == messages.OFFER and key is None:
                            key = self._expect(job, message.get("body"))
                            writer.write(wire.encode(wire.event(3, messages.WANTED, {"wanted": key is not None})))
                        elif message.get("event") == messages.SNAPSHOT and key is not None:
                            self._keep(key, message.get("body"))
                            writer.write(wire.encode(wire.event(4, messages.KEPT)))
        finally:
            if key is not None:
                self._expected.pop(key, None)
            writer.close()

    def _expect(self, job: str, offered: Any) -> _Key | None:
        """Return the key under which a snapshot will be kept; None if it is not wanted."""
        summary = records.read(offered, SnapshotSummary, "the summary of a snapshot")
        key = (job, summary.get("id", ""))
        known = [*self.of_job(job), *(one for (of, _), one in self._expected.items() if of == job)]
        is_new = all(
            (summary_of_job.get("same"), summary_of_job.get("rank")) != (summary.get("same"), summary.get("rank"))
            for summary_of_job in known if summary_of_job.get("kind") == "crash"
        )  # fmt: skip
        is_free = IS_ID.fullmatch(key[1]) and key[1] not in [one.get("id") for one in known]
        is_pause = key in self._requested
        is_crash = summary.get("kind") != "pause" and is_new and len(known) < MAX_OF_JOB
        if not job or not is_free or not (is_pause or is_crash):
            return None
        summary["job"], summary["kind"] = job, "pause" if is_pause else "crash"
        self._expected[key] = summary
        return key

    def _keep(self, key: _Key, sent: Any) -> None:
        if key not in self._expected:
            return
        message = records.read(sent, SnapshotMessage, "the snapshot")
        try:
            file = base64.b64decode(message.get("data", ""), validate=True)
        except ValueError as error:
            raise BadRecord("the snapshot is not in base64") from error
        summary: SnapshotSummary = {**self._expected.pop(key), "message": message.get("message", "")}
        self._kept.add(key[0], (summary, file), len(file) + size_of(summary))
        log.info("snapshot %s of job %s: %d bytes", key[1], key[0], len(file))

    async def save_pause(self, pause_id: str, board: Board, control: Control) -> SnapshotSummary:
        """Request a snapshot of a pause from its process, and return its summary.

        Args:
            pause_id: which; or a process as `choose` takes it (pause_requests.py), whose active thread is saved.
            board: has the pauses.
            control: has the processes.

        Raises:
            Refused: there is no such pause or process, or it cannot make one.
        """
        body, name = SavePauseBody(), "process"
        if pause_id.startswith(messages.PID):
            channel: ControlChannel | None = choose(pause_id, [*control.channels])
        else:
            pause = board.get(pause_id)
            if pause is None:
                raise Refused("pause.gone", f"there is no pause {pause_id}", "see `raydebug paused`")
            name, body["threadId"] = f"pause-{pause_id}", pause.thread_id
            channel = control.channel_of(pause.process.instance)
        job = channel.about.get("job") if channel is not None else None
        if channel is None or not job:
            cause = "its process has no control channel: it is in no job of `raydebug run`, or has not imported ray"
            raise Refused("snapshot.no-channel", cause, "look at it with `raydebug attach`")
        key = (job, f"{name}-{secrets.token_hex(2)}")
        body["id"] = key[1]
        self._requested.add(key)
        try:
            answer = await channel.ask(SAVE_PAUSE, body, PAUSE_S)
        finally:
            self._requested.remove(key)
        if (made := next((one for one in self.of_job(job) if one.get("id") == key[1]), None)) is not None:
            return made
        if answer == NoAnswer(messages.SILENT):
            raise Refused("snapshot.no-answer", f"its process did not answer within {PAUSE_S:g} s", "try it again")
        why = answer.cause or answer.state if isinstance(answer, NoAnswer) else "the gateway has not received it"
        raise Refused("snapshot.failed", f"its process could not make one: {why}", "look at it with `raydebug attach`")
