"""The command line: one file per group of verbs; parse, call, render. `main` holds the single rescue."""

from __future__ import annotations

import io
import itertools
import sys

from raydebug import render
from raydebug.errors import Exit, RaydebugError


def main() -> None:
    """Run `raydebug` and exit; every failure that a user can act on becomes three lines."""
    arguments = sys.argv[1:]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if debug:
        _log_commands()
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character must not end a session
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = [word for at, word in enumerate(arguments) if not (word == "--debug" and at < len(own))]
    try:
        code = _call(words)
    except RaydebugError as failure:
        render.error(failure, as_json="--json" in own)
        if debug:
            raise
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:  # `raydebug ... | head`
        sys.stderr.close()
        sys.exit(Exit.OK)
    except Exception as error:  # noqa: BLE001 - the single rescue
        _exit_for(error, debug=debug)
    sys.exit(code if isinstance(code, int) else Exit.OK)


def _call(words: list[str]) -> object:
    """Call the verb that the words name; without a verb, or with a group alone, print help."""
    from raydebug.cli.app import RENAMED, app_for
    from raydebug.cli.options import say_renamed

    if words and words[0] in RENAMED:
        say_renamed(words[0], RENAMED[words[0]])
        words = [RENAMED[words[0]], *words[1:]]
    app = app_for(words)
    if not words or (len(words) == 1 and app.registered_groups and words[0] == app.registered_groups[0].name):
        words = [*words, "--help"]
    return app(args=words, prog_name="raydebug", standalone_mode=False)


def _log_commands() -> None:
    import logging

    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(name)s: %(message)s")


def _options_given() -> list[str]:
    """Return the names of the options before `--`; values and the user's command may hold secrets."""
    own = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
    return [word.partition("=")[0] for word in own if word.startswith("-")]


def _exit_for(error: Exception, *, debug: bool) -> None:
    # By what they can say, not by class: typer brings a click of its own, or uses the installed one, by version.
    kind = type(error).__name__
    if kind == "Abort":
        sys.exit(Exit.INTERRUPTED)
    if kind == "Exit":
        sys.exit(getattr(error, "exit_code", Exit.OK))
    say = getattr(error, "format_message", None)
    if say is not None:
        context = getattr(error, "ctx", None)
        line = context.command_path if context is not None else "raydebug"
        failure = RaydebugError(
            say().rstrip("."),
            cause=f"the command line: {' '.join([line, *_options_given()])}",
            fix=f"see `{line} --help`",
            code="usage",
            exit_code=Exit.USAGE,
        )
        render.error(failure, as_json="--json" in sys.argv)
        sys.exit(Exit.USAGE)
    if debug:
        raise error
    failure = RaydebugError(
        f"raydebug itself failed: {kind}: {error}",
        cause="this is a fault of raydebug's own",
        fix="run it again with --debug and report what it prints",
        code="internal",
    )
    render.error(failure, as_json="--json" in sys.argv)
    sys.exit(Exit.FAILED)
