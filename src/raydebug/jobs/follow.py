"""Follow a job until it ends, in the terminal: its log, its pauses, its resource requests, Ctrl-C, its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from raydebug import render
from raydebug.cluster.dashboard import ENDED, Dashboard, JobInfo
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import Exit, RaydebugError
from raydebug.gateway.gateway_client import fetch_pauses, forget_job, name_owner, name_place, name_reason
from raydebug.jobs import resource_requests
from raydebug.jobs.recorder import Recorder
from raydebug.jobs.submit import hide_command, words_of
from raydebug.process import shell_code
from raydebug.protocol.listings import ListedPause
from raydebug.protocol.tripwires import history_lines

PAUSE_POLL_S = 0.3
STATUS_POLL_S = 0.3
RETRY_S = 1.0
LAST_LINES_S = 0.5
STOP_TIMEOUT_S = 20.0
FAILED_WITHOUT_CODE = 1
LEAVING = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = "INTERRUPTED"  # the status in a run's record when nobody has followed the job to its end
DEMAND_POLL_S = 2.5
DEMAND_LOOKS = 3  # polls in a row: by then a program would have withdrawn its request, or a node would have started


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    submission_id: str
    status: str
    exit_code: int
    message: str
    pauses: int


def exit_code_of(info: JobInfo) -> int:
    """Return the exit code of a job that has ended, as a shell would report it."""
    code = info.get("driver_exit_code")
    if code is None:
        return 0 if info["status"] == "SUCCEEDED" else FAILED_WITHOUT_CODE
    return shell_code(code)


class Follower:
    """Follows one job until it ends.

    Args:
        on_log: called with each piece of the log.
        on_pause: called with each new pause of the job.
        on_pauses: called with all pauses of the job, at each poll.
    """

    def __init__(
        self,
        cluster: Cluster,
        submission_id: str,
        *,
        on_log: Callable[[str], None],
        on_pause: Callable[[ListedPause], None],
        on_pauses: Callable[[list[ListedPause]], None] = lambda pauses: None,
    ) -> None:
        self._cluster = cluster
        self._id = submission_id
        self._on_log = on_log
        self._on_pause = on_pause
        self._on_pauses = on_pauses
        self._seen: set[str] = set()
        self._written = 0  # characters of the log that were passed on
        self._paused = False  # whether a task of the job is paused now
        self._dashboard = Dashboard(cluster)

    async def follow(self) -> Outcome:
        """Pass on log and pauses until the job has ended; if this is cancelled, the job continues.

        Raises:
            Unsatisfiable: the job waits for resources that the cluster can never give. The job still runs.
        """
        watching = asyncio.ensure_future(self._watch_pauses())
        reading = asyncio.ensure_future(self._read_log())
        demanding = asyncio.ensure_future(self._watch_demands())
        ending = asyncio.ensure_future(self._wait_for_end())
        try:
            await asyncio.wait({ending, demanding}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                raise demanding.result()
            info = ending.result()
            # Ray ends the stream some seconds after the job: the rest is requested.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading), timeout=LAST_LINES_S)
            await self._read_rest(reading)
            with contextlib.suppress(RaydebugError):
                await asyncio.to_thread(forget_job, self._cluster, self._id)
        finally:
            for task in (watching, reading, demanding, ending):
                task.cancel()
            await asyncio.gather(watching, reading, demanding, ending, return_exceptions=True)
        return Outcome(self._id, info["status"], exit_code_of(info), info.get("message") or "", len(self._seen))

    async def _read_rest(self, reading: asyncio.Future[None]) -> None:
        """Ask for the whole log and write what the stream has not brought.

        Ray's stream may end without the last lines (seen with ray 2.41.0, 1 of 3 runs of a job that prints as it ends).
        """
        reading.cancel()
        with contextlib.suppress(RaydebugError, asyncio.CancelledError):
            text = await asyncio.to_thread(self._dashboard.job_logs, self._id)
            self._write(text, self._written)

    async def _wait_for_end(self) -> JobInfo:
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

    async def _watch_demands(self) -> resource_requests.Unsatisfiable:
        """Return the error for the first request of the job that can never be satisfied.

        A job with a paused task is left alone: it is being debugged.
        """
        seen: list[tuple[str, str] | None] = []
        while True:
            await asyncio.sleep(DEMAND_POLL_S)
            found = None
            with contextlib.suppress(RaydebugError):
                job_id = (await asyncio.to_thread(self._dashboard.job, self._id)).get("job_id")
                if job_id and not self._paused:
                    found = await asyncio.to_thread(resource_requests.find_unsatisfiable, self._dashboard, job_id)
            seen = [*seen[1 - DEMAND_LOOKS :], found]
            if found is not None and seen == [found] * DEMAND_LOOKS:
                return resource_requests.unsatisfiable(self._cluster, *found)

    async def _read_log(self) -> None:
        """Stream the log; reconnect a broken stream and continue where it broke."""
        while True:
            skip = self._written
            try:
                async for piece in self._dashboard.follow_logs(self._id):
                    skip = self._write(piece, skip)
                return
            except asyncio.CancelledError:
                raise
            except Exception:  # noqa: BLE001 - websockets' and sockets' many ways to break; the status loop knows better
                await asyncio.sleep(RETRY_S)

    def _write(self, piece: str, skip: int) -> int:
        """Pass on the new part of a piece; return how many characters are still to be skipped."""
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
                self._paused = bool(mine)
                self._on_pauses(mine)
            await asyncio.sleep(PAUSE_POLL_S)


Watch = Callable[[Cluster, str, Recorder], Awaitable[str]]
"""Watches a job while it is followed; returns why it has to be stopped."""
Explanation: TypeAlias = tuple[list[str], dict[str, str] | None, list[dict[str, str]]]
"""Why a job failed: lines for the user, and the first error and findings for the record of the run."""
Explain = Callable[[Dashboard, str], Explanation]


def follow_job(cluster: Cluster, submission_id: str, explain: Explain, watch: Watch | None = None) -> int:
    """Show a job's log and pauses until it ends, and return its exit code.

    Ctrl-C asks whether to stop the job; SIGTERM and SIGHUP leave it running, and 128 plus their number is returned. A
    job is followed to its end without standard output too.
    """
    return asyncio.run(_follow(cluster, submission_id, explain, watch))


async def _follow(cluster: Cluster, submission_id: str, explain: Explain, watch: Watch | None) -> int:
    colour = render.colour_wanted()
    dashboard = Dashboard(cluster)
    about = await asyncio.to_thread(dashboard.job, submission_id)
    recorder = Recorder(cluster, about, words_of(about["entrypoint"]))

    def show(piece: str) -> None:
        piece = hide_command(piece, about["entrypoint"])
        try:
            render.out_raw(render.visible_log(piece, colour=colour))
        except render.OutputLost as lost:  # said once: what follows is dropped
            render.say(f"note: standard output is lost ({lost}); job {submission_id} is followed without it")
        for finding in recorder.take_log(piece):
            render.say(render.visible(f"{finding.severity}: {finding.what}  [{finding.code}]", keep=""))
            render.say(render.visible(f"next: {finding.fix}", keep=""))

    follower = Follower(
        cluster,
        submission_id,
        on_log=show,
        on_pause=lambda pause: _announce(pause, cluster.name),
        on_pauses=recorder.take_pauses,
    )
    sampling = asyncio.ensure_future(recorder.watch_memory(dashboard))
    watched = asyncio.Future[str]() if watch is None else asyncio.ensure_future(watch(cluster, submission_id, recorder))
    try:
        return await _until_end(cluster, submission_id, follower, recorder, watched, explain)
    finally:
        sampling.cancel()
        watched.cancel()
        if not recorder.has_ended:
            recorder.end(INTERRUPTED, Exit.INTERRUPTED, None)


async def _until_end(
    cluster: Cluster,
    submission_id: str,
    follower: Follower,
    recorder: Recorder,
    watched: asyncio.Future[str],
    explain: Explain,
) -> int:
    signals = _take_signals()
    following = asyncio.ensure_future(follower.follow())
    waiting = asyncio.ensure_future(signals.get())
    first_of: set[asyncio.Future[Any]] = {following, waiting, watched}
    await asyncio.wait(first_of, return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        waiting.cancel()
        try:
            outcome = following.result()
        except resource_requests.Unsatisfiable as refusal:
            await asyncio.to_thread(_give_up, cluster, submission_id, recorder, refusal)
            raise
        for one in LEAVING:  # to explain a failure may take long: from here on they end this process
            asyncio.get_running_loop().remove_signal_handler(one)
        return await asyncio.to_thread(_say_outcome, cluster, outcome, recorder, explain)
    if watched.done():
        waiting.cancel()
        await _stop(cluster, submission_id, following, signals)
        first = {"kind": "hang", "text": watched.result(), "who": "run --hang-after", "place": ""}
        await asyncio.to_thread(recorder.end, "STOPPED", Exit.TIMEOUT, first)
        return Exit.TIMEOUT
    received = waiting.result()
    if received == signal.SIGINT and await _stop_wanted(signals):
        await _stop(cluster, submission_id, following, signals)
        return Exit.INTERRUPTED
    await _leave(following)
    render.say(_what_becomes_of(cluster, submission_id))
    return 128 + received


def _what_becomes_of(cluster: Cluster, submission_id: str) -> str:
    """Return what happens to a job that is followed no longer: a cluster that a `run` has started ends with it."""
    if cluster.owner:
        return f"job {submission_id} ends with cluster '{cluster.name}', unless another `run` uses that cluster"
    return f"job {submission_id} continues"


def _take_signals() -> asyncio.Queue[signal.Signals]:
    """Return a queue of Ctrl-C and of the signals that ask to leave, which then end nothing by themselves."""
    signals = asyncio.Queue[signal.Signals]()
    for one in (signal.SIGINT, *LEAVING):
        if one == signal.SIGINT or signal.getsignal(one) != signal.SIG_IGN:  # nohup ignores SIGHUP
            asyncio.get_running_loop().add_signal_handler(one, signals.put_nowait, one)
    return signals


async def _stop_wanted(signals: asyncio.Queue[signal.Signals]) -> bool:
    """Ask once whether to stop the job; without a terminal, or at a second Ctrl-C, it is stopped."""
    if not sys.stdin.isatty():
        return True
    render.say("\nstop the job? [Y/n] ")
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, answered.set)  # no thread: one that reads could not be left without an answer
    answer, again = asyncio.ensure_future(answered.wait()), asyncio.ensure_future(signals.get())
    await asyncio.wait({answer, again}, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin)
    answer.cancel()
    if again.done():
        return again.result() == signal.SIGINT
    again.cancel()
    return sys.stdin.readline().strip().lower() not in ("n", "no")


async def _stop(
    cluster: Cluster,
    submission_id: str,
    following: asyncio.Future[Outcome],
    signals: asyncio.Queue[signal.Signals],
) -> None:
    """Stop a job and follow it to its end; another signal does not wait for that."""
    render.say(f"stopping job {submission_id}")
    await asyncio.to_thread(Dashboard(cluster).stop_job, submission_id)
    again = asyncio.ensure_future(signals.get())
    first_of: set[asyncio.Future[Any]] = {following, again}
    await asyncio.wait(first_of, timeout=STOP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    await _leave(following)


async def _leave(following: asyncio.Future[Outcome]) -> None:
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def _give_up(cluster: Cluster, submission_id: str, recorder: Recorder, refusal: RaydebugError) -> None:
    """Stop a job whose resource request can never be satisfied, and record why."""
    render.say(f"stopping job {submission_id}: it would wait forever")
    with contextlib.suppress(RaydebugError):
        Dashboard(cluster).stop_job(submission_id)
    recorder.read_changes(Dashboard(cluster))
    first = {"kind": "resources", "text": f"{refusal.what}; {refusal.cause}", "who": "Ray's scheduler", "place": ""}
    recorder.end("STOPPED", refusal.exit_code, first)


def _announce(pause: ListedPause, name: str) -> None:
    what = ": ".join(filter(None, (pause["kind"], name_reason(pause))))
    render.say(render.visible(f"paused {pause['id']}  {name_place(pause)}  ({what}; {name_owner(pause)})", keep=""))
    for line in history_lines(pause.get("tripwire")):
        render.say(render.visible(line, keep=""))
    render.say(f"next: {render.command('raydebug', 'attach', pause['id'])}{name_option(name)}")


def _say_outcome(cluster: Cluster, outcome: Outcome, recorder: Recorder, explain: Explain) -> int:
    recorder.end(outcome.status, outcome.exit_code, None)  # what follows may take long, and be cut off
    if outcome.exit_code == 0:
        seen = f" ({outcome.pauses} pauses)" if outcome.pauses else ""
        render.say(f"job {outcome.submission_id} succeeded{seen}")
    else:
        reason = short_reason(outcome.message)
        render.say(render.visible(f"job {outcome.submission_id} {outcome.status.lower()}: {reason}"))
    for finding in recorder.numbers.values():  # its first lines may be hours above
        render.say(render.visible(f"{finding.severity} [{finding.code}]: {finding.what}; {finding.why}", keep=""))
    recorder.read_changes(Dashboard(cluster))
    recorder.take_snapshots()
    first = None
    if outcome.exit_code != 0:
        lines, first, findings = _explained(explain, Dashboard(cluster), outcome.submission_id)
        for line in lines:
            render.say(render.visible(line))
        recorder.take_findings(findings)
    recorder.end(outcome.status, outcome.exit_code, first)
    _say_snapshots(recorder, outcome.submission_id)
    return outcome.exit_code


def _explained(explain: Explain, dashboard: Dashboard, job: str) -> Explanation:
    try:
        return explain(dashboard, job)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not change how the user's run ends
        return [f"diagnose has failed: {type(error).__name__}: {error}"], None, []


def short_reason(message: str) -> str:
    """Return the line of Ray's message that says why a job failed.

    After a failed command the job's log follows. The error of an actor that died has its fields in lines that begin
    with a tab, and then the line with the reason (Ray 2.60, ray/exceptions.py, ActorDiedError).
    """
    lines = message.partition(", last available logs")[0].splitlines() or [""]
    if "actor died" in lines[0]:
        return " ".join([lines[0], *[line for line in lines[1:] if line and not line.startswith("\t")][:1]])
    return lines[0]


def _say_snapshots(recorder: Recorder, submission_id: str) -> None:
    found = sorted(recorder.snapshots.values(), key=lambda one: one.get("at", 0.0))
    if found:
        who = "" if found[0].get("rank") is None else f", rank {found[0]['rank']}"
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        what = found[0].get("exception") or f"pause at line {found[0].get('line')}"
        text = f"snapshot of the crash: {what} in {found[0].get('function') or '?'}{who}{more}"
        render.say(render.visible(f"{text}; look at it with: {render.command('raydebug', 'open', submission_id)}"))
