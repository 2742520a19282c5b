"""`raydebug paused` and `attach`: the pauses of a cluster, and the terminal debugger."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from raydebug import render
from raydebug.cli.options import Address, Execute, Json, Name, finite
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.protocol import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raydebug.cluster.state import Cluster
    from raydebug.console.selection import Selection
    from raydebug.protocol.listings import ListedPause

WATCH_PERIOD_S = 0.5
_LOST = ("session.process-gone", "session.gateway-gone")  # console/session.py
_TARGET_HELP = "A pause of `raydebug paused`, `next` (waits for it) or `all`. Default: the only one that waits."
_RANKS_HELP = "These ranks at one prompt, such as 0,3-5; those that pause later join."
_JOB_HELP = "All pauses of this job at one prompt."
_PID_HELP = "A process that works: it pauses at its next line. PID@IP where several nodes have that number."
_THREAD_HELP = "With --pid or --worker: this thread of it, by its name in `raydebug stacks --all`."
_WORKER_HELP = "The same, by the beginning of its Ray worker id."
_TIMEOUT_HELP = "Limit of the wait for pauses, and of each wait for a stop with -x (there: 60)."


def paused(
    name: Name = "default",
    address: Address = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show each new pause until Ctrl-C.")] = False,
) -> None:
    """List every pause of the cluster.

    Example: raydebug paused --watch
    """
    from raydebug.client.gateway_client import fetch_pauses

    cluster = _find(name, address)

    def show(pauses: list[ListedPause]) -> None:
        if as_json:
            render.out_json({"version": 1, "pauses": pauses})
            return
        if cluster.remote.job_ends:
            from raydebug.cluster.slurm import why_soon_over

            if soon := why_soon_over(cluster.remote):
                render.say(f"warning: {soon}")
        if not pauses:
            render.say("nothing is paused")
            return
        _show_table(pauses)
        if any(p.get("tripwire") for p in pauses):
            from raydebug.protocol.tripwires import history_lines

            for line in [f"{p['id']}: {line}" for p in pauses for line in history_lines(p.get("tripwire"))]:
                render.say(render.visible(line, keep=""))
        waiting = [p for p in pauses if p["state"] == "waiting"]
        if waiting:
            render.say(f"next: {render.command('raydebug', 'attach', waiting[0]['id'])}")

    if not watch:
        show(fetch_pauses(cluster))
        return
    from raydebug.jobs.patience import Patience

    before: object = None
    patience = Patience(cluster, "the gateway", "watch again: raydebug paused --watch")
    while True:
        try:
            pauses = fetch_pauses(cluster)
            patience.answered()
        except RaydebugError as error:
            patience.failed(error)
            time.sleep(WATCH_PERIOD_S)
            continue
        now = [(p["id"], p["state"], p["line"]) for p in pauses]
        if now != before:
            before = now
            show(pauses)
        time.sleep(WATCH_PERIOD_S)


def _find(name: str, address: str | None) -> Cluster:
    from raydebug.cluster.find import cluster_at, load_cluster

    if address is None:
        return load_cluster(name)
    render.suggest_at(address)
    return cluster_at(address)


def _show_table(pauses: list[ListedPause], *, to_stderr: bool = False) -> None:
    from raydebug.client.gateway_client import name_owner, name_place, name_reason

    rows = []
    for pause in pauses:
        place, reason, owner = name_place(pause), name_reason(pause), name_owner(pause)
        since = render.duration(pause["since_s"], whole=True)
        rows.append([pause["id"], pause["kind"] or "?", place, reason, owner, since, pause["state"]])
    render.table(["id", "kind", "where", "reason", "who", "since", "state"], rows, to_stderr=to_stderr)


def attach(
    target: Annotated[str | None, typer.Argument(metavar="[ID|next|all]", help=_TARGET_HELP)] = None,
    ranks: Annotated[str | None, typer.Option("--ranks", metavar="RANKS", help=_RANKS_HELP)] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help=_JOB_HELP)] = None,
    pid: Annotated[str | None, typer.Option("--pid", metavar="PID[@IP]", help=_PID_HELP)] = None,
    worker: Annotated[str | None, typer.Option("--worker", metavar="ID", help=_WORKER_HELP)] = None,
    thread: Annotated[str | None, typer.Option("--thread", metavar="THREAD", help=_THREAD_HELP)] = None,
    execute: Execute = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, callback=finite, metavar="SECONDS", help=_TIMEOUT_HELP)
    ] = None,
    steal: Annotated[bool, typer.Option("--steal", help="Take the pause from a client that holds it.")] = False,
    name: Name = "default",
    address: Address = None,
) -> None:
    """Open paused tasks in a debugger with most of pdb's commands: one, or many ranks at one prompt.

    \b
    Examples:
      raydebug attach                              the only pause that waits
      raydebug attach 3                            this one; `h` at the prompt lists the commands
      raydebug attach next --timeout 600           waits for the next one
      raydebug attach next -x w -x "p loss" -x c   a script: look, then resume it
      raydebug attach all                          all at one prompt: @0,3 p x, @* bt, diff loss, c @*
      raydebug attach --ranks 0-7 -x "diff grad_norm" -x ranks
      raydebug attach --job 04000000               all ranks of one job
      raydebug attach 3 --steal                    takes it from another client
      raydebug attach --address http://HEAD:8265   a Ray cluster that raydebug did not start
      raydebug attach --pid 7311                   a process that works: pauses it, then attaches
    """
    from raydebug.client.gateway_client import fetch_pauses
    from raydebug.console.attach import attach_group, attach_pause
    from raydebug.console.session import GatewayAddress
    from raydebug.console.unmanaged_session import UnmanagedCluster

    process = process_target(pid, worker, thread, others=(target, ranks, job))
    selection = _selection(target, ranks, job, steal=steal)
    cluster = _find(name, address)
    commands = execute or ()
    if address is not None and (selection is not None or process is not None):
        raise UsageError(
            "a cluster without a gateway gives one pause at a time",
            cause="all, --ranks, --job, --pid and --worker need a gateway: Ray's table knows none of it",
            fix="raydebug attach ID, or start the job on a cluster of `raydebug up`",
        )

    def fetch() -> list[ListedPause]:
        return fetch_pauses(cluster)

    at = GatewayAddress.of(cluster) if address is None else UnmanagedCluster(fetch)
    with named_if_lost(cluster) if address is None else contextlib.nullcontext():
        if selection is not None:
            code = attach_group(at, selection, fetch, commands=commands, timeout_s=timeout)
        else:
            chosen = process or target or _choose(fetch())
            code = attach_pause(at, chosen, cluster=cluster.name, commands=commands, timeout_s=timeout, steal=steal)
    raise typer.Exit(int(code))


@contextlib.contextmanager
def named_if_lost(cluster: Cluster) -> Iterator[None]:
    """Name the head's end as the reason of a lost debug session: the gateway sees only that a process ended.

    Raises:
        RaydebugError: what was raised within, or `session.head-gone`.
    """
    from raydebug.cluster.kinds import kind_of

    try:
        yield
    except RaydebugError as failure:
        why = None
        if failure.code in _LOST:
            with contextlib.suppress(TimeoutError):
                why = kind_of(cluster).why_gone()
        if why is None:
            raise
        raise RaydebugError(
            f"session lost: head of cluster '{cluster.name}' is gone",
            cause=f"{why}; {failure.cause}",
            fix="see `raydebug ps`; `raydebug up` brings it back, its jobs are lost",
            code="session.head-gone",
            exit_code=Exit.SESSION_LOST,
        ) from failure


def process_target(
    pid: str | None, worker: str | None, thread: str | None, *, others: tuple[str | None, ...]
) -> str | None:
    """Return the process that is to be paused, or a thread of it, in the gateway's words; None if a pause is meant."""
    if (pid, worker, thread) == (None, None, None):
        return None
    if (pid is None) == (worker is None) or any(other is not None for other in others):
        raise UsageError(
            "--pid and --worker take one process and nothing else; --thread goes with one of them",
            cause="an ID, `next`, `all`, --ranks and --job take pauses that are there",
            fix="raydebug attach --pid PID, or raydebug attach --pid PID --thread THREAD",
        )
    if pid is not None and not re.fullmatch(r"\d+(@\S+)?", pid):
        raise _no_process(f"--pid {pid}", "a process id is a number; on one of several nodes: 7311@172.18.0.3")
    if worker is not None and not re.fullmatch(r"[0-9a-f]{4,56}", worker):
        raise _no_process(f"--worker {worker}", "a Ray worker id has 56 hexadecimal digits; its first 4 or more do")
    of_thread = "" if thread is None else f"{messages.THREAD}{thread}"
    return (f"{messages.PID}{pid}" if pid is not None else f"{messages.WORKER}{worker}") + of_thread


