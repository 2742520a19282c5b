"""All verbs, by what they are for; only the module of the verb that is called is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import raydebug
from raydebug import render
from raydebug.cli.options import PassThrough

HELP = """Stop any worker of a Ray + vLLM + verl run at a breakpoint or a crash, and look at it.

\b
Start here:
  raydebug run -- python train.py  says why it failed
  raydebug open                    the frames of a crash
  raydebug stacks                  what a hang waits for
"""
WHOLE = 10_000  # characters: a one-liner is never cut


@dataclass(frozen=True)
class Verb:
    """A verb, or a group of verbs.

    Args:
        name: on the command line.
        source: `module:attribute` below raydebug.cli: a function, or the Typer app of a group.
        takes_command: whether the user's command follows after `--`.
        hidden: whether the program's help leaves it out: a launcher or an editor calls it, and no user.
    """

    name: str
    source: str
    takes_command: bool = False
    hidden: bool = False

    def load(self) -> Any:
        """Import the verb's module and return the function or the group."""
        module, _, attribute = self.source.partition(":")
        return getattr(import_module(f"raydebug.cli.{module}"), attribute)


HEADINGS = {
    "Cluster": (
        Verb("up", "up:up"),
        Verb("ps", "status:ps"),
        Verb("logs", "status:logs"),
        Verb("down", "up:down"),
        Verb("node", "node:node", hidden=True),
    ),
    "Run": (
        Verb("run", "run:run"),
        Verb("try", "run:try_", takes_command=True),
        Verb("job", "job:app"),
        Verb("top", "top:top"),
    ),
    "Debug": (
        Verb("paused", "pauses:paused"),
        Verb("attach", "pauses:attach"),
        Verb("break", "breakpoints:app"),
        Verb("stacks", "stacks:stacks"),
        Verb("memory", "memory:memory"),
        Verb("snapshot", "open:snapshot"),
    ),
    "Check first": (Verb("check", "check:check", takes_command=True),),
    "After a run": (
        Verb("report", "report:report"),
        Verb("trace", "trace:trace"),
        Verb("diagnose", "diagnose:diagnose"),
        Verb("open", "open:open_"),
    ),
    "Editors": (
        Verb("vscode", "editors:vscode"),
        Verb("adapter", "editors:adapter", hidden=True),
        Verb("mcp", "mcp:mcp"),
    ),
    "Make": (Verb("image", "make:image"), Verb("tiny", "make:tiny")),
}


class VerbGroup(TyperGroup):
    """A group of verbs; in its help one-liners are wrapped, and not cut as click cuts them."""

    def headings(self) -> dict[str, list[str]]:
        """Return the names of the verbs to list under each heading."""
        return {"Commands": list(self.commands)}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the headings and the verbs, all of them in one column."""
        widest = max(map(len, self.commands))
        for heading, names in self.headings().items():
            rows = [(name.ljust(widest), self.commands[name].get_short_help_str(WHOLE)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


class Program(VerbGroup):
    """The verbs of the program, under HEADINGS."""

    def headings(self) -> dict[str, list[str]]:
        """Return HEADINGS, less the verbs that are hidden or were not loaded."""
        shown = {
            heading: [verb.name for verb in verbs if (command := self.commands.get(verb.name)) and not command.hidden]
            for heading, verbs in HEADINGS.items()
        }
        return {heading: names for heading, names in shown.items() if names}


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the app with the asked verb alone, or whole where the first word is none of them.

    The modules of all verbs take 20 ms, their parameters 50 ms; the help of the program shows no parameters.
    """
    if arguments and set(arguments) <= {"--help", "--debug"}:
        return _build(_verbs(), outlined=True)
    word = next((word for word in arguments if word != "--debug"), None)
    found = [verb for verb in _verbs() if verb.name == word]
    return _build(found) if found else whole_app()


@functools.cache
def whole_app() -> typer.Typer:
    """Return the app with all verbs."""
    return _build(_verbs())


def _verbs() -> list[Verb]:
    return [verb for verbs in HEADINGS.values() for verb in verbs]


def _build(verbs: Sequence[Verb], *, outlined: bool = False) -> typer.Typer:
    app = typer.Typer(
        cls=Program,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help=HELP,
        context_settings={"max_content_width": 120},  # click's own is 80, at any width of a terminal
    )
    app.callback()(_options)
    for verb in verbs:
        loaded = _outline(verb.load()) if outlined else verb.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=verb.name, cls=VerbGroup)
        else:
            app.command(verb.name, cls=PassThrough if verb.takes_command else None, hidden=verb.hidden)(loaded)
    return app


def _outline(loaded: Any) -> Callable[[], None]:
    """Return a verb without parameters that has the help of a verb, or of a group."""

    def verb() -> None:
        pass

    verb.__doc__ = loaded.info.help if isinstance(loaded, typer.Typer) else loaded.__doc__
    return verb


def _version(wanted: bool) -> None:
    if wanted:
        render.out(f"raydebug {raydebug.__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show commands as they run, and tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
