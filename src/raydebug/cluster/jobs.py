"""Jobs on a cluster: submit a command, follow its log and its pauses, return its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.place import Place
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.pause.breaks import forget_job, set_breaks
from raydebug.pause.listing import Pause, fetch_pauses
from raydebug.settings.debugger import mode_variables
from raydebug.worker import names

PAUSE_POLL_S = 0.3
STATUS_POLL_S = 0.3
STARTS_AGAIN_S = 1.0
LAST_LINES_S = 0.5
FAILED_WITHOUT_CODE = 1


@dataclass(frozen=True)
class Job:
    """A command to run on a cluster.

    Args:
        command: program and arguments.
        working_dir: where it runs, as it is called there.
        debugger: its debugger word, or None for the cluster's.
        breaks: breakpoints from outside (pause/breaks.py).
        profile: name of the profile laid over it, or None.
        tiny: what is swapped in with the profile: `model`, `data`.
        variables: further environment variables of the user's.
    """

    command: list[str]
    working_dir: str
    debugger: str | None = None
    breaks: list[dict[str, Any]] = field(default_factory=list)
    profile: str | None = None
    tiny: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    submission_id: str
    status: str
    exit_code: int
    message: str
    pauses: int


def job_variables(job: Job, submission_id: str, *, node_gpus: int = 0) -> dict[str, str]:
    """Return the environment variables that the job's driver and workers get.

    Args:
        job: what is to run.
        submission_id: its name in the cluster.
        node_gpus: logical GPUs of each node; 0 where that is not known.
    """
    variables = {**job.variables, names.JOB: submission_id, names.WORKING_DIR: job.working_dir}
    if job.debugger is not None:
        variables |= mode_variables(job.debugger)
    if job.breaks:
        variables[names.BREAKS] = json.dumps(job.breaks)
    if job.profile:
        variables[names.PROFILE] = job.profile
        if node_gpus:
            variables[names.NODE_GPUS] = str(node_gpus)
    if job.tiny:
        variables[names.TINY] = " ".join(job.tiny)
    return variables


def job_entrypoint(job: Job) -> str:
    """Return the shell line that Ray's head runs: the command, in its folder, with nothing of a shell in between."""
    return f"cd {shlex.quote(job.working_dir)} && exec {shlex.join(job.command)}"


def command_of(entrypoint: str) -> str:
    """Return the user's command from a job's shell line; a line that is not ours as it is."""
    return entrypoint.partition(" && exec ")[2] or entrypoint


def exit_code_of(info: dict[str, Any]) -> int:
    """Return the exit code of a job that has ended, as a shell would have it."""
    code = info.get("driver_exit_code")
    if code is None:
        return 0 if info["status"] == "SUCCEEDED" else FAILED_WITHOUT_CODE
    return 128 - int(code) if code < 0 else int(code)  # ended by a signal: the shell's way to say it


def find_program(command: list[str], working_dir: Path, place: Place) -> None:
    """Check that a command's program exists where the job will look for it.

    Raises:
        RaydebugError: it does not.
    """
    program = command[0]
    if not place.has_program(program, working_dir):
        looked = f"no file {program} in {working_dir}" if "/" in program else f"no '{program}' on the cluster's PATH"
        raise RaydebugError(
            f"the command '{program}' was not found",
            cause=looked,
            fix="check its name; everything after `--` is the command: raydebug run -- python train.py",
            code="run.command-not-found",
            exit_code=Exit.USAGE,
        )


def submit(cluster: Cluster, job: Job) -> str:
    """Start a job and return its submission id."""
    submission_id = f"raydebug-{time.strftime('%H%M%S')}-{secrets.token_hex(3)}"
    # The gateway gives the ids by which they are listed and removed; the processes have them from their first line on.
    job = replace(job, breaks=set_breaks(cluster, job.breaks, job=submission_id))
    variables = job_variables(job, submission_id, node_gpus=cluster.gpus)
    return Dashboard(cluster).submit_job(job_entrypoint(job), submission_id=submission_id, env=variables)


class Follower:
    """Follows one job until it ends.

    Args:
        cluster: where it runs.
        submission_id: which job.
        on_log: told each piece of the log.
        on_pause: told each new pause of the job.
        on_pauses: told all pauses of the job, each time that they are asked for.
    """

    def __init__(
        self,
        cluster: Cluster,
        submission_id: str,
        *,
        on_log: Callable[[str], None],
        on_pause: Callable[[Pause], None],
        on_pauses: Callable[[list[Pause]], None] = lambda pauses: None,
    ) -> None:
        self._cluster = cluster
        self._id = submission_id
        self._on_log = on_log
        self._on_pause = on_pause
        self._on_pauses = on_pauses
        self._seen: set[str] = set()
        self._written = 0  # characters of the log that were handed on
        self._dashboard = Dashboard(cluster)

    async def follow(self) -> Outcome:
        """Hand on log and pauses until the job has ended; cancel it to stop following, the job goes on."""
        watching = asyncio.ensure_future(self._watch_pauses())
        reading = asyncio.ensure_future(self._read_log())
        try:
            info = await self._wait_for_end()
            # Ray ends the stream some seconds after the job: what it has not brought by now is asked for.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading), timeout=LAST_LINES_S)
            await self._read_rest(reading)
            with contextlib.suppress(RaydebugError):
                await asyncio.to_thread(forget_job, self._cluster, self._id)
        finally:
            for task in (watching, reading):
                task.cancel()
            await asyncio.gather(watching, reading, return_exceptions=True)
        return Outcome(self._id, info["status"], exit_code_of(info), info.get("message") or "", len(self._seen))

    async def _read_rest(self, reading: asyncio.Future[None]) -> None:
        if reading.done():
            return
        reading.cancel()
        with contextlib.suppress(RaydebugError, asyncio.CancelledError):
            text = await asyncio.to_thread(self._dashboard.job_logs, self._id)
            self._write(text, self._written)

    async def _wait_for_end(self) -> dict[str, Any]:
        failures = 0
        while True:
            try:
                info = await asyncio.to_thread(self._dashboard.job, self._id)
                failures = 0
                if info["status"] in ENDED:
                    return info
            except RaydebugError:
                failures += 1
                if failures > 10:
                    raise
            await asyncio.sleep(STATUS_POLL_S)

    async def _read_log(self) -> None:
        """Stream the log; a broken stream is taken up again where it broke."""
        while True:
            skip = self._written
            try:
                async for piece in self._dashboard.follow_logs(self._id):
                    skip = self._write(piece, skip)
                return
            except asyncio.CancelledError:
                raise
            except Exception:  # noqa: BLE001 - websockets' and sockets' many ways to break; the status loop knows better
                await asyncio.sleep(STARTS_AGAIN_S)

    def _write(self, piece: str, skip: int) -> int:
        """Hand on a piece without what was handed on before; return how much of that is still to be skipped."""
        fresh = piece[skip:]
        if fresh:
            self._written += len(fresh)
            self._on_log(fresh)
        return max(0, skip - len(piece))

    async def _watch_pauses(self) -> None:
        while True:
            with contextlib.suppress(RaydebugError):
                listed = await asyncio.to_thread(fetch_pauses, self._cluster)
                mine = [pause for pause in listed if pause.get("job") in (self._id, None)]
                for pause in mine:
                    if pause["id"] not in self._seen:
                        self._seen.add(pause["id"])
                        self._on_pause(pause)
                self._on_pauses(mine)
            await asyncio.sleep(PAUSE_POLL_S)
