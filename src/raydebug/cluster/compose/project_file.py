"""The compose file of a project that `up` merges into ours: what it asks for that `--mount` refuses too.

Somebody else may have written it: a cloned project brings it along. It may give containers more memory, variables and
folders. Whatever else it changes would give them rights on this machine, or run another program in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raydebug.cluster.compose.plan import OVERRIDE_NAMES, why_no_mount
from raydebug.errors import UsageError
from raydebug.settings.files import compose_dir

# What a service may have otherwise than in our files; `environment` and `volumes` are looked at one by one.
# Source: https://github.com/compose-spec/compose-spec/blob/main/05-services.md.
FREE = frozenset({
    "cpu_count", "cpu_percent", "cpu_period", "cpu_quota", "cpu_shares", "cpus", "cpuset", "deploy", "mem_limit",
    "mem_reservation", "mem_swappiness", "memswap_limit", "pids_limit", "shm_size", "stop_grace_period", "ulimits",
})  # fmt: skip
# Variables that say who may connect, and where to.
_KEPT_VARIABLES = ("RAY_AUTH", "RAYDEBUG_", "HEAD_ADDRESS", "NODE_ADDRESS")


def of_project(files: list[str]) -> list[str]:
    """Return those of a cluster's compose files that are the project's: an override file outside of our folder."""
    return [file for file in files if Path(file).name in OVERRIDE_NAMES and Path(file).parent != compose_dir()]


def mounts_of(ours: Mapping[str, Any], merged: Mapping[str, Any]) -> list[str]:
    """Return the folders of this machine that the project's file gives to containers. Pure."""
    sources = {volume["source"] for _, volume in _new_volumes(ours, merged) if volume.get("type") == "bind"}
    return sorted(sources)


def foreign_rights(ours: Mapping[str, Any], merged: Mapping[str, Any]) -> list[str]:
    """Return what the project's file asks for that only the user may give, in words. Pure.

    Both are output of `docker compose config --format json`, without the project's file and with it.
    """
    found = [f"another service '{name}'" for name in merged["services"] if name not in ours["services"]]
    for name, mine in ours["services"].items():
        service = merged["services"].get(name, {})
        changed = [key for key in {**mine, **service} if mine.get(key) != service.get(key)]
        kept = [key for key in changed if key not in FREE | {"environment", "volumes"}]
        found += [f"{name}: {key} {str(service.get(key))[:80]}" for key in kept]
        before, after = mine.get("environment") or {}, service.get("environment") or {}
        for variable in sorted({**before, **after}):
            if variable.startswith(_KEPT_VARIABLES) and before.get(variable) != after.get(variable):
                found.append(f"{name}: {variable}={after.get(variable, '')}")
    for name, volume in _new_volumes(ours, merged):
        why = _why_no_volume(volume)
        if why:
            found.append(f"{name}: {volume.get('source')}:{volume['target']} ({why})")
    for kind in ("volumes", "networks", "secrets", "configs"):
        mine = ours.get(kind) or {}
        for name, one in (merged.get(kind) or {}).items():
            plain = kind == "volumes" and name not in mine and set(one or {}) <= {"name"}
            if one != mine.get(name) and not plain:
                found.append(f"{kind} {name}")
    return found


def refuse_foreign_rights(files: list[str], asked: list[str]) -> None:
    """Refuse what `foreign_rights` has found in a project's compose files; if that is nothing, do nothing.

    Raises:
        RaydebugError: something is asked for (exit 2).
    """
    if asked:
        raise UsageError(
            f"{', '.join(files)} asks for more than `--mount` gives",
            cause="; ".join(asked),
            fix="read that file; `raydebug up --yes` merges it all the same, COMPOSE_FILE names other files",
            code="compose.foreign-rights",
        )


def _new_volumes(ours: Mapping[str, Any], merged: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, service in merged["services"].items():
        known = ours["services"].get(name, {}).get("volumes") or []
        yield from ((name, volume) for volume in service.get("volumes") or [] if volume not in known)


def _why_no_volume(volume: Mapping[str, Any]) -> str | None:
    if volume.get("type") == "bind":
        return why_no_mount(volume["source"], volume["target"])
    if volume.get("type") in ("volume", "tmpfs"):
        return why_no_mount(None, volume["target"])
    return f"a mount of the type {volume.get('type')}"
