"""`raydebug job`: list, follow, stop and wait for jobs; their logs."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydebug import render
from raydebug.cli.options import Json, Name, finite
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raydebug.cluster.dashboard import Dashboard, JobInfo
    from raydebug.jobs.logs import Filter, Source
    from raydebug.jobs.patience import Patience

STOP_S = 30.0

app = typer.Typer(help="The jobs of a cluster: list, logs, stop, wait.")
_Id = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Its id, or the beginning of it; default: your last.")]
_Role = Annotated[
    str | None, typer.Option(metavar="ROLE", help="driver, task, or a part of an actor's class: worker, engine.")
]
_Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="30s, 10m, 2h, or a time in UTC or with an offset, such as 2026-11-21T19:41:51 or ...51+01:00; by the"
        " time stamps in the logs.",
    ),
]


@app.command("list")
def list_jobs(name: Name = "default", as_json: Json = False) -> None:
    """List the jobs of the cluster, oldest first.

    Example: raydebug job list
    """
    jobs = [_describe(job) for job in _dashboard(name).submitted_jobs()]
    if as_json:
        render.out_json({"version": 1, "jobs": jobs})
        return
    if not jobs:
        render.say("no job has run here")
        return
    rows = []
    for job in jobs:
        started, ended = job["started"], job["ended"] or time.time()
        took = "?" if started is None else render.duration(ended - started, whole=True)
        exit_code = "" if job["exit_code"] is None else str(job["exit_code"])
        rows.append([job["id"], job["status"], took, exit_code, job["command"]])
    render.table(["id", "status", "took", "exit", "command"], rows)
    render.say(f"next: {render.command('raydebug', 'job', 'logs', jobs[-1]['id'])}")


@app.command()
def logs(
    job: _Id = None,
    role: _Role = None,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this rank of a training group.")] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Follow until the job has ended; without another option, as `run` does."),
    ] = False,
    since: _Since = None,
    grep: Annotated[str | None, typer.Option(metavar="RE", help="Only lines in which this is found.")] = None,
    name: Name = "default",
) -> None:
    """Print what the processes of a job wrote: of all, or by role and rank.

    With --follow alone it does what `run` does: it records the job, says its pauses, returns its exit code, and asks at
    Ctrl-C whether to stop it.

    \b
    Examples:
      raydebug job logs                                the last job's driver, and what Ray shows there
      raydebug job logs --role WorkerDict --rank 3
      raydebug job logs --follow --grep 'loss|reward'
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.kinds import kind_of
    from raydebug.jobs.logs import Filter, read_pattern, read_since

    cluster = load_cluster(name)
    wanted = Filter(
        None if since is None else read_since(since),
        None if grep is None else read_pattern(grep),
        kind_of(cluster).zone,
    )
    dashboard = _dashboard(name)
    about = _find(dashboard, job)
    if not follow:
        _print_logs(dashboard, about, role, rank, wanted)
    elif any(option is not None for option in (role, rank, since, grep)):
        _follow_logs(dashboard, about, role, rank, wanted)
    else:
        from raydebug.cli.diagnose import explain
        from raydebug.jobs.follow import follow_job

        raise typer.Exit(follow_job(cluster, about["submission_id"], explain))


@app.command()
def stop(job: _Id = None, name: Name = "default") -> None:
    """Stop a job and wait until it has ended.

    Example: raydebug job stop raydebug-194151-06d8c8
    """
    dashboard = _dashboard(name)
    found = _find(dashboard, job)
    submission_id = found["submission_id"]
    if _has_ended(dashboard, submission_id):
        render.say(f"job {submission_id} has ended already: {found['status'].lower()}")
        return
    dashboard.stop_job(submission_id)
    cause = "Ray was asked to stop it, and it runs still"
    fix = "see `raydebug job list`, then stop it again"
    _wait_for_end(dashboard, submission_id, f"stopping job {submission_id}", STOP_S, cause, fix)


