"""The life of a cluster in containers: brought up whole or not at all, mended, taken down."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raydebug import process
from raydebug.cluster import engine, interrupts, ports, preflight, state
from raydebug.cluster.compose import IMAGE_USER, project_of, run_compose, settings_of
from raydebug.cluster.engine import Engine
from raydebug.cluster.place import IMAGE_PYTHON
from raydebug.cluster.readiness import look_patiently, wait_until_ready
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import Exit, RaydebugError
from raydebug.settings.dotenv import check_env_file
from raydebug.settings.paths import compose_dir

DOWN_TRIES = 3
STOP_GRACE_S = 3
# What docker compose says when its engine goes away (2.26, engine 26.1).
ENGINE_WENT = ("Cannot connect to the Docker daemon", "error during connect", "EOF", "connection reset by peer")
PUBLISHED = ("dashboard", "gateway")


@dataclass(frozen=True)
class Wish:
    """What the user asked `up` for; None leaves the choice to us."""

    name: str = state.DEFAULT_NAME
    flavour: str | None = None
    workers: int = 1
    cpus: int | None = None
    gpus: int = 0
    debugger: str = "breakpoint"
    project: Path = Path()
    dashboard_port: int | None = None
    gateway_port: int | None = None


def bring_up(wish: Wish, *, on_phase: Callable[[str], None] = lambda phase: None) -> tuple[Cluster, bool]:
    """Start a cluster of containers and return it when every node is healthy; one that runs is returned as it is.

    Returns:
        The cluster, and whether this call started it.

    Raises:
        RaydebugError: something is missing or taken; nothing is left behind then.
    """
    found = engine.connect_to_change()
    project = project_of(state.check_name(wish.name))
    with state.only_one(wish.name):
        running = state.find_cluster(wish.name)
        ours = found.containers(project) if running is not None else []
        if running is not None and ours:
            if all(one.is_ready for one in ours):
                return running, False
            return _mend(running, found, on_phase), True
        check_env_file(compose_dir() / ".env")
        flavour = preflight.check_machine(found, wish.flavour, wish.workers)
        caches = found.volumes(project)
        try:
            return _begin(wish, flavour, found, on_phase), True
        except BaseException:
            with interrupts.ignored():
                _clear_begun(wish.name, found, caches)
            raise


def _begin(wish: Wish, flavour: str, found: Engine, on_phase: Callable[[str], None]) -> Cluster:
    interrupts.raise_if_pressed()
    cluster = _plan(wish, flavour, found)
    preflight.refuse_small_shared_memory(settings_of(cluster))
    interrupts.raise_if_pressed()
    on_phase("creating containers")
    _create(cluster, found, on_phase)
    wait_until_ready(found, cluster, on_phase)
    interrupts.raise_if_pressed()
    return cluster


def _clear_begun(name: str, found: Engine, caches: list[str]) -> None:
    """Remove what an `up` that failed has made; where the engine is gone, say how to do it later."""
    begun = state.find_cluster(name)
    try:
        if begun is not None:
            take_down(begun)
        project = project_of(name)
        found.remove_volumes([v for v in found.volumes(project) if v not in caches])
    except RaydebugError as failure:
        if failure.code != engine.UNUSABLE:
            raise
        raise RaydebugError(
            f"the Docker engine went away while cluster '{name}' came up",
            cause=failure.cause,
            fix=f"start the engine, then `raydebug down{name_option(name)}` clears away what is there",
            code=engine.UNUSABLE,
            exit_code=Exit.NO_ENGINE,
        ) from failure


def _mend(cluster: Cluster, found: Engine, on_phase: Callable[[str], None]) -> Cluster:
    """Start what has ended of a cluster, and leave what runs; a failure takes nothing down."""
    on_phase("starting what has ended")
    _create(cluster, found, on_phase, "--no-recreate")  # an image built anew must not end a node with its pauses
    wait_until_ready(found, cluster, on_phase)
    return cluster


def take_down(cluster: Cluster) -> list[str]:
    """End a cluster's containers and networks, and forget it; return what would not go. Caches (volumes) stay."""
    left: list[str] = []
    for _ in range(DOWN_TRIES):  # what an interrupted `docker compose up` had asked for may appear after the first
        with contextlib.suppress(process.CommandFailed):
            run_compose(cluster, "down", "--timeout", str(STOP_GRACE_S), "--remove-orphans")
        left = engine.connect().leftovers(project_of(cluster.name))
        if not left:
            state.forget(cluster)
            break
    if left:
        engine.connect_to_change()  # says so where docker compose is what is missing
    return left


def _plan(wish: Wish, flavour: str, found: Engine) -> Cluster:
    folder = state.make_folder(wish.name)
    if not compose_dir().joinpath("docker-compose.yml").is_file():
        raise RaydebugError(
            "docker-compose.yml is missing",
            cause=f"it is not in {compose_dir()}",
            fix="install raydebug from its wheel, or run it from a checkout",
            code="compose.missing-file",
        )
    asked = {"dashboard": wish.dashboard_port, "gateway": wish.gateway_port}
    with state.choosing_ports(wish.name) as taken:
        preflight.refuse_foreign_ports(asked, found)
        chosen = ports.choose_ports(asked, state.remembered_ports(folder), taken, PUBLISHED)
        token = state.make_token(folder)
        if os.getuid() == 0:  # the containers' user has to read it, and nobody else
            os.chown(token, IMAGE_USER, IMAGE_USER)
        cluster = Cluster(
            name=wish.name,
            id=uuid.uuid4().hex,
            kind="compose",
            folder=folder,
            temp_dir=folder,
            python=IMAGE_PYTHON,
            ports=chosen,
            cpus=wish.cpus or 0,
            gpus=wish.gpus,
            debugger=wish.debugger,
            flavour=flavour,
            created=time.time(),
            project=str(wish.project.resolve()),
            workers=wish.workers,
        )
        state.save_cluster(cluster)
    return cluster


def _create(cluster: Cluster, found: Engine, on_phase: Callable[[str], None], *options: str) -> None:
    """Make and start the containers; an engine that restarts meanwhile is waited for, once."""
    argv = ("up", "--detach", "--no-build", "--remove-orphans", *options)
    try:
        run_compose(cluster, *argv)
    except process.CommandFailed as failure:
        if "port is already allocated" in failure.output or "address already in use" in failure.output:
            raise RaydebugError(
                f"a port of cluster '{cluster.name}' was taken just before it started",
                cause=failure.cause,
                fix="run `raydebug up` again, with --dashboard-port 0 --gateway-port 0 to take free ones",
                code="port.taken",
                exit_code=Exit.TAKEN,
            ) from failure
        if not any(words in failure.output for words in ENGINE_WENT):
            raise
        look_patiently(found, cluster, on_phase)
        run_compose(cluster, *argv)
