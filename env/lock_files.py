"""Write a lock from what decides its contents, and hold a lock against that."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from raydebug.errors import UsageError
from raydebug.settings.files import write_named
from raydebug.settings.flavours import HEADER_FIELDS, TITLE, Lock, digest, normalise, plain_text, read_lock, unreadable


def read_inputs(flavour: str, env: Path, dependencies: Iterable[str] = (), options: Iterable[str] = ()) -> list[str]:
    """Return every line that decides what a flavour's lock holds; comments and blank lines decide nothing.

    Args:
        flavour: which `<flavour>.in`, with the files it includes and its `<flavour>.overrides`.
        env: the folder of the pins.
        dependencies: raydebug's own dependencies, from pyproject.toml.
        options: further options of the resolver, such as the Python version.

    Raises:
        RaydebugError: `lock.unreadable`, a file is missing or is not plain text.
    """
    lines = [*(f"option {option}" for option in options), *(f"project {line}" for line in sorted(dependencies))]
    lines += _meaning(env / f"{flavour}.in")
    for extra in (env / f"{flavour}.overrides", env / "uv.toml"):
        if extra.exists():
            lines += [f"{extra.name} {line}" for line in _meaning(extra)]
    return lines


def asked_pins(lines: Iterable[str]) -> dict[str, str]:
    """Return the exact pins among the lines of `read_inputs`: normalised name -> version."""
    found = {}
    for line in lines:
        if pin := re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", line):
            found[normalise(pin[1])] = pin[2]
    return found


def write_lock(path: Path, *, flavour: str, python: str, inputs: Iterable[str], body: str) -> None:
    """Write a lock with its header, in one step."""
    fields = {"flavour": flavour, "python": python, "inputs": digest(inputs), "body": digest(body.splitlines())}
    header = "".join(f"# {name}: {fields[name]}\n" for name in HEADER_FIELDS)
    write_named(path, f"{TITLE}\n{header}{body}", mode=None)


def verify_lock(path: Path, inputs: Iterable[str] | None = None) -> Lock:
    """Read a lock and hold it against what it was made from.

    Args:
        path: the lock.
        inputs: the lines of `read_inputs`; None where they are not at hand (an installed raydebug).

    Raises:
        RaydebugError: `lock.edited`, its lines are not those that were made; `lock.stale`, its inputs have changed;
            and what `read_lock` raises.
    """
    lock = read_lock(path)
    if lock.body_now != lock.body:
        raise UsageError(
            f"{path} was edited by hand",
            cause=f"its pins and hashes have {_short(lock.body_now)}, its header says {_short(lock.body)}",
            fix=f"git checkout -- {path}; to change a pin, change {path.with_suffix('.in').name} and run: nox -s lock",
            code="lock.edited",
        )
    if inputs is not None and (now := digest(inputs)) != lock.inputs:
        raise UsageError(
            f"{path} no longer fits what it was made from",
            cause=f"{path.with_suffix('.in').name}, a file it includes, or pyproject.toml's dependencies changed: "
            f"they have {_short(now)}, the lock says {_short(lock.inputs)}",
            fix="nox -s lock",
            code="lock.stale",
        )
    return lock


def _meaning(path: Path, seen: frozenset[Path] = frozenset()) -> list[str]:
    lines = []
    for number, raw in enumerate(plain_text(path).split("\n"), start=1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        include, _, target = line.partition(" ")
        if include == "-r":
            included = path.parent / target
            if included in seen | {path}:
                raise unreadable(path, f"line {number}: {target} includes itself")
            lines += _meaning(included, seen | {path})
        elif include == "-c":
            lines += [f"-c {constraint}" for constraint in _meaning(path.parent / target)]
        elif line:
            lines.append(line)
    return lines


def _short(sha256: str) -> str:
    return sha256[:19]