@app.command()
def wait(
    job: _Id = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, callback=finite, metavar="SECONDS", help="Give up after this long.")
    ] = None,
    name: Name = "default",
) -> None:
    """Wait for the end of a job and return its exit code.

    Example: raydebug job wait --timeout 3600
    """
    from raydebug.jobs.follower import exit_code_of

    dashboard = _dashboard(name)
    submission_id = _find(dashboard, job)["submission_id"]
    cause = "it runs still, or is paused: `raydebug paused`"
    fix = "wait longer with --timeout SECONDS, or stop it with `raydebug job stop`"
    what = f"waits for the end of job {submission_id}"
    raise typer.Exit(exit_code_of(_wait_for_end(dashboard, submission_id, what, timeout, cause, fix)))


# What they share


def _dashboard(name: str) -> Dashboard:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.find import load_cluster

    return Dashboard(load_cluster(name))


def _find(dashboard: Dashboard, wanted: str | None) -> JobInfo:
    """Return the job with an id, or whose id begins so; without one the last that was submitted from here."""
    from raydebug.jobs.submit import ID_PREFIX
    from raydebug.runs.folder import runs_dir

    jobs = dashboard.submitted_jobs()
    if wanted is None and jobs:
        ours = [job for job in jobs if job["submission_id"].startswith(ID_PREFIX)]
        if own := [job for job in ours if (runs_dir() / job["submission_id"]).is_dir()]:
            return own[-1]
        last_of_raydebug = f", the last one of any raydebug {ours[-1]['submission_id']}" if ours else ""
        raise RaydebugError(
            "no job of this cluster was submitted from here",
            cause=f"its last job is {jobs[-1]['submission_id']}{last_of_raydebug}",
            fix="name the job; `raydebug job list` shows them",
            code="job.not-ours",
        )
    found = [job for job in jobs if wanted is None or job["submission_id"].startswith(wanted)]
    exact = [job for job in found if job["submission_id"] == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    ids = ", ".join(job["submission_id"] for job in (found or jobs)[-6:])
    none = f"there is no job '{wanted}'" if wanted else "no job has run"
    raise RaydebugError(
        f"several jobs begin with '{wanted}'" if found else none,
        cause=f"the cluster knows: {ids}" if ids else "the cluster knows no job",
        fix="`raydebug job list` shows them" if ids else "start one with `raydebug run -- COMMAND`",
        code="job.unknown",
    )


def _has_ended(dashboard: Dashboard, submission_id: str, patience: Patience | None = None) -> bool:
    """Return whether a job has ended; with patience also while its dashboard is away."""
    from raydebug.cluster.dashboard import ENDED

    try:
        status = str(dashboard.job(submission_id)["status"])
    except RaydebugError as error:
        if patience is None:
            raise
        patience.failed(error)
        return False
    if patience is not None:
        patience.answered()
    return status in ENDED


def _patience(dashboard: Dashboard, submission_id: str) -> Patience:
    from raydebug.jobs.patience import Patience

    again = render.command("raydebug", "job", "wait", submission_id)
    return Patience(dashboard.cluster, "Ray's dashboard", f"the job goes on; wait for it again: {again}")


def _wait_for_end(
    dashboard: Dashboard, submission_id: str, what: str, timeout_s: float | None, cause: str, fix: str
) -> JobInfo:
    """Wait until a job has ended, say how, and return it; `cause` and `fix` are of the error where it does not."""
    from raydebug.jobs.logs import wait_until

    patience = _patience(dashboard, submission_id)
    with render.waiting(what):
        ended = wait_until(lambda: _has_ended(dashboard, submission_id, patience), timeout_s=timeout_s)
    if not ended:
        raise RaydebugError(
            f"job {submission_id} did not end within {timeout_s:g} s",
            cause=cause,
            fix=fix,
            code="job.timeout",
            exit_code=Exit.TIMEOUT,
        )
    job_info = dashboard.job(submission_id)
    render.say(f"job {submission_id}: {job_info['status'].lower()}")
    return job_info


def _sources(dashboard: Dashboard, submission_id: str, role: str | None, rank: int | None) -> list[Source]:
    """Return the wanted files; without a role and a rank the driver's, to which Ray copies the workers' output."""
    from raydebug.jobs.logs import DRIVER, find_sources, select_sources

    job = next(job for job in dashboard.submitted_jobs() if job["submission_id"] == submission_id)
    chosen = DRIVER if role is None and rank is None else role
    return select_sources(find_sources(dashboard, job), chosen, rank)


def _print_logs(dashboard: Dashboard, about: JobInfo, role: str | None, rank: int | None, wanted: Filter) -> None:
    sources = _sources(dashboard, about["submission_id"], role, rank)
    if not sources:
        options = " ".join(filter(None, [role and f"--role {role}", None if rank is None else f"--rank {rank}"]))
        others = _sources(dashboard, about["submission_id"], "", None)
        titles = sorted({source.title for source in others})
        raise RaydebugError(
            f"no process of job {about['submission_id']} is {options or 'its driver'}",
            cause=f"it has: {', '.join(titles[:12])}" if titles else "no file of it is left on any node",
            fix=f"--role {others[-1].role}, or leave both out" if titles else "did it start? `raydebug job list`",
            code="job.no-logs",
        )
    from raydebug.jobs.logs import lines_of

    show = _printer(about, has_titles=role is not None or rank is not None)
    for source in sources:
        for line in wanted.lines(lines_of(dashboard.log_text(source.node_id, source.name))):
            show(source, line)


def _follow_logs(dashboard: Dashboard, about: JobInfo, role: str | None, rank: int | None, wanted: Filter) -> None:
    import asyncio

    from raydebug.jobs.logs import follow_lines

    submission_id = about["submission_id"]
    show = _printer(about, has_titles=role is not None or rank is not None)
    patience = _patience(dashboard, submission_id)
    sources: list[Source] = []

    def look() -> list[Source]:
        with contextlib.suppress(RaydebugError):  # while the dashboard is away, those that are known
            sources[:] = _sources(dashboard, submission_id, role, rank)
        return sources

    try:
        asyncio.run(follow_lines(dashboard, look, lambda: _has_ended(dashboard, submission_id, patience), show, wanted))
    except KeyboardInterrupt:
        render.say(f"left; job {submission_id} continues if it has not ended")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _printer(about: JobInfo, *, has_titles: bool) -> Callable[[Source, str], None]:
    """Return what prints a line of a job's logs, without the secrets of its command."""
    from raydebug.jobs.submit import hide_command

    def show(source: Source, line: str) -> None:
        mark = f"[{source.title}] " if has_titles else ""
        shown = hide_command(line, about["entrypoint"])
        render.out(render.visible_log(f"{mark}{shown}", colour=render.colour_wanted()))

    return show


def _describe(job: JobInfo) -> dict[str, Any]:
    """Return a job as `job list` shows it; `started` and `ended` are seconds since the epoch."""
    from raydebug.cluster.dashboard import ENDED
    from raydebug.jobs.follower import exit_code_of
    from raydebug.jobs.submit import shown_command
    from raydebug.protocol.secrets import scrubbed

    message = (job.get("message") or "").partition(", last available logs")[0].strip()
    start_ms, end_ms = job.get("start_time"), job.get("end_time")
    return {
        "id": job["submission_id"],
        "status": str(job["status"]).lower(),
        "command": shown_command(job["entrypoint"]),
        "started": start_ms / 1000 if start_ms else None,
        "ended": end_ms / 1000 if end_ms else None,
        "exit_code": exit_code_of(job) if job["status"] in ENDED else None,
        "message": scrubbed(message) or None,
    }
