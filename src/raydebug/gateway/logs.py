"""The gateway's log and its audit log: a record is one line, whatever a peer sent; their rate and size are bounded.

A record caused by a peer without the token has the peer's address as attribute `stranger` (`extra={"stranger": ...}`).
The audit log says who did what to which pause (S31): one line each, never an expression, never a value.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import time
from collections import OrderedDict
from pathlib import Path

from raydebug import render
from raydebug.gateway.board import Pause

AUDIT = "raydebug.gateway.audit"
LINE_CHARS = 4096
STDERR = 2
LOG_BYTES, LOG_FILES = 10 * 1024 * 1024, 3
AUDIT_DAYS = 30
# Burst in lines, then lines per second. A peer without the token gets few: the audit log is kept for a month.
PER_STRANGER, ALL_STRANGERS, ALL_PEERS = (20, 0.1), (100, 0.2), (5000, 200.0)
MAX_STRANGERS = 1000


class OneLine(logging.Formatter):
    """Formats a record as one line: control characters, bidi marks and lone surrogates are escaped.

    The further lines of a traceback are indented, so that none of them can pass for a record.
    """

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = time.gmtime  # type: ignore[assignment]  # typeshed leaves out its argument

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = render.visible(record.getMessage(), keep="")
        if len(message) > LINE_CHARS:
            message = f"{message[:LINE_CHARS]}... ({len(message) - LINE_CHARS} characters more)"
        lines = [f"{self.formatTime(record)} {record.levelname} {message}"]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        return "\n    ".join(render.visible(line, keep="")[: 2 * LINE_CHARS] for line in lines)


class Bucket:
    """A token bucket for lines.

    Args:
        burst: lines at once.
        per_s: lines per second after the burst.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._left, self._at = burst, time.monotonic()

    def take(self) -> bool:
        """Take one line from the bucket; return whether there was one."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Rate(logging.Handler):
    """Limits the rate of records: per peer without the token, for all such peers, and for all peers.

    Args:
        handlers: get the records; after dropped records they first get a record with the number of these.
    """

    def __init__(self, handlers: list[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self._all, self._strangers = Bucket(*ALL_PEERS), Bucket(*ALL_STRANGERS)
        self._by_stranger: OrderedDict[str, Bucket] = OrderedDict()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record, or drop it."""
        stranger = getattr(record, "stranger", None)
        if (stranger is not None and not self._may_log(str(stranger))) or not self._all.take():
            self._dropped += 1
            return
        if self._dropped:
            about = {"name": AUDIT, "levelname": "WARNING", "levelno": logging.WARNING}
            text = f"audit: dropped lines={self._dropped} reason=too many a second"
            self._handle(logging.makeLogRecord({**about, "msg": text}))
            self._dropped = 0
        self._handle(record)

    def _handle(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)

    def _may_log(self, stranger: str) -> bool:
        bucket = self._by_stranger.pop(stranger, None) or Bucket(*PER_STRANGER)
        self._by_stranger[stranger] = bucket
        if len(self._by_stranger) > MAX_STRANGERS:
            self._by_stranger.popitem(last=False)
        return bucket.take() and self._strangers.take()


class _Rotating(logging.handlers.RotatingFileHandler):
    """Rotates gateway.log and points stderr at the new file, for the traceback that Python prints at a crash."""

    def doRollover(self) -> None:  # noqa: N802 - logging's own name
        super().doRollover()
        if self.stream is not None:
            os.dup2(self.stream.fileno(), STDERR)


def set_up(log_file: Path | None = None, audit_file: Path | None = None) -> None:
    """Send the log to stderr or to a file, and audit lines to a second file as well.

    Args:
        log_file: rotated at LOG_BYTES; None for stderr, whose size the container engine limits.
        audit_file: rotated at midnight, kept for AUDIT_DAYS.
    """
    os.umask(0o077)
    handlers: list[logging.Handler] = [
        _Rotating(log_file, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1) if log_file else logging.StreamHandler()
    ]
    if audit_file is not None:
        audit_file.parent.mkdir(parents=True, exist_ok=True)
        kept = logging.handlers.TimedRotatingFileHandler(audit_file, when="midnight", backupCount=AUDIT_DAYS, utc=True)
        kept.addFilter(lambda record: record.name == AUDIT)
        handlers.append(kept)
    for handler in handlers:
        handler.setFormatter(OneLine())
    logging.basicConfig(level=logging.INFO, handlers=[Rate(handlers)])


def audit(deed: str, client: str, pause: Pause | None = None, *, stranger: object = None, **more: object) -> None:
    """Write an audit line.

    Args:
        deed: `ask`, `attach`, `detach`, `steal`, `resume`, `watch` or `refuse`.
        client: who did it, as `name_client` writes it.
        pause: the pause concerned.
        stranger: the address of a client without the token: the number of its lines is limited.
        more: further facts, none of them a value of the process.
    """
    facts = [] if pause is None else [f"pause={pause.id}", f'process="{_quoted(pause.process.title)}"']
    facts += [f"{name}={_quoted(str(value))}" for name, value in more.items()]
    host = stranger[0] if isinstance(stranger, tuple) else stranger
    line = " ".join([deed, *facts, f"client={client}"])
    logging.getLogger(AUDIT).info("audit: %s", line, extra={"stranger": host})


def name_client(name: str, peer: object) -> str:
    """Return a client's name and address as one word of a log line; the client chooses the name."""
    address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"
    return f'"{_quoted(name)}"@{address}'


def _quoted(text: str) -> str:
    return render.visible(text, keep="").replace('"', "'")
