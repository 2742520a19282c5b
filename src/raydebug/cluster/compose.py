"""`docker compose` for a cluster: its command, the variables of its files, its containers as the engine has them."""

from __future__ import annotations

import json
import os
from typing import Any

from raydebug import process
from raydebug.cluster import engine
from raydebug.cluster.engine import Container
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.settings.paths import compose_dir

UP_TIMEOUT_S = 240.0
DOWN_TIMEOUT_S = 60.0
IMAGE_USER = 1000  # Dockerfile
SERVICES = ("head", "worker", "gateway")


def project_of(name: str) -> str:
    """Return the compose project of a cluster."""
    return f"raydebug-{name}"


def compose_argv(cluster: Cluster, *arguments: str) -> list[str]:
    """Return a `docker compose` command for a cluster. Pure."""
    folder = compose_dir()
    files = ["docker-compose.yml"] + ([] if cluster.flavour == "cuda" else ["docker-compose.cpu.yml"])
    chosen = [option for file in files for option in ("--file", str(folder / file))]
    return ["docker", "compose", "--project-name", project_of(cluster.name), *chosen, *arguments]


def compose_variables(cluster: Cluster) -> dict[str, str]:
    """Return the variables that docker-compose.yml reads. Pure."""
    logical = {"WORKER_CPUS": cluster.cpus, "WORKER_GPUS": cluster.gpus}
    return {
        **{name: str(count) for name, count in logical.items() if count},
        "RAYDEBUG_CLUSTER_ID": cluster.id,
        "RAYDEBUG_FLAVOUR": cluster.flavour,
        "RAYDEBUG_DEBUGGER": cluster.debugger,
        "RAYDEBUG_TOKEN_FILE": str(cluster.token_file),
        "RAYDEBUG_PROJECT": cluster.project,
        "DASHBOARD_PORT": str(cluster.ports["dashboard"]),
        "GATEWAY_PORT": str(cluster.ports["gateway"]),
        "WORKERS": str(cluster.workers),
        "RAYDEBUG_UID": str(_container_user(os.getuid())),
        "RAYDEBUG_GID": str(_container_user(os.getgid())),
    }


def _container_user(mine: int) -> int:
    """Return the uid (or gid) that containers run as: the caller's own, and never root."""
    return mine or IMAGE_USER


def run_compose(cluster: Cluster, *arguments: str) -> str:
    """Run a `docker compose` command for a cluster and return what it printed.

    Raises:
        CommandFailed: it failed.
    """
    return process.run(
        compose_argv(cluster, *arguments),
        env={**os.environ, **compose_variables(cluster)},
        timeout_s=UP_TIMEOUT_S if arguments[0] == "up" else DOWN_TIMEOUT_S,
        fix="see what the engine says with `docker events`, or run the command with --debug",
    )


def settings_of(cluster: Cluster) -> dict[str, Any]:
    """Return what the compose files, .env and the environment amount to.

    Raises:
        RaydebugError: docker compose refuses a value.
    """
    try:
        printed = run_compose(cluster, "config", "--format", "json")
    except process.CommandFailed as failure:
        raise RaydebugError(
            "docker compose cannot read the settings of the containers",
            cause=failure.cause,
            fix="mend the value that it names, in your environment or .env (.env.example lists them)",
            code="compose.settings",
            exit_code=Exit.USAGE,
        ) from failure
    lines = printed.splitlines()  # its warnings come first
    document: dict[str, Any] = json.loads("\n".join(lines[lines.index("{") :]))
    return document


def show_logs(cluster: Cluster, service: str | None, *, follow: bool) -> int:
    """Show what the containers said, by `docker compose logs`, and return its exit code.

    Raises:
        RaydebugError: there is no such service.
    """
    if service not in (None, *SERVICES):
        raise RaydebugError(
            f"there is no service '{service}'",
            cause=f"the services are: {', '.join(SERVICES)}",
            fix="raydebug logs head",
            code="service.unknown",
            exit_code=Exit.USAGE,
        )
    wanted = [*(["--follow"] if follow else []), *([service] if service else [])]
    environment = {**os.environ, **compose_variables(cluster)}
    return process.hand_over(compose_argv(cluster, "logs", *wanted), env=environment)


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
    """Return what is wrong with a container, in words, with its entrypoint's own; None where nothing is."""
    if container.is_ready:
        return None
    condition = container.health if container.state == "running" else container.state
    code = "" if container.exit_code is None else f" (exit code {container.exit_code})"
    why = engine.connect().gave_up_because(container)
    return f"its container is {condition}{code}" + (f": {why}" if why else "")
