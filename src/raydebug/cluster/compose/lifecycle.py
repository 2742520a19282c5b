"""Start a cluster in containers whole or not at all, restart its ended parts, take it down."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raydebug import process, render
from raydebug.cluster import state, up
from raydebug.cluster.compose import engine, preflight
from raydebug.cluster.compose.container_user import choose_user
from raydebug.cluster.compose.engine import Container, Engine
from raydebug.cluster.compose.plan import Given, as_compose, files_for, read_given, sizes_of
from raydebug.cluster.compose.project import (
    ENV_FILE_VARIABLE,
    UP_TIMEOUT_S,
    keep_audit_lines,
    project_of,
    run_compose,
    settings_of,
)
from raydebug.cluster.compose.project_file import foreign_rights, mounts_of, of_project, refuse_foreign_rights
from raydebug.cluster.compose.sizing import Setting
from raydebug.cluster.find import find_cluster
from raydebug.cluster.private_folders import remove_private
from raydebug.cluster.runner import IMAGE_PYTHON
from raydebug.cluster.state import Cluster, name_option
from raydebug.cluster.up import UpOptions
from raydebug.errors import Exit, RaydebugError, TakenError
from raydebug.settings.files import atomic_write, compose_dir, environment_dir
from raydebug.settings.flavours import read_lock

DOWN_TRIES = 3
STOP_GRACE_S = 3
# Output of docker compose when its engine goes away (2.26, engine 26.1).
ENGINE_WENT = ("Cannot connect to the Docker daemon", "error during connect", "EOF", "connection reset by peer")
PUBLISHED = ("dashboard", "gateway")
UP = ("up", "--detach", "--no-build", "--remove-orphans")
REFUSED = 2  # exit code of an entrypoint that does not like what it was given
MOST_RESTARTS = 3
ENGINE_AWAY_S = 20.0  # an engine that restarts is back by then


def bring_up(options: UpOptions, *, on_phase: Callable[[str], None] = lambda phase: None) -> tuple[Cluster, bool]:
    """Start a cluster of containers; return it when all nodes are healthy, and whether this call started it.

    A running one is returned as it is.

    Raises:
        RaydebugError: something is missing or taken; nothing is left behind then.
    """
    found = engine.connect_to_change()
    project = project_of(options.name)
    with up.starting(options, "compose") as running:
        ours = found.containers(project) if running is not None else []
        if running is not None and ours:
            up.refuse_other_ports(options, running)
            if all(container.is_ready for container in ours):
                return running, False
            _look_at_project_file(running, settings_of(running), yes=options.yes)
            on_phase("starting what has ended")  # the others are left; a failure takes nothing down
            _create(running, found, on_phase, "--no-recreate")  # a new image must not end a node with its pauses
            wait_until_ready(found, running, on_phase)
            return running, True
        given = read_given(options.mounts, options.env_file, hf_cache=options.hf_cache)
        remove_private(state.kept_logs(options.name))
        flavour = preflight.check_machine(found, options.flavour, options.workers)
        caches = found.volumes(project)
        with up.undone_unless_whole(lambda: _clear_begun(options.name, found, caches)):
            cluster = _begin(options, given, flavour, found, on_phase)
        return cluster, True


def preview(options: UpOptions) -> tuple[list[Setting], list[str]]:
    """Return the sizes that `up` would choose, and its `docker compose` command; nothing is created."""
    found = engine.connect_to_change()
    given = read_given(options.mounts, options.env_file, hf_cache=options.hf_cache)
    flavour = preflight.flavour_here(found, options.flavour, options.workers)
    _, sizes = sizes_of(found, flavour, given.variables, workers=options.workers, logical_gpus=options.gpus or 0)
    files = [str(file) for file in files_for(flavour, given.variables, options.project)]
    argv = ["docker", "compose", "--project-name", project_of(options.name)]
    argv += [option for file in files for option in ("--file", file)]
    return sizes, [*argv, *UP]


def _begin(options: UpOptions, given: Given, flavour: str, found: Engine, on_phase: Callable[[str], None]) -> Cluster:
    host, sizes = sizes_of(found, flavour, given.variables, workers=options.workers, logical_gpus=options.gpus or 0)
    cluster = _plan(options, given, flavour, {size.name: size.value for size in sizes}, found)
    settings = settings_of(cluster)
    _look_at_project_file(cluster, settings, yes=options.yes)
    preflight.refuse_sizes(settings, host.memory_bytes)
    up.raise_if_interrupted()
    on_phase("creating containers")
    _create(cluster, found, on_phase)
    wait_until_ready(found, cluster, on_phase)
    return cluster


def _look_at_project_file(cluster: Cluster, merged: dict[str, Any], *, yes: bool) -> None:
    """Name the compose file of the project that is merged, before anything starts; refuse what `--mount` refuses."""
    files = of_project(cluster.files)
    if not files:
        return
    ours = settings_of(replace(cluster, files=[file for file in cluster.files if file not in files]))
    mounts = mounts_of(ours, merged)
    render.say(
        f"merging {render.visible(', '.join(files))} of this project"
        + (f"; it mounts {render.visible(', '.join(mounts))}" if mounts else "")
    )
    if not yes:
        refuse_foreign_rights(files, foreign_rights(ours, merged))


def _clear_begun(name: str, found: Engine, caches: list[str]) -> None:
    """Remove what a failed `up` has made; without an engine, explain how to do it later."""
    begun = find_cluster(name)
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
            fix=f"start the engine, then `raydebug down{name_option(name)}` removes what is there",
            code=engine.UNUSABLE,
            exit_code=Exit.NO_ENGINE,
        ) from failure


def take_down(cluster: Cluster) -> list[str]:
    """Remove a cluster's containers, networks and record; return what could not be removed, and why.

    Caches (volumes) stay.
    """
    left: list[str] = []
    why = ""
    keep_audit_lines(cluster)
    for _ in range(DOWN_TRIES):  # containers of an interrupted `docker compose up` may appear after the first
        try:
            run_compose(cluster, "down", "--timeout", str(STOP_GRACE_S), "--remove-orphans")
            why = ""
        except process.CommandFailed as failure:
            why = f" ({failure.cause})"
        left = engine.connect().leftovers(project_of(cluster.name))
        if not left:
            state.forget(cluster)
            break
    if left:
        engine.connect_to_change()  # raises if docker compose is missing
        return [*left[:-1], left[-1] + why]
    found = engine.connect()  # spilled objects, numbers of pauses are useless to the next cluster; caches are not
    ended = ("_spill", "_gateway")
    found.remove_volumes([name for name in found.volumes(project_of(cluster.name)) if name.endswith(ended)])
    return []


def _plan(options: UpOptions, given: Given, flavour: str, sizes: dict[str, str], found: Engine) -> Cluster:
    folder, files = state.make_folder(options.name), files_for(flavour, given.variables, options.project)
    if not compose_dir().joinpath("docker-compose.yml").is_file():
        raise RaydebugError(
            "docker-compose.yml is missing",
            cause=f"it is not in {compose_dir()}",
            fix="install raydebug from its wheel, or run it from a checkout",
            code="compose.missing-file",
        )
    if given.mounts:
        files.append(folder / "mounts.json")
        atomic_write(files[-1], as_compose(given.mounts))
    with up.choosing_ports(options.name) as taken:
        preflight.refuse_foreign_ports(options.ports, found)
        chosen = up.choose_ports(options.ports, up.remembered_ports(folder), taken, PUBLISHED)
        token = state.make_token(folder)
        user = choose_user(options.name, options.project)
        if os.getuid() == 0:  # only the containers' user has to read it
            os.chown(token, *user)
        cluster = Cluster(
            name=options.name,
            id=uuid.uuid4().hex,
            kind="compose",
            folder=folder,
            temp_dir=folder,
            python=IMAGE_PYTHON,
            ports=chosen,
            cpus=options.cpus or 0,
            gpus=options.gpus or 0,
            debugger=options.debugger,
            flavour=flavour,
            ray=read_lock(environment_dir() / f"{flavour}.lock").pins["ray"],
            created=time.time(),
            project=str(options.project.resolve()),
            user="{}:{}".format(*user),
            files=[str(file) for file in files],
            settings=sizes | ({} if given.env_file is None else {ENV_FILE_VARIABLE: str(given.env_file)}),
            workers=options.workers,
        )
        state.save_cluster(cluster)
    return cluster


def _create(cluster: Cluster, found: Engine, on_phase: Callable[[str], None], *flags: str) -> None:
    """Create and start the containers; wait once for an engine that restarts meanwhile."""
    argv = (*UP, *flags)
    try:
        run_compose(cluster, *argv)
    except process.CommandFailed as failure:
        if "port is already allocated" in failure.output or "address already in use" in failure.output:
            raise TakenError(
                f"a port of cluster '{cluster.name}' was taken just before it started",
                cause=failure.cause,
                fix="run `raydebug up` again, with --dashboard-port 0 --gateway-port 0 to take free ones",
                code="port.taken",
            ) from failure
        if not any(words in failure.output for words in ENGINE_WENT):
            raise
        look_patiently(found, cluster, on_phase)
        run_compose(cluster, *argv)


def wait_until_ready(found: Engine, cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    """Return when every container is healthy.

    Raises:
        RaydebugError: a container ended and will end again, or it took too long; with its last output.
    """
    restarts = {c.id: c.restarts for c in look_patiently(found, cluster, on_phase)}

    def look() -> tuple[str, bool]:
        containers = look_patiently(found, cluster, on_phase)
        for container in containers:
            _refuse_ended(cluster.name, container, restarts.get(container.id, 0), found)
        phase = ", ".join(f"{container.service} {container.health or container.state}" for container in containers)
        return phase, bool(containers) and all(container.is_ready for container in containers)

    def keep_logs() -> None:
        with contextlib.suppress(RaydebugError):
            for container in found.containers(project_of(cluster.name)):
                state.keep_log(state.kept_logs(cluster.name) / f"{container.name}.log", found.log_end(container))

    up.wait_until_up(cluster.name, look, on_phase, keep_logs, limit_s=UP_TIMEOUT_S, every_s=0.2)


def _refuse_ended(cluster: str, container: Container, restarts_before: int, found: Engine) -> None:
    # The restart policy starts what has ended again: what an entrypoint refuses, it will refuse then too.
    refused = container.state == "restarting" and container.exit_code == REFUSED
    if container.state in ("exited", "dead") or refused or container.restarts - restarts_before >= MOST_RESTARTS:
        raise RaydebugError(
            f"{container.name} did not start",
            cause=f"it ended with exit code {container.exit_code}: {found.last_words(container)}",
            fix=f"read the logs in {state.kept_logs(cluster)}",
            code="cluster.not-up",
        )


def look_patiently(found: Engine, cluster: Cluster, on_phase: Callable[[str], None]) -> list[Container]:
    """Return the cluster's containers; an engine that restarts is waited for."""
    deadline = time.monotonic() + ENGINE_AWAY_S
    while True:
        up.raise_if_interrupted()
        try:
            return found.containers(project_of(cluster.name))
        except RaydebugError as failure:
            if failure.code != engine.UNUSABLE or time.monotonic() > deadline:
                raise
            on_phase("the Docker engine does not answer; waiting for it")
        time.sleep(1.0)
