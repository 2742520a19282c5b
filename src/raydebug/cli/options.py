"""Options that several verbs share, and the user's command after `--`."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from raydebug import render
from raydebug.errors import RaydebugError, UsageError

CLUSTER = "RAYDEBUG_CLUSTER"  # protocol/variables.py, which help does without
_COMMAND = "raydebug.command"


def finite(seconds: float | None) -> float | None:
    """Check the value of an option: click takes `nan` and `inf` for numbers of any range.

    Raises:
        typer.BadParameter: it is not a number of seconds.
    """
    if seconds is not None and not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


def no_process(job: str) -> RaydebugError:
    """Return the error that a job has no process to look at."""
    return RaydebugError(
        f"no process of job '{job}' runs",
        cause="the job has ended, or is not one of this cluster",
        fix="see `raydebug job list`; of a job that has ended: raydebug diagnose",
        code="job.no-process",
    )


GPUS_HELP = (
    "Logical GPUs of a cluster that this starts. Default: the GPUs that the driver lists; on a CPU as many as the"
    " training asks for."
)


def is_started(name: str) -> bool:
    """Return whether `up` has started this cluster here, and it runs; that of a `run` may end with it."""
    from raydebug.cluster.kinds import find_running

    with contextlib.suppress(RaydebugError):  # a record cannot be read, or an engine is away
        found = find_running(name)
        return found is not None and not found.is_remote and not found.owner
    return False


def _name_option(otherwise: str, fits: Callable[[str], bool] | None = None, *, is_late: bool = False) -> Any:
    """Return the option --name of a verb; `otherwise` and `fits` say what is taken where none is named.

    With `is_late` that is left to the verb, which may need no cluster: it gets an empty name.
    """

    def choose(ctx: typer.Context, param: typer.CallbackParam, name: str) -> str:
        source = ctx.get_parameter_source(param.name or "")
        given = name if source is not None and source.name == "COMMANDLINE" else os.environ.get(CLUSTER, "")
        if is_late and not given:
            return ""
        from raydebug.cluster.find import choose_name

        chosen = choose_name(given, fits)
        if fits is not None and not given and chosen != name:
            render.say(f"on cluster '{chosen}', the only one that `up` has started")
        render.suggest_for(chosen)
        return chosen

    words = f"Which cluster. Default: {CLUSTER}, or {otherwise}."
    return typer.Option("--name", metavar="NAME", callback=choose, help=words, show_default=False)


Name = Annotated[str, _name_option("the only one")]
NameIfNeeded = Annotated[str, _name_option("the only one", is_late=True)]
NameToRunOn = Annotated[str, _name_option("the only one that `up` has started", is_started)]
NameAsGiven = Annotated[str, _name_option("'default'", lambda _: False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="A Ray cluster that raydebug did not start, by its dashboard: http://HEAD:8265. Its token is looked for"
        " where Ray looks.",
    ),
]
TinyModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="tiny", help="tiny: train a random model of the same architecture, made on the spot."
    ),
]
TinyData = Annotated[
    str | None, typer.Option("--data", metavar="tiny", help="tiny: train on the first rows of the same data.")
]
Execute = Annotated[
    list[str] | None,
    typer.Option("-x", "--execute", metavar="COMMAND", help="Run this debugger command and leave; repeatable."),
]
Debugger = Annotated[
    str | None,
    typer.Option(help="off, breakpoint (default), post-mortem, legacy or legacy-post-mortem.", metavar="MODE"),
]


def _assume(name: str | None) -> None:
    """Take programs that nothing else tells for trainings of this trainer, here and in the job."""
    from raydebug.protocol import variables
    from raydebug.trainers.registry import TRAINERS

    names = [trainer.name for trainer in TRAINERS]
    if name is not None and name not in names:
        raise UsageError(
            f"there is no trainer '{name}'",
            cause=f"known are: {', '.join(names)}",
            fix=f"--trainer {names[0]}",
            code="trainer.unknown",
        )
    if name is not None:
        os.environ[variables.TRAINER] = name


TrainerName = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        metavar="TRAINER",
        callback=_assume,
        help="What the program is, where neither its name, its arguments nor its config tell: verl, openrlhf or slime.",
    ),
]


def tiny_kinds(model: str | None, data: str | None) -> list[str]:
    """Return what --model and --data ask to be swapped in.

    Raises:
        RaydebugError: one of them says another word than `tiny`.
    """
    kinds = []
    for kind, said in (("model", model), ("data", data)):
        if said is None:
            continue
        if said != "tiny":
            raise UsageError(
                f"there is no {kind} '{said}' to swap in",
                cause=f"--{kind} knows one word: tiny",
                fix=f"--{kind} tiny, or name your own in the command itself",
                code="profile.unknown-swap",
            )
        kinds.append(kind)
    return kinds


class PassThrough(TyperCommand):
    """A verb that takes the user's command after `--`, with whatever options that command has."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; the command is the last of them."""
        pieces: list[str] = super().collect_usage_pieces(ctx)
        return pieces if "COMMAND" in "".join(pieces) else [*pieces, "-- COMMAND..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the user's command aside, and parse the rest."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


def given_options(ctx: typer.Context) -> list[str]:
    """Return the options on the command line, by their first name."""
    sources = {it.opts[0]: ctx.get_parameter_source(it.name or "") for it in ctx.command.params}
    return [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]


def command_of(ctx: typer.Context, purpose: str = "", *, or_else: str = "") -> list[str]:
    """Return the user's command; empty without one.

    Args:
        ctx: of the verb.
        purpose: what the command is needed for, such as `to try`; empty where it may be left out.
        or_else: what works without one, added to the fix.

    Raises:
        RaydebugError: there is none, and it is needed.
    """
    command: list[str] = ctx.meta[_COMMAND]
    if purpose and not command:
        raise UsageError(
            f"there is no command {purpose}",
            cause="the training command comes after `--`, as for `raydebug run`",
            fix=f"{ctx.command_path} -- python -m verl.trainer.main_ppo ...{or_else}",
            code=f"{ctx.info_name}.no-command",
        )
    return command
