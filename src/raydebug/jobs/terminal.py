"""Show a job in the terminal until it ends: its log, its pauses, Ctrl-C, its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.cluster.state import name_option
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.jobs.follow import Follower, Outcome
    from raydebug.jobs.recorder import Recorder
    from raydebug.protocol.listings import ListedPause


def follow_job(cluster: Cluster, submission_id: str) -> int:
    """Show a job's log and pauses until it ends, and return its exit code; Ctrl-C asks whether to stop it."""
    return asyncio.run(_follow(cluster, submission_id))


async def _follow(cluster: Cluster, submission_id: str) -> int:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.jobs.follow import Follower
    from raydebug.jobs.recorder import Recorder
    from raydebug.jobs.submit import command_of

    colour = render.colour_wanted()
    dashboard = Dashboard(cluster)
    about = await asyncio.to_thread(dashboard.job, submission_id)
    recorder = Recorder(cluster, about, shlex.split(command_of(about["entrypoint"])))

    def show(piece: str) -> None:
        render.out_raw(render.visible_log(piece, colour=colour))
        recorder.take_log(piece)

    follower = Follower(
        cluster,
        submission_id,
        on_log=show,
        on_pause=lambda pause: _announce(pause, cluster.name),
        on_pauses=recorder.take_pauses,
    )
    sampling = asyncio.ensure_future(recorder.watch_memory(dashboard))
    try:
        return await _until_end(cluster, submission_id, follower, recorder)
    finally:
        sampling.cancel()


async def _until_end(cluster: Cluster, submission_id: str, follower: Follower, recorder: Recorder) -> int:
    from raydebug.jobs.resource_requests import Unsatisfiable

    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    following = asyncio.ensure_future(follower.follow())
    while True:
        waiting = asyncio.ensure_future(interrupted.wait())
        await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if following.done():
            try:
                outcome = following.result()
            except Unsatisfiable as refusal:
                await asyncio.to_thread(_give_up, cluster, submission_id, recorder, refusal)
                raise
            return await asyncio.to_thread(_say_outcome, cluster, outcome, recorder)
        interrupted.clear()
        if await _stop_wanted(interrupted):
            return await _stop(cluster, submission_id, following)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        render.say(f"job {submission_id} continues")
        return Exit.INTERRUPTED


async def _stop_wanted(interrupted: asyncio.Event) -> bool:
    """Ask once whether to stop the job; without a terminal, or at a second Ctrl-C, it is stopped."""
    if not sys.stdin.isatty():
        return True
    render.say("\nstop the job? [Y/n] ")
    answer = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    again = asyncio.ensure_future(interrupted.wait())
    await asyncio.wait({answer, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    return not answer.done() or answer.result().strip().lower() not in ("n", "no")


async def _stop(cluster: Cluster, submission_id: str, following: asyncio.Future[Outcome]) -> int:
    from raydebug.cluster.dashboard import Dashboard

    render.say(f"stopping job {submission_id}")
    await asyncio.to_thread(Dashboard(cluster).stop_job, submission_id)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(following, timeout=20)
    return Exit.INTERRUPTED


def _give_up(cluster: Cluster, submission_id: str, recorder: Recorder, refusal: RaydebugError) -> None:
    """Stop a job whose resource request can never be satisfied, and record why."""
    from raydebug.cluster.dashboard import Dashboard

    render.say(f"stopping job {submission_id}: it would wait forever")
    with contextlib.suppress(RaydebugError):
        Dashboard(cluster).stop_job(submission_id)
    recorder.read_changes(Dashboard(cluster))
    first = {"kind": "resources", "text": f"{refusal.what}; {refusal.cause}", "who": "Ray's scheduler", "place": ""}
    recorder.end("STOPPED", refusal.exit_code, first)


def _announce(pause: ListedPause, name: str) -> None:
    from raydebug.gateway.gateway_client import name_owner, name_place

    what = f"{pause['kind']}: {pause['exception']}" if pause["exception"] else pause["kind"]
    render.say(render.visible(f"paused {pause['id']}  {name_place(pause)}  ({what}; {name_owner(pause)})", keep=""))
    render.say(f"next: raydebug attach {pause['id']}{name_option(name)}")


def _say_outcome(cluster: Cluster, outcome: Outcome, recorder: Recorder) -> int:
    from raydebug.cluster.dashboard import Dashboard

    first = None
    if outcome.exit_code == 0:
        seen = f" ({outcome.pauses} pauses)" if outcome.pauses else ""
        render.say(f"job {outcome.submission_id} succeeded{seen}")
    else:
        # Ray's message repeats the log from its second line on.
        reason = outcome.message.splitlines()[0].partition(", last available logs")[0] if outcome.message else ""
        render.say(render.visible(f"job {outcome.submission_id} {outcome.status.lower()}: {reason}"))
        first = _say_first_error(cluster, outcome.submission_id)
    recorder.read_changes(Dashboard(cluster))
    recorder.end(outcome.status, outcome.exit_code, first)
    return outcome.exit_code


def _say_first_error(cluster: Cluster, submission_id: str) -> dict[str, Any] | None:
    """Print the first error on one line: the log above ends with its consequences."""
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.jobs.first_error import find_first_error

    with contextlib.suppress(RaydebugError):
        dashboard = Dashboard(cluster)
        first = find_first_error(dashboard, dashboard.job(submission_id)).first
        if first is not None:
            place = f", at {first.place}" if first.place else ""
            render.say(render.visible(f"first error: {first.title} ({first.who}{place})"))
            return {"kind": first.kind, "text": first.text, "who": first.who, "place": first.place}
    return None
