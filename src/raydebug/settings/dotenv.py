"""Check the .env that docker compose reads: compose itself names no line, or accepts invalid values."""

from __future__ import annotations

import re
from pathlib import Path

from raydebug.errors import UsageError
from raydebug.settings.debugger import MODES
from raydebug.settings.files import NotPlainText, decode, line_of, read_bounded
from raydebug.settings.flavours import FLAVOURS

ENV_FILE_BYTES_MAX = 64 * 1024
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"\d+"), "a whole number"
_SIZE = re.compile(r"\d+(\.\d+)?\s*([kmgt]i?)?b?", re.IGNORECASE), "a size, such as 10gb"
_PORT = re.compile(r"[1-9]\d{0,4}"), "a port"
_DEBUGGER = re.compile("|".join(MODES)), f"one of {', '.join(MODES)}"
_FLAVOUR = re.compile("|".join(FLAVOURS)), f"one of {', '.join(FLAVOURS)}"
# What docker-compose.yml makes of them; .env.example lists all. Unknown keys may be another program's.
_KINDS = {
    **dict.fromkeys(("DASHBOARD_PORT", "GATEWAY_PORT"), _PORT),
    **dict.fromkeys(("RAYDEBUG_UID", "RAYDEBUG_GID", "WORKERS", "PIDS_LIMIT"), _NUMBER),
    **dict.fromkeys(("OBJECT_STORE_BYTES", "HEAD_OBJECT_STORE_BYTES"), _NUMBER),
    **dict.fromkeys(("HEAD_CPUS", "HEAD_GPUS", "WORKER_CPUS", "WORKER_GPUS"), _NUMBER),
    **dict.fromkeys(("SHM_SIZE", "HEAD_SHM_SIZE", "TMP_SIZE", "HEAD_MEMORY", "WORKER_MEMORY"), _SIZE),
    "RAYDEBUG_DEBUGGER": _DEBUGGER,
    "RAYDEBUG_FLAVOUR": _FLAVOUR,
}


def check_env_file(path: Path) -> dict[str, str]:
    """Check a .env, if there is one, and return its variables, without substitution.

    A BOM, CRLF, quotes, comments and unknown keys mean what they mean to compose.

    Raises:
        RaydebugError: it cannot be read, or a line of it cannot be (exit 2); names the line.
    """
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        raw = read_bounded(path, bytes_max=ENV_FILE_BYTES_MAX, what="a .env")
        if (at := raw.find(b"\0")) >= 0:
            raise NotPlainText("it has a NUL byte", line_of(raw, at))
        text = decode(raw).removeprefix("\ufeff")
        first: dict[str, int] = {}
        values: dict[str, str] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            if (pair := _check_line(line, number)) is None:
                continue
            key, value = pair
            if key in first:
                raise NotPlainText(f"{key} is set again, first on line {first[key]}", number)
            first[key], values[key] = number, value
    except NotPlainText as error:
        raise UsageError(
            f"cannot use {path}",
            cause=str(error),
            fix="correct it: KEY=VALUE, one a line, no quotes; .env.example lists the keys",
            code="env.invalid",
        ) from error
    return values


def _check_line(line: str, number: int) -> tuple[str, str] | None:
    """Return the key and the value of a line; None where it has none."""
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    key, equals, value = line.removeprefix("export ").partition("=")
    key, value = key.strip(), value.strip()
    if not equals:
        raise NotPlainText("it is not KEY=VALUE", number)  # its text may be a pasted secret
    if not _KEY.fullmatch(key):
        raise NotPlainText("a key has letters, digits and '_' alone", number)
    quote = value[:1]
    if quote in ("'", '"'):
        end = value.find(quote, 1)
        if end < 0:
            raise NotPlainText(f"the quote of {key} does not end on its line", number)
        value = value[1:end]
    else:
        value = re.sub(r"(^|\s)#.*", "", value).strip()
    kind, words = _KINDS.get(key, (None, ""))
    if kind is not None and value and "$" not in value and not kind.fullmatch(value):
        raise NotPlainText(f"{key}={value[:80]} is not {words}", number)
    return key, value
