"""`docker compose` for a cluster: its command, the variables of its files, its containers."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from raydebug import process
from raydebug.cluster import audit_log
from raydebug.cluster.compose import engine
from raydebug.cluster.compose.engine import Container
from raydebug.cluster.state import DEFAULT_NAME, Cluster
from raydebug.errors import UsageError
from raydebug.protocol import variables

ENV_FILE_VARIABLE = "RAYDEBUG_ENV_FILE"  # docker-compose.yml
UP_TIMEOUT_S = 240.0
DOWN_TIMEOUT_S = 60.0


def project_of(name: str) -> str:
    """Return the compose project of a cluster."""
    return f"raydebug-{name}"


def compose_argv(cluster: Cluster, *arguments: str) -> list[str]:
    """Return a `docker compose` command for a cluster."""
    # A user's file that is gone must not keep `down` from working.
    files = [file for file in cluster.files if arguments[:1] != ("down",) or Path(file).is_file()]
    chosen = [option for file in files for option in ("--file", file)]
    return ["docker", "compose", "--project-name", project_of(cluster.name), *chosen, *arguments]


def compose_variables(cluster: Cluster) -> dict[str, str]:
    """Return the variables that docker-compose.yml reads. Pure."""
    logical = {"WORKER_CPUS": cluster.cpus, "WORKER_GPUS": cluster.gpus}
    uid, _, gid = cluster.user.partition(":")
    return {
        **cluster.settings,
        **{name: str(count) for name, count in logical.items() if count},
        "RAYDEBUG_CLUSTER_ID": cluster.id,
        variables.CLUSTER_NAME: "" if cluster.name == DEFAULT_NAME else cluster.name,
        "RAYDEBUG_FLAVOUR": cluster.flavour,
        "RAYDEBUG_DEBUGGER": cluster.debugger,
        "RAYDEBUG_TOKEN_FILE": str(cluster.token_file),
        "RAYDEBUG_PROJECT": cluster.project,
        "DASHBOARD_PORT": str(cluster.ports["dashboard"]),
        "GATEWAY_PORT": str(cluster.ports["gateway"]),
        "WORKERS": str(cluster.workers),
        "RAYDEBUG_UID": uid,
        "RAYDEBUG_GID": gid,
    }


def _environment(cluster: Cluster, command: str) -> dict[str, str]:
    """Return the environment of a `docker compose` command."""
    environment = {**os.environ, **compose_variables(cluster)}
    if command in ("down", "logs"):  # a file with keys that is gone, or broken, must not keep these from working
        environment[ENV_FILE_VARIABLE] = os.devnull
    return environment


def run_compose(cluster: Cluster, *arguments: str) -> str:
    """Run a `docker compose` command for a cluster and return what it printed.

    Raises:
        CommandFailed: it failed.
    """
    return process.run(
        compose_argv(cluster, *arguments),
        env=_environment(cluster, arguments[0]),
        timeout_s=UP_TIMEOUT_S if arguments[0] == "up" else DOWN_TIMEOUT_S,
        fix="see what the engine says with `docker events`, or run the command with --debug",
    )


def settings_of(cluster: Cluster) -> dict[str, Any]:
    """Return the settings that result from the compose files, .env and the environment.

    Raises:
        RaydebugError: docker compose refuses a value.
    """
    try:
        printed = run_compose(cluster, "config", "--format", "json")
    except process.CommandFailed as failure:
        raise UsageError(
            "docker compose cannot read the settings of the containers",
            cause=failure.cause,
            fix="correct the value that it names, in your environment or .env (.env.example lists them)",
            code="compose.settings",
        ) from failure
    lines = printed.splitlines()  # its warnings come first
    document: dict[str, Any] = json.loads("\n".join(lines[lines.index("{") :]))
    return document


def show_logs(cluster: Cluster, service: str | None, *, follow: bool) -> int:
    """Run `docker compose logs` for a cluster, and return its exit code."""
    arguments = ["logs", *(["--follow"] if follow else []), *([service] if service else [])]
    if cluster.kind == "by-hand":
        return process.hand_over(["docker", "compose", "--project-name", cluster.name, *arguments])
    return process.hand_over(compose_argv(cluster, *arguments), env=_environment(cluster, "logs"))


def keep_audit_lines(cluster: Cluster) -> None:
    """Copy the gateway's audit lines from Docker's log, which ends with the container, to the kept ones."""
    with contextlib.suppress(process.CommandFailed):  # without an engine nothing is lost, and `down` reports it
        log = run_compose(cluster, "logs", "--no-color", "--no-log-prefix", "gateway")
        audit_log.keep(cluster.name, log.splitlines())


def containers(cluster: Cluster) -> list[Container]:
    """Return the cluster's containers."""
    return engine.connect().containers(project_of(cluster.name))


def programs_of_head(cluster: Cluster) -> list[str]:
    """Return the command lines of the processes in the head's container.

    Raises:
        RaydebugError: it does not run.
    """
    (head,) = (c for c in containers(cluster) if c.service == "head")
    return engine.connect().programs(head)


def explain(container: Container) -> str | None:
    """Return what is wrong with a container, with its entrypoint's own reason; None if nothing is."""
    if container.is_ready:
        return None
    condition = container.health if container.state == "running" else container.state
    code = "" if container.exit_code is None else f" (exit code {container.exit_code})"
    why = engine.connect().gave_up_because(container)
    if not why and container.exit_code == 0:  # an engine that was killed leaves it so, whatever its policy
        why = "it was stopped, alone or with the engine; `raydebug up` starts it again"
    return f"its container is {condition}{code}" + (f": {why}" if why else "")
