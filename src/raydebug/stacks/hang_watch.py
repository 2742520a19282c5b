"""`raydebug run --hang-after`: reports a job that makes no progress, and writes its stacks to the run folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from raydebug import render
from raydebug.client.gateway_client import request
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError
from raydebug.protocol import messages
from raydebug.runs.folder import STACKS
from raydebug.settings.files import atomic_write
from raydebug.stacks.collect import fetch_tasks, take
from raydebug.stacks.movement import TICK_S
from raydebug.stacks.progress import Progress
from raydebug.stacks.slow_watch import SlowWatch
from raydebug.stacks.training_words import describe, fetch_words
from raydebug.stacks.verdict import Words, as_document
from raydebug.stacks.wait_kinds import KINDS, Verdict, wait_of, who

if TYPE_CHECKING:
    from raydebug.jobs.recorder import Recorder
    from raydebug.protocol.listings import ListedStacks

DEFAULT_S, DEFAULT_STEPS = 600.0, 5  # of a recognised trainer: the larger of this and so many of its median steps
PAUSE_TIMEOUT_S = 4.0
Action = Literal["report", "pause", "stop"]


def longest_call(sample: Sequence[ListedStacks], words: Words) -> str | None:
    """Return the call that has gone on for longest of those that the training waits for, in words; None without one.

    In a training these are the functions of rewards and the tools of samples: its other processes are always in a call.
    In other programs, processes that wait for others have none.
    """
    names = {process["instance"]: who(process) for process in sample}
    calls: list[tuple[float, str]] = []
    for instance, own in words.items():
        work: list[tuple[Mapping[str, Any], str]] = []
        for reward in own.get("rewards", []):
            of = f" for {reward['data_source']!r}" if "data_source" in reward else ""
            work.append((reward, f"{reward['function']}{of}"))
        tools = [sample for sample in own.get("samples", []) if "tool" in sample]
        work += [(sample, f"tool {sample['tool']} of sample {sample['uid']}") for sample in tools]
        for facts, what in work:
            url = f", which asks {facts['url']}" if facts.get("url") else ""
            calls.append((facts.get("age_s", 0.0), f"{names.get(instance, 'another process')} in {what}{url}"))
    if not words:
        for process in sample:
            for call in [] if KINDS[wait_of(process).kind].of_peer else process.get("calls", []):
                where = f"{call['function']} ({call['file']}:{call['line']})"
                calls.append((call["age_s"], f"{who(process)} in {where}"))
    longest = max(calls, default=None)
    return None if longest is None else f"longest call: {longest[1]}, for {longest[0]:.0f} s or more"


class HangWatch:
    """Watches one job.

    Args:
        after_s: the limit; None for the default of a recognised trainer.
        by_steps: a trainer is recognised: its steps are the progress, not its log.
    """

    def __init__(self, after_s: float | None, action: Action, *, by_steps: bool) -> None:
        self._after_s, self._action, self._by_steps = after_s, action, by_steps

    async def watch(self, cluster: Cluster, job: str, recorder: Recorder) -> str:
        """Watch the job and its ranks until this is cancelled; if it hangs and has to be stopped, return why."""
        slow = asyncio.ensure_future(SlowWatch().watch(cluster, job, recorder))
        try:
            return await self._watch(cluster, job, recorder)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the user's run
            render.say(f"--hang-after has failed, the job continues: {type(error).__name__}: {error}")
            return await asyncio.Future()
        finally:
            slow.cancel()

    async def _watch(self, cluster: Cluster, job: str, recorder: Recorder) -> str:
        progress = Progress(self._limit_s(recorder), time.monotonic(), by_steps=self._by_steps)
        while True:
            await asyncio.sleep(TICK_S)
            progress.after_s = self._limit_s(recorder)
            seen = (recorder.phases_ended, 0 if self._by_steps else recorder.log_chars)
            progress.note(seen, time.monotonic(), paused=recorder.is_paused)
            if not progress.wants_sample(time.monotonic()):
                continue
            with contextlib.suppress(RaydebugError):  # without a gateway nothing is known
                sample = await asyncio.to_thread(take, cluster, job, say=lambda _: None)
                words = await asyncio.to_thread(fetch_words, cluster, job, sample)
                if progress.take(sample, words, time.monotonic()):
                    verdict = await asyncio.to_thread(self._report, cluster, job, recorder, progress, words)
                    if self._action == "stop":
                        return verdict["text"]

    def _limit_s(self, recorder: Recorder) -> float:
        if self._after_s is not None:
            return self._after_s
        steps = recorder.step_seconds
        return max(DEFAULT_S, DEFAULT_STEPS * statistics.median(steps)) if steps else DEFAULT_S

    def _report(self, cluster: Cluster, job: str, recorder: Recorder, progress: Progress, words: Words) -> Verdict:
        """Write stacks and verdict; with the action `pause`, pause the process that the verdict names."""
        samples, stalled_s = progress.samples, time.monotonic() - progress.since
        tasks = fetch_tasks(cluster, samples[-1])
        document = as_document(samples, tasks, words)
        verdict: Verdict = document["verdict"]
        what = "no step has ended" if self._by_steps else "no call has returned and nothing was logged"
        lines = [f"job {job} hangs: {what} for {stalled_s:.0f} s",
                 f"verdict ({verdict['certainty']}): {verdict['text']}"]  # fmt: skip
        if (training := describe(words, samples[-1])) is not None:
            lines.append(f"training: {training}")
        if (call := longest_call(samples[-1], words)) is not None:
            lines.append(call)
        if verdict["next"]:
            lines.append(render.suggested(f"next: {verdict['next']}"))
        if recorder.folder is not None:
            with contextlib.suppress(OSError):  # a full disk
                atomic_write(recorder.folder / STACKS, json.dumps(document))
                path = str(recorder.folder / STACKS)
                lines.append(f"stacks: {render.command('raydebug', 'stacks', '--from', path)}")
        if self._action == "pause" and verdict["instances"]:
            lines.append(_pause(cluster, verdict["instances"][0], samples[-1]))
        for line in lines:
            render.say(render.visible(line))
        recorder.take_hang(lines, why=verdict["text"], fix=render.suggested(verdict["next"] or ""))
        return verdict


def _pause(cluster: Cluster, instance: str, sample: Sequence[ListedStacks]) -> str:
    pid = next(process["pid"] for process in sample if process["instance"] == instance)
    try:
        body = {"target": f"{messages.INSTANCE}{instance}", "timeout_s": PAUSE_TIMEOUT_S}
        pause = request(cluster, "POST", "/pause", body)["pause"]
    except RaydebugError as error:
        return f"pid {pid} cannot be paused: {error.cause}"
    return render.suggested(f"pid {pid} is paused: {render.command('raydebug', 'attach', pause['id'])}")
