"""Follow a job until it ends, in the terminal: its log, its pauses, its resource requests, Ctrl-C, its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from raydebug import render
from raydebug.client.gateway_client import name_owner, name_place, name_reason
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs import resource_requests
from raydebug.jobs.certificate import BACK, FOLLOWED
from raydebug.jobs.follower import Follower, Outcome
from raydebug.jobs.recorder import Recorder
from raydebug.jobs.submit import hide_command, words_of
from raydebug.protocol.listings import ListedPause
from raydebug.protocol.tripwires import history_lines
from raydebug.runs.folder import next_step

if TYPE_CHECKING:
    from raydebug.jobs.certificate import Certificate

STOP_TIMEOUT_S = 20.0
DEATHS_SAID = 5  # of a job
LEAVING = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = "INTERRUPTED"  # the status in a run's record when nobody has followed the job to its end

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
        on_pause=_announce,
        on_pauses=recorder.take_pauses,
    )
    recording = [
        asyncio.ensure_future(watching)
        for watching in (
            recorder.watch_memory(dashboard),
            recorder.deaths.watch(Dashboard(cluster), lambda found: _say_deaths(recorder, found)),
            recorder.spans.watch(Dashboard(cluster)),
        )
    ]
    for task in recording:
        task.add_done_callback(_say_fault)
    watched = asyncio.Future[str]() if watch is None else asyncio.ensure_future(watch(cluster, submission_id, recorder))
    try:
        return await _until_end(follower, recorder, watched, explain)
    finally:
        watched.cancel()
        for task in recording:
            task.cancel()
        if not recorder.has_ended:
            recorder.end(INTERRUPTED, Exit.INTERRUPTED, None)


def _say_fault(recording: asyncio.Future[None]) -> None:
    """Say that a part of the record has ended before the job: it is a fault of ours, and the run goes on."""
    if not recording.cancelled() and (error := recording.exception()) is not None:
        render.say(f"note: a part of this run is recorded no further: {type(error).__name__}: {error}")


async def _until_end(follower: Follower, recorder: Recorder, watched: asyncio.Future[str], explain: Explain) -> int:
    cluster, submission_id, signals = follower.cluster, follower.submission_id, _take_signals()
    following = asyncio.ensure_future(follower.follow())
    waiting = asyncio.ensure_future(signals.get())
    first_of: set[asyncio.Future[Any]] = {following, waiting, watched}
    await asyncio.wait(first_of, return_when=asyncio.FIRST_COMPLETED)
    if following.done():
        try:
            outcome = following.result()
        except resource_requests.Unsatisfiable as refusal:
            waiting.cancel()
            await asyncio.to_thread(_give_up, cluster, submission_id, recorder, refusal)
            raise
        except Exception:  # whatever it is, the job is not followed any more
            render.say(_what_becomes_of(cluster, submission_id))
            raise
        for leaving in LEAVING:  # to explain a failure may take long: from here on they end this process
            asyncio.get_running_loop().remove_signal_handler(leaving)
        explaining = asyncio.ensure_future(asyncio.to_thread(_say_outcome, cluster, outcome, recorder, explain))
        await asyncio.wait({explaining, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if explaining.done():
            waiting.cancel()
            return explaining.result()
        render.say(f"left before the end was explained; next: raydebug diagnose {submission_id}")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        # A thread that waits for a dashboard cannot be ended; the cluster of this `run` ends itself.
        os._exit(outcome.exit_code)
    if watched.done():
        waiting.cancel()
        await _stop(follower, following, signals)
        first = {"kind": "hang", "text": watched.result(), "who": "run --hang-after", "place": ""}
        await asyncio.to_thread(recorder.end, "STOPPED", Exit.TIMEOUT, first)
        await asyncio.to_thread(recorder.spans.end, Dashboard(cluster))
        return Exit.TIMEOUT
    received = waiting.result()
    if received == signal.SIGINT and await _stop_wanted(signals):
        await _stop(follower, following, signals)
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
    for leaving in (signal.SIGINT, *LEAVING):
        if leaving == signal.SIGINT or signal.getsignal(leaving) != signal.SIG_IGN:  # nohup ignores SIGHUP
            asyncio.get_running_loop().add_signal_handler(leaving, signals.put_nowait, leaving)
    return signals


async def _stop_wanted(signals: asyncio.Queue[signal.Signals]) -> bool:
    """Ask whether to stop the job, until the answer is yes or no; without a terminal, or at a second Ctrl-C, it is."""
    if not sys.stdin.isatty():
        return True
    loop = asyncio.get_running_loop()
    while True:
        render.say("\nstop the job? [Y/n] ")
        answered = asyncio.Event()
        loop.add_reader(sys.stdin, answered.set)  # no thread: one that reads could not be left without an answer
        answer, again = asyncio.ensure_future(answered.wait()), asyncio.ensure_future(signals.get())
        await asyncio.wait({answer, again}, return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(sys.stdin)
        answer.cancel()
        if again.done():
            return again.result() == signal.SIGINT
        again.cancel()
        word = sys.stdin.readline().strip().lower()
        if word in ("", "y", "yes", "n", "no"):
            return word not in ("n", "no")


async def _stop(follower: Follower, following: asyncio.Future[Outcome], signals: asyncio.Queue[signal.Signals]) -> None:
    """Stop a job and follow it to its end; another signal does not wait for that."""
    render.say(f"stopping job {follower.submission_id}")
    await asyncio.to_thread(Dashboard(follower.cluster).stop_job, follower.submission_id)
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


def _announce(pause: ListedPause) -> None:
    what = ": ".join(filter(None, (pause["kind"], name_reason(pause))))
    render.say(render.visible(f"paused {pause['id']}  {name_place(pause)}  ({what}; {name_owner(pause)})", keep=""))
    for line in history_lines(pause.get("tripwire")):
        render.say(render.visible(line, keep=""))
    render.say(f"next: {render.command('raydebug', 'attach', pause['id'])}")


def _say_deaths(recorder: Recorder, found: Sequence[Certificate]) -> None:
    """Say ends that are causes, and that a process has not ended; ends that follow from another are in the record."""
    for certificate in found:
        if certificate.kind == BACK:
            render.say(render.visible(f"death: {certificate.text}", keep=""))
    causes = [certificate for certificate in found if certificate.kind not in (FOLLOWED, BACK)]
    waiting, known = recorder.deaths.unsaid, recorder.deaths.certificates.values()
    said = len([one for one in known if one.kind != FOLLOWED and one not in waiting]) - len(causes)
    for certificate in causes[: max(0, DEATHS_SAID - said)]:
        render.say(render.visible(f"death: {certificate.text}", keep=""))
    if said < DEATHS_SAID < said + len(causes):
        render.say("death: more processes have ended; `raydebug diagnose` lists them")


def _say_outcome(cluster: Cluster, outcome: Outcome, recorder: Recorder, explain: Explain) -> int:
    """Say how a job ended; why it failed and what to type is one block, the last lines of a run."""
    recorder.end(outcome.status, outcome.exit_code, None)  # what follows may take long, and be cut off
    for finding in recorder.numbers.values():  # its first lines may be hours above
        render.say(render.visible(f"{finding.severity} [{finding.code}]: {finding.what}; {finding.why}", keep=""))
    has_failed = outcome.exit_code != 0 and outcome.status != "STOPPED"  # which the user has asked for
    seen = f" ({outcome.pauses} pauses)" if outcome.pauses else ""
    ended = f"{outcome.status.lower()}{seen if outcome.exit_code == 0 else f': {short_reason(outcome.message)}'}"
    _say_end([f"job {outcome.submission_id} {ended}"], is_error=has_failed)
    dashboard = Dashboard(cluster)
    recorder.read_changes(dashboard)
    recorder.take_snapshots(last=True)
    recorder.spans.end(dashboard)
    deaths = recorder.deaths.at_end(dashboard, has_failed=has_failed)
    first = None
    if has_failed:
        recorder.end(outcome.status, outcome.exit_code, None)
        lines, first, findings = _explained(explain, dashboard, outcome.submission_id)
        recorder.take_findings(findings)
        causes = [found.text for found in deaths if found.kind not in (FOLLOWED, BACK)][:1]
        told = [f"death: {text}" for text in causes if text not in "".join(lines)]
        if not lines or not lines[-1].startswith("next: "):
            lines = [*lines, next_step(outcome.submission_id)]
        _say_end([*lines[:-1], *told, lines[-1]], is_error=len(lines) > 1)
    elif crash := min(recorder.snapshots.values(), key=lambda found: found.get("at", 0.0), default=None):
        where = f"{crash.get('exception')} in {crash.get('function') or '?'}"
        _say_end([f"note: a process crashed: {where}", next_step(outcome.submission_id)], is_error=False)
    recorder.end(outcome.status, outcome.exit_code, first)
    return outcome.exit_code


def _say_end(lines: Sequence[str], *, is_error: bool) -> None:
    """Say lines about the end of a job; of a failure the first one and the next commands stand out."""
    paint = render.Paint(render.colour_wanted(sys.stderr))
    for at, line in enumerate(lines):
        styles = ["bold"] if line.startswith("next: ") else ["bold", "red"] if is_error and at == 0 else []
        shown = render.visible(render.suggested(line))
        render.say_painted(paint(shown, *styles) if styles else shown)


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
