"""The versions of Ray and debugpy that raydebug is tested with, and the first Ray whose dashboard asks for a token."""

from __future__ import annotations

import re
import tomllib

from raydebug.settings.locks import read_lock
from raydebug.settings.paths import environment_dir

# RAY_AUTH_MODE=token is unknown to older ones: their dashboard and Jobs API answer anyone who can connect.
# Source: ray 2.52.1 _private/authentication/; with 2.49.2 and older /api/jobs/ answers 200 without a token (run).
TOKEN_SINCE = (2, 52)


def tested_range(package: str) -> tuple[str, str]:
    """Return the oldest and the newest version of `ray` or `debugpy` that raydebug is tested with.

    The newest is env/core.lock's, the oldest that of env/compat.toml, which `nox -s compat` runs.
    """
    newest = read_lock(environment_dir() / "core.lock").pins[package]
    releases = tomllib.loads((environment_dir() / "compat.toml").read_text(encoding="utf-8"))[package]
    return min([*releases, newest], key=numbers), newest


def is_tested(package: str, version: str) -> bool:
    """Return whether a version of `ray` or `debugpy` is in the tested range."""
    oldest, newest = tested_range(package)
    return numbers(oldest) <= numbers(version) <= numbers(newest)


def has_token_mode(ray_version: str) -> bool:
    """Return whether this Ray's dashboard can ask for a token.

    >>> has_token_mode("2.52.0"), has_token_mode("2.100"), has_token_mode("2.51.1"), has_token_mode("3.0.0.dev0")
    (True, True, False, True)
    """
    return numbers(ray_version) >= TOKEN_SINCE


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers, to compare: ("2.41.0rc1" -> (2, 41, 0))."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
