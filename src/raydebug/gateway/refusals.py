"""What the gateway says no to, with a code and a fix: one wording for every client."""

from __future__ import annotations

WRONG_TOKEN = "auth.wrong-token"  # noqa: S105 - a code, not a token
LOOK = "list the pauses with `raydebug paused`"


class Refused(Exception):
    """A request that cannot be; `code` and `fix` are for the client's error message."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code = code
        self.fix = fix


def wrong_token() -> Refused:
    """Return the refusal of whoever does not hold this cluster's token."""
    return Refused(WRONG_TOKEN, "the token is not this cluster's", "take the token file of `raydebug ps`")


def not_proven(command: str) -> Refused:
    """Return the refusal of a request that came before the token."""
    return Refused("auth.first", f"'{command}' before 'attach'", "send 'attach' with the token")


def process_gone() -> Refused:
    """Return the refusal of a request to a process that is no more."""
    return Refused("pause.gone", "the process has ended", LOOK)


def unknown(command: str) -> Refused:
    """Return the refusal of a request that nobody may send to a process."""
    return Refused("request.unknown", f"'{command}' is not offered here", "leave it out")


def malformed(why: str) -> Refused:
    """Return the refusal of a request that is not as the protocol has it."""
    return Refused("request.malformed", f"the request is malformed: {why}", "send it as the protocol has it")
