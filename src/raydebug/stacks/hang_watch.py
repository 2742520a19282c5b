"""`raydebug run --hang-after`: detects that a job makes no progress, and writes its stacks to the run folder.

Progress is a training step, a phase that ended, a stack that moves, or a pause of raydebug. New log output counts only
if no trainer is recognised, because watchdogs write lines while a job hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from raydebug import render
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import RaydebugError
from raydebug.gateway.gateway_client import request
from raydebug.jobs.run_folder import STACKS
from raydebug.protocol import messages
from raydebug.settings.files import atomic_write
from raydebug.stacks.collect import as_document, fetch_tasks, take
from raydebug.stacks.verdict import judge
from raydebug.stacks.waits import Verdict, VerdictKind

if TYPE_CHECKING:
    from raydebug.jobs.recorder import Recorder
    from raydebug.protocol.listings import ListedStacks

DEFAULT_S = 600.0  # of a recognised trainer
TICK_S = 1.0
SAMPLES_PER_LIMIT, APART_AT_LEAST_S = 10, 5.0
MAX_SAMPLES = 12
PAUSE_TIMEOUT_S = 4.0
NO_HANG: tuple[VerdictKind, ...] = ("moving", "paused", "none")
Action = Literal["report", "pause", "stop"]


class Progress:
    """Decides when a job hangs. Pure: the caller passes the time."""

    def __init__(self, after_s: float, now: float) -> None:
        self._after_s = after_s
        self._apart_s = max(APART_AT_LEAST_S, after_s / SAMPLES_PER_LIMIT)
        self._since = self._sampled = now
        self._seen: object = None
        self._samples: list[Sequence[ListedStacks]] = []
        self._reported = False

    def note(self, seen: object, now: float, *, paused: bool) -> None:
        """Note the state of the job: a change since the last call is progress."""
        if paused or seen != self._seen:
            self._seen = seen
            self._note_progress(now)

    def wants_sample(self, now: float) -> bool:
        """Return whether to take stacks now: rarely, and not in the first half of the limit."""
        return now - self._since >= self._after_s / 2 and (not self._samples or now - self._sampled >= self._apart_s)

    def take(self, sample: Sequence[ListedStacks], now: float) -> bool:
        """Take stacks of the job; return whether it hangs, once until it makes progress again."""
        self._sampled = now
        self._samples = [*self._samples, sample][-MAX_SAMPLES:]
        if judge(self._samples)["kind"] in NO_HANG:
            self._note_progress(now)
        hangs = len(self._samples) > 1 and now - self._since >= self._after_s and not self._reported
        self._reported = self._reported or hangs
        return hangs

    def _note_progress(self, now: float) -> None:
        self._since, self._samples, self._reported = now, [], False


class HangWatch:
    """Watches one job.

    Args:
        by_steps: a trainer is recognised, so log output alone is no progress.
    """

    def __init__(self, after_s: float, action: Action, *, by_steps: bool) -> None:
        self._after_s, self._action, self._by_steps = after_s, action, by_steps

    async def watch(self, cluster: Cluster, job: str, recorder: Recorder) -> str:
        """Watch the job until this is cancelled; if it hangs and has to be stopped, return why."""
        try:
            return await self._watch(cluster, job, recorder)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the user's run
            render.say(f"--hang-after has failed, the job continues: {type(error).__name__}: {error}")
            return await asyncio.Future()

    async def _watch(self, cluster: Cluster, job: str, recorder: Recorder) -> str:
        progress = Progress(self._after_s, time.monotonic())
        while True:
            await asyncio.sleep(TICK_S)
            seen = (recorder.phases_ended, 0 if self._by_steps else recorder.log_chars)
            progress.note(seen, time.monotonic(), paused=recorder.is_paused)
            if not progress.wants_sample(time.monotonic()):
                continue
            with contextlib.suppress(RaydebugError):  # without a gateway nothing is known
                sample = await asyncio.to_thread(take, cluster, job, say=lambda _: None)
                if progress.take(sample, time.monotonic()):
                    verdict = await asyncio.to_thread(self._report, cluster, job, recorder, sample)
                    if self._action == "stop":
                        return verdict["text"]

    def _report(self, cluster: Cluster, job: str, recorder: Recorder, sample: list[ListedStacks]) -> Verdict:
        """Write stacks and verdict; with the action `pause`, pause the process that the verdict names."""
        tasks = fetch_tasks(cluster, sample)
        document = as_document([sample], tasks)
        verdict: Verdict = document["verdict"]
        lines = [f"job {job} hangs: no step and no moving stack for {self._after_s:g} s",
                 f"verdict ({verdict['certainty']}): {verdict['text']}"]  # fmt: skip
        if verdict["next"]:
            lines.append(f"next: {verdict['next']}{name_option(cluster.name)}")
        if recorder.folder is not None:
            with contextlib.suppress(OSError):  # a full disk
                atomic_write(recorder.folder / STACKS, json.dumps(document))
                path = str(recorder.folder / STACKS)
                lines.append(f"stacks: {render.command('raydebug', 'stacks', '--from', path)}")
        if self._action == "pause" and verdict["pids"]:
            lines.append(_pause(cluster, verdict["pids"][0], sample))
        for line in lines:
            render.say(render.visible(line))
        recorder.take_hang(lines, why=verdict["text"], fix=verdict["next"] or "")
        return verdict


def _pause(cluster: Cluster, pid: int, sample: Sequence[ListedStacks]) -> str:
    ip = next((one["ip"] for one in sample if one["pid"] == pid), "")
    try:
        body = {"target": f"{messages.PID}{pid}@{ip}", "timeout_s": PAUSE_TIMEOUT_S}
        pause = request(cluster, "POST", "/pause", body)["pause"]
    except RaydebugError as error:
        return f"pid {pid} cannot be paused: {error.cause}"
    return f"pid {pid} is paused: {render.command('raydebug', 'attach', pause['id'])}{name_option(cluster.name)}"
