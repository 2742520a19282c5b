"""The three-line error (what failed, why, what to do) and the exit codes it maps to."""

from __future__ import annotations

from enum import IntEnum

from raydebug.protocol.secrets import scrubbed


class Exit(IntEnum):
    """Exit codes of every verb; `raydebug run` returns the job's own code instead."""

    OK = 0
    FAILED = 1
    USAGE = 2
    TAKEN = 3
    SESSION_LOST = 4
    NO_ENGINE = 5
    TIMEOUT = 124
    INTERRUPTED = 130
    PIPE = 141


class RaydebugError(Exception):
    """A failure that a user can act on; its texts are without secrets, as they quote commands, logs and other programs.

    Args:
        what: what failed, with the value; no full stop.
        cause: the command, variable or file, and what it said.
        fix: one command or change that solves it.
        code: a stable word for scripts, such as `cluster.not-found`.
        exit_code: what the process exits with.
    """

    def __init__(self, what: str, *, cause: str, fix: str, code: str, exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(scrubbed(what))
        self.what, self.cause, self.fix = scrubbed(what), scrubbed(cause), scrubbed(fix)
        self.code = code
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"error: {self.what}\ncause: {self.cause}\nfix: {self.fix}"

    def as_json(self) -> dict[str, dict[str, str]]:
        """Return the document that `--json` prints for this error."""
        return {"error": {"code": self.code, "message": self.what, "cause": self.cause, "fix": self.fix}}

    @classmethod
    def of_json(cls, document: dict[str, dict[str, str]], exit_code: Exit = Exit.FAILED) -> RaydebugError:
        """Return the error in a document of `as_json`.

        Raises:
            KeyError, TypeError: there is none in it.
        """
        given = document["error"]
        texts = {name: given[name] for name in ("cause", "fix", "code")}
        return RaydebugError(given["message"], **texts, exit_code=exit_code)


class UsageError(RaydebugError):
    """A failure that the user's command, files or variables cause before anything is done; its exit code is 2."""

    def __init__(self, what: str, *, cause: str, fix: str, code: str = "usage") -> None:
        super().__init__(what, cause=cause, fix=fix, code=code, exit_code=Exit.USAGE)


class TakenError(RaydebugError):
    """A failure because a port, a name or room is taken by something else; its exit code is 3."""

    def __init__(self, what: str, *, cause: str, fix: str, code: str) -> None:
        super().__init__(what, cause=cause, fix=fix, code=code, exit_code=Exit.TAKEN)
