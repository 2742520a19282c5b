"""The command line: one file per group of verbs; parse, call, render. `main` holds the single rescue."""

from __future__ import annotations

import difflib
import errno
import itertools
import re
import sys

from raydebug import render
from raydebug.errors import Exit, RaydebugError, UsageError

# The modules of the extra raydebug[cli]; each is imported where it is used.
OF_CLI = (
    *("typer", "rich", "prompt_toolkit", "pygments", "httpx", "websockets", "yaml", "platformdirs", "psutil"),
    *("pynvml", "re2", "docker"),
)
# Verbs of other programs, and what does that here.
MEANT = {"jobs": "job list", "kill": "job stop", "list": "ps", "start": "up", "status": "ps", "stop": "down"}
# What no program can help, and what its user can do.
MACHINE_LIMITS = {
    errno.EMFILE: "raise the limit of open files of this shell: ulimit -n 4096",
    errno.ENFILE: "the machine has no more open files: `lsof` lists who has them",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some room there, or XDG_STATE_HOME=DIR elsewhere"),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "end other programs, or raise this shell's limits (ulimit -a)"),
}


def main() -> None:
    """Run `raydebug` and exit; every failure that a user can act on becomes three lines."""
    render.take_streams()
    try:
        sys.exit(_run(sys.argv[1:]))
    except render.OutputLost as lost:
        if lost.errno == errno.EPIPE:  # `raydebug ... | head`: as a shell reports a program that SIGPIPE has ended
            sys.exit(Exit.PIPE)
        failure = RaydebugError(
            "standard output cannot be written",
            cause=str(lost),
            fix="write it to a file or a program that takes all of it",
            code="output.lost",
        )
        render.error(failure)
        sys.exit(failure.exit_code)


def _run(arguments: list[str]) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug, as_json = "--debug" in own, "--json" in own
    if debug:
        import logging

        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(name)s: %(message)s")
    words = [word for at, word in enumerate(arguments) if not (word == "--debug" and at < len(own))]
    try:
        code = _call(words)
    except RaydebugError as failure:
        render.error(failure, as_json=as_json)
        if debug:
            raise
        return failure.exit_code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the single rescue
        return _code_of(error, debug=debug, as_json=as_json)
    return code if isinstance(code, int) else Exit.OK


def _call(words: list[str]) -> object:
    """Call the verb that the words name; without a verb, or with a group alone, print help."""
    from raydebug.cli.app import app_for

    app = app_for(words)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
        app = app_for(words)
    if not words or (len(words) == 1 and app.registered_groups and words[0] == app.registered_groups[0].name):
        words = [*words, "--help"]
    return app(args=words, prog_name="raydebug", standalone_mode=False)


def _code_of(error: Exception, *, debug: bool, as_json: bool) -> int:
    """Report an error of click, or one that nobody has foreseen, and return the exit code."""
    # By what they can say, not by class: typer brings a click of its own, or uses the installed one, by version.
    kind = type(error).__name__
    if kind == "Abort":
        return Exit.INTERRUPTED
    if kind == "Exit":
        return int(getattr(error, "exit_code", Exit.OK))
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in OF_CLI:
        from raydebug.settings.flavours import install_raydebug

        line = f"{sys.executable} -m {install_raydebug('cli')}"
        missing = UsageError(
            "the command line of raydebug is not installed here",
            cause=f"{sys.executable} has no module '{error.name}'; the wheel alone has what a training needs",
            fix=f"in raydebug's checkout: {line}; or beside it: uv tool install '.[cli]'",
            code="cli.missing",
        )
        render.error(missing, as_json=as_json)
        return Exit.USAGE
    say = getattr(error, "format_message", None)
    if say is not None:
        context = getattr(error, "ctx", None)
        line = context.command_path if context is not None else "raydebug"
        what, fix = say().rstrip("."), f"see `{line} --help`"
        verbs = [*getattr(getattr(context, "command", None), "commands", ())]
        if verbs and (unknown := re.match(r"No such command '([^']*)'", what)):
            what = f"`{line}` has no verb '{unknown[1]}'"
            near = [MEANT[unknown[1]]] if unknown[1] in MEANT else difflib.get_close_matches(unknown[1], verbs, 1)
            fix = f"`{line} {near[0]}`, or {fix}" if near else fix
        elif context is not None and not verbs and "COMMAND" in context.get_usage() and "--" not in sys.argv:
            fix = f"put the command after `--`: `{line} -- python ...`; {fix}"  # click has read it as ours
        own = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
        options = [word.partition("=")[0] for word in own if word.startswith("-")]  # values may hold secrets
        usage = UsageError(what, cause=f"the command line: {' '.join([line, *options])}", fix=fix)
        render.error(usage, as_json=as_json)
        return Exit.USAGE
    if debug:
        raise error
    if isinstance(error, OSError) and error.errno in MACHINE_LIMITS:
        what = "this machine gives raydebug no more of what it needs"
        failure = RaydebugError(what, cause=str(error), fix=MACHINE_LIMITS[error.errno], code="machine.limit")
    else:
        failure = RaydebugError(
            f"raydebug itself failed: {kind}: {error}",
            cause="this is a fault of raydebug's own",
            fix="run it again with --debug and report what it prints",
            code="internal",
        )
    render.error(failure, as_json=as_json)
    return Exit.FAILED
