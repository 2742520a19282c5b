"""`raydebug job`: list, follow, stop and wait for jobs; their logs and their first error."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Json, Name
from raydebug.errors import Exit, RaydebugError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raydebug.cluster.dashboard import Dashboard, JobInfo
    from raydebug.diagnose.answer import Answer, Diagnosis, LoggedError
    from raydebug.jobs.logs import Source

STOP_S = 30.0
TRACEBACK_LINES = 24  # of the first error, for people; --json has all

app = typer.Typer(help="The jobs of a cluster: list, status, logs, stop, wait.")
_Id = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Its id, or the beginning of it; default: your last.")]


@dataclass(frozen=True)
class _Job:
    """A job as `job list` and `job status` show it; `started` and `ended` are seconds since the epoch."""

    id: str
    status: str
    command: str
    started: float | None
    ended: float | None
    exit_code: int | None
    message: str | None

    @property
    def took(self) -> str:
        return "?" if self.started is None else render.duration((self.ended or time.time()) - self.started, whole=True)


@app.command("list")
def list_jobs(name: Name = "default", as_json: Json = False) -> None:
    """List the jobs of the cluster, oldest first.

    Example: raydebug job list
    """
    from raydebug.cluster.state import name_option

    jobs = [_describe(job) for job in _dashboard(name).submitted_jobs()]
    if as_json:
        render.out_json({"version": 1, "jobs": [asdict(job) for job in jobs]})
        return
    if not jobs:
        render.say("no job has run here")
        return
    rows = [
        [job.id, job.status, job.took, "" if job.exit_code is None else str(job.exit_code), job.command] for job in jobs
    ]
    render.table(None, ["id", "status", "took", "exit", "command"], rows)
    render.say(f"next: {render.command('raydebug', 'job', 'logs', jobs[-1].id)}{name_option(name)}")


@app.command()
def status(job: _Id = None, name: Name = "default", as_json: Json = False) -> None:
    """Show the state of a job; the exit code is 0 in every state.

    Example: raydebug job status
    """
    found = _describe(_find(_dashboard(name), job))
    if as_json:
        render.out_json({"version": 1, **asdict(found)})
        return
    for word, value in asdict(found).items():
        if value is not None and word not in ("started", "ended"):
            render.out(render.visible(f"{word.replace('_', ' '):<10} {value}"))
    render.out(f"{'took':<10} {found.took}")


@app.command()
def logs(
    job: _Id = None,
    role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="driver, task, or a part of an actor's class: worker, engine.")
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this rank of a training group.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job has ended.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="30s, 10m, 2h, or a time in UTC or with an offset, such as 2026-11-21T19:41:51 or ...51+01:00; by the"
            " time stamps in the logs.",
        ),
    ] = None,
    grep: Annotated[str | None, typer.Option(metavar="RE", help="Only lines in which this is found.")] = None,
    first_error: Annotated[
        bool, typer.Option("--first-error", help="The earliest real error in all of its files; what followed, folded.")
    ] = False,
    name: Name = "default",
    as_json: Annotated[bool, typer.Option("--json", help="With --first-error: one JSON document.")] = False,
) -> None:
    """Print what the processes of a job wrote: of all, or by role and rank.

    \b
    Examples:
      raydebug job logs                                the last job's driver, and what Ray shows there
      raydebug job logs --role WorkerDict --rank 3
      raydebug job logs --follow --grep 'loss|reward'
      raydebug job logs --first-error                  why it failed
    """
    from raydebug.cluster.find import load_cluster
    from raydebug.cluster.kinds import kind_of
    from raydebug.jobs.logs import Filter, follow_lines, read_pattern, read_since
    from raydebug.jobs.submit import hide_command

    if as_json and not first_error:
        raise UsageError(
            "--json is for --first-error",
            cause="logs are lines of text",
            fix="raydebug job logs --first-error --json",
        )
    wanted = Filter(
        None if since is None else read_since(since),
        None if grep is None else read_pattern(grep),
        kind_of(load_cluster(name)).zone,
    )
    dashboard = _dashboard(name)
    found = _find(dashboard, job)
    submission_id = found["submission_id"]
    if first_error:
        _show_first_error(dashboard, found, as_json=as_json)
        return
    shows_all = role is not None or rank is not None

    def look() -> list[Source]:
        return _sources(dashboard, submission_id, role, rank)

    def show(source: Source, line: str) -> None:
        mark = f"[{source.title}] " if shows_all else ""
        shown = hide_command(line, found["entrypoint"])
        render.out(render.visible_log(f"{mark}{shown}", colour=render.colour_wanted()))

    if follow:
        import asyncio

        try:
            asyncio.run(follow_lines(dashboard, look, lambda: _has_ended(dashboard, submission_id), show, wanted))
        except KeyboardInterrupt:
            render.say(f"left; job {submission_id} continues if it has not ended")
            raise typer.Exit(Exit.INTERRUPTED) from None
        return
    sources = look()
    if not sources:
        raise _nothing_written(dashboard, submission_id, role, rank)
    for source in sources:
        for line in wanted.lines(dashboard.log_text(source.node_id, source.name).splitlines()):
            show(source, line)


@app.command()
def stop(job: _Id = None, name: Name = "default") -> None:
    """Stop a job and wait until it has ended.

    Example: raydebug job stop raydebug-194151-06d8c8
    """
    from raydebug.cluster.state import name_option
    from raydebug.jobs.logs import wait_until

    dashboard = _dashboard(name)
    found = _find(dashboard, job, to_stop=True)
    submission_id = found["submission_id"]
    if _has_ended(dashboard, submission_id):
        render.say(f"job {submission_id} has ended already: {found['status'].lower()}")
        return
    dashboard.stop_job(submission_id)
    with render.waiting(f"stopping job {submission_id}"):
        ended = wait_until(lambda: _has_ended(dashboard, submission_id), timeout_s=STOP_S)
    if not ended:
        raise RaydebugError(
            f"job {submission_id} did not end within {STOP_S:g} s",
            cause="Ray was asked to stop it, and it runs still",
            fix=f"see `raydebug job status {submission_id}{name_option(name)}`, then stop it again",
            code="job.timeout",
            exit_code=Exit.TIMEOUT,
        )
    render.say(f"job {submission_id}: {dashboard.job(submission_id)['status'].lower()}")


@app.command()
def wait(
    job: _Id = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, metavar="SECONDS", help="Give up after this long.")] = None,
    name: Name = "default",
) -> None:
    """Wait for the end of a job and return its exit code.

    Example: raydebug job wait --timeout 3600
    """
    from raydebug.jobs.follower import exit_code_of
    from raydebug.jobs.logs import wait_until

    dashboard = _dashboard(name)
    submission_id = _find(dashboard, job)["submission_id"]
    with render.waiting(f"waits for the end of job {submission_id}"):
        ended = wait_until(lambda: _has_ended(dashboard, submission_id), timeout_s=timeout)
    if not ended:
        raise RaydebugError(
            f"job {submission_id} did not end within {timeout:g} s",
            cause="it runs still, or is paused: `raydebug paused`",
            fix="wait longer with --timeout SECONDS, or stop it with `raydebug job stop`",
            code="job.timeout",
            exit_code=Exit.TIMEOUT,
        )
    info = dashboard.job(submission_id)
    render.say(f"job {submission_id}: {info['status'].lower()}")
    raise typer.Exit(exit_code_of(info))


@app.command("attach-log")
def attach_log(job: _Id = None, name: Name = "default") -> None:
    """Follow a job as `raydebug run` does: its log, its pauses, its exit code; Ctrl-C asks whether to stop it.

    Example: raydebug job attach-log
    """
    from raydebug.cli.diagnose import explain
    from raydebug.cluster.find import load_cluster
    from raydebug.jobs.follow import follow_job

    found = _find(_dashboard(name), job)
    raise typer.Exit(follow_job(load_cluster(name), found["submission_id"], explain))


# What they share


def _dashboard(name: str) -> Dashboard:
    from raydebug.cluster.dashboard import Dashboard
    from raydebug.cluster.find import load_cluster

    return Dashboard(load_cluster(name))


def _find(dashboard: Dashboard, wanted: str | None, *, to_stop: bool = False) -> JobInfo:
    """Return the job with an id, or whose id begins so; without one this user's last.

    Args:
        dashboard: of the cluster.
        wanted: the id; None for the last job that was submitted from here. To be read, without one, it is the last one
            that any raydebug has submitted, or anybody.
        to_stop: only a job that was submitted from here needs no id.

    Raises:
        RaydebugError: there is none, several begin so, or it is somebody else's.
    """
    from raydebug.jobs.run_folder import runs_dir
    from raydebug.jobs.submit import ID_PREFIX

    jobs = dashboard.submitted_jobs()
    if wanted is None and jobs:
        ours = [job for job in jobs if job["submission_id"].startswith(ID_PREFIX)]
        own = [job for job in ours if (runs_dir() / job["submission_id"]).is_dir()]
        if to_stop and not own:
            last_of_raydebug = f", the last one of any raydebug {ours[-1]['submission_id']}" if ours else ""
            raise RaydebugError(
                "no job of this cluster was submitted from here",
                cause=f"its last job is {jobs[-1]['submission_id']}{last_of_raydebug}",
                fix="name the job: raydebug job stop JOB; `raydebug job list` shows them",
                code="job.not-ours",
            )
        return (own or ours or jobs)[-1]
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


def _has_ended(dashboard: Dashboard, submission_id: str) -> bool:
    from raydebug.cluster.dashboard import ENDED

    return str(dashboard.job(submission_id)["status"]) in ENDED


def _sources(dashboard: Dashboard, submission_id: str, role: str | None, rank: int | None) -> list[Source]:
    """Return the wanted files; without a role and a rank the driver's, to which Ray copies the workers' output."""
    from raydebug.jobs.logs import DRIVER, find_sources, select_sources

    job = next(job for job in dashboard.submitted_jobs() if job["submission_id"] == submission_id)
    chosen = DRIVER if role is None and rank is None else role
    return select_sources(find_sources(dashboard, job), chosen, rank)


def _nothing_written(dashboard: Dashboard, submission_id: str, role: str | None, rank: int | None) -> RaydebugError:
    there = _sources(dashboard, submission_id, "", None)
    asked = " ".join(filter(None, [role and f"--role {role}", None if rank is None else f"--rank {rank}"]))
    titles = sorted({source.title for source in there})
    return RaydebugError(
        f"no process of job {submission_id} is {asked or 'its driver'}",
        cause=f"it has: {', '.join(titles[:12])}" if titles else "no file of it is left on any node",
        fix=f"--role {there[-1].role}, or leave both out" if titles else "did it start? `raydebug job status`",
        code="job.no-logs",
    )


def _describe(job: JobInfo) -> _Job:
    from raydebug.cluster.dashboard import ENDED
    from raydebug.jobs.follower import exit_code_of
    from raydebug.jobs.submit import shown_command
    from raydebug.protocol.secrets import scrubbed

    message = (job.get("message") or "").partition(", last available logs")[0].strip()
    start_ms, end_ms = job.get("start_time"), job.get("end_time")
    return _Job(
        id=job["submission_id"],
        status=str(job["status"]).lower(),
        command=shown_command(job["entrypoint"]),
        started=start_ms / 1000 if start_ms else None,
        ended=end_ms / 1000 if end_ms else None,
        exit_code=exit_code_of(job) if job["status"] in ENDED else None,
        message=scrubbed(message) or None,
    )


def _show_first_error(dashboard: Dashboard, found: JobInfo, *, as_json: bool) -> None:
    from raydebug.diagnose.answer import find_errors
    from raydebug.diagnose.inputs import LIMIT_S
    from raydebug.diagnose.run_diagnosis import diagnose_job, find_run

    job = found["submission_id"]
    with render.waiting(f"reading what the processes of job {job} wrote"):
        answer, lines = diagnose_job(dashboard, job, find_run(job), LIMIT_S)
        error = answer.first.error if answer.first is not None else None
        cascade = [one for one in find_errors(lines) if one != error] if answer.first is not None else []
    if as_json:
        render.out_json({"version": 1, "job": job, **first_error_document(answer, cascade)})
    elif answer.first is None:
        render.say(f"no error in the files of job {job} ({found['status'].lower()})")
    else:
        for line in first_error_lines(answer.first, cascade):
            render.out(render.visible(line))


def first_error_document(answer: Answer, cascade: Sequence[LoggedError]) -> dict[str, object]:
    """Return the document of `--first-error --json`."""
    first = answer.first
    if first is None:
        return {"first": None, "cascade": []}
    about = {} if first.error is None else asdict(first.error)
    return {"first": about | first.as_first_error(), "cascade": [asdict(one) for one in cascade]}


def first_error_lines(first: Diagnosis, cascade: Sequence[LoggedError]) -> Iterator[str]:
    """Yield the first error for people: what it is, whose, its traceback, and what followed, folded."""
    from raydebug.diagnose.answer import headline, origin

    record = first.as_first_error()
    yield f"first error: {''.join(headline(record))}"
    if whose := origin(record):
        yield f"  {whose}"
    error = first.error
    traceback = error.traceback if error is not None else [first.evidence[0].text]
    lines = [line for line in traceback if line.strip(" ^~")]  # markers: Ray drops the lines that they mark
    if len(lines) > TRACEBACK_LINES:
        yield f"    ... {len(lines) - TRACEBACK_LINES} lines before"
    yield from (f"    {line}" for line in lines[-TRACEBACK_LINES:])
    same = "the same error, seen by others"
    kinds = Counter(same if error is not None and one.title == error.title else one.kind for one in cascade)
    if kinds:
        counted = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in kinds.items())
        yield f"  followed by: {counted}; --json has them"