def _no_process(option: str, cause: str) -> RaydebugError:
    fix = "take it from `raydebug ps --processes`"
    return UsageError(f"{option} names no process", cause=cause, fix=fix)


def _choose(pauses: list[ListedPause]) -> str:
    from raydebug.console.attach import choose_pause

    waiting = [pause for pause in pauses if pause["state"] == "waiting"]
    if len(waiting) > 1:
        _show_table(waiting, to_stderr=True)
    return choose_pause(pauses)


def _selection(target: str | None, ranks: str | None, job: str | None, *, steal: bool) -> Selection | None:
    """Return which pauses share the prompt; None when one alone is meant."""
    from raydebug.console.selection import Selection
    from raydebug.protocol.names import parse_ranks

    if ranks is None and job is None and target != "all":
        return None
    if target not in (None, "all"):
        raise UsageError(
            f"'{target}' and {'--ranks' if ranks is not None else '--job'} name different pauses",
            cause="an ID or `next` takes one pause, --ranks and --job take several",
            fix="leave one of them out",
        )
    try:
        wanted = None if ranks is None else frozenset(parse_ranks(ranks))
    except ValueError as error:
        raise UsageError(
            f"--ranks {ranks} names no ranks",
            cause=str(error),
            fix="name them as `raydebug paused` shows them: --ranks 0,3-5",
        ) from error
    return Selection(ranks=wanted, job=job, steal=steal)
