"""Clusters in containers: lifecycle by `docker compose`, everything that is looked at by the docker SDK (engine.py)."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug import process
from raydebug.cluster import engine, interrupts, ports, preflight, state
from raydebug.cluster.engine import Container, Engine
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.settings.dotenv import check_env_file
from raydebug.settings.paths import compose_dir

UP_TIMEOUT_S = 240.0
DOWN_TIMEOUT_S = 60.0
DOWN_TRIES = 3
STOP_GRACE_S = 3
REFUSED = 2  # exit code of an entrypoint that does not like what it was given
MOST_RESTARTS = 3
ENGINE_AWAY_S = 20.0  # an engine that restarts is back by then
# What docker compose says when its engine goes away (2.26, engine 26.1).
ENGINE_WENT = ("Cannot connect to the Docker daemon", "error during connect", "EOF", "connection reset by peer")
WORKSPACE = "/workspace"  # docker-compose.yml mounts the project there
PYTHON = "/opt/venv/bin/python"  # Dockerfile
IMAGE_USER = 1000  # Dockerfile
PUBLISHED = ("dashboard", "gateway")
SERVICES = ("head", "worker", "gateway")
FLAVOURS = ("core", "cpu", "cuda")


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
        flavour = _flavour(wish, found)
        _check_image(found, flavour)
        where = preflight.engine_folder(found.data_folder(), os.environ.get("DOCKER_HOST", ""))
        preflight.check_disk(state.clusters_dir(), where)
        if flavour == "cuda":
            preflight.check_driver()
        caches = found.volumes(project)
        try:
            return _begin(wish, flavour, found, on_phase), True
        except BaseException:
            with interrupts.ignored():
                _clear_begun(wish.name, found, caches)
            raise


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
            fix=f"start the engine, then `raydebug down --name {name}` clears away what is there",
            code=engine.UNUSABLE,
            exit_code=Exit.NO_ENGINE,
        ) from failure


def _begin(wish: Wish, flavour: str, found: Engine, on_phase: Callable[[str], None]) -> Cluster:
    interrupts.raise_if_pressed()
    cluster = _plan(wish, flavour, found)
    preflight.refuse_small_shared_memory(_settings(cluster))
    interrupts.raise_if_pressed()
    on_phase("creating containers")
    _create(cluster, found, on_phase)
    _wait_until_ready(found, cluster, on_phase)
    interrupts.raise_if_pressed()
    return cluster


def take_down(cluster: Cluster) -> list[str]:
    """End a cluster's containers and networks, and forget it; return what would not go. Caches (volumes) stay."""
    left: list[str] = []
    for _ in range(DOWN_TRIES):  # what an interrupted `docker compose up` had asked for may appear after the first
        with contextlib.suppress(process.CommandFailed):
            _compose(cluster, "down", "--timeout", str(STOP_GRACE_S), "--remove-orphans")
        left = engine.connect().leftovers(project_of(cluster.name))
        if not left:
            state.forget(cluster)
            break
    if left:
        engine.connect_to_change()  # says so where docker compose is what is missing
    return left


def _mend(cluster: Cluster, found: Engine, on_phase: Callable[[str], None]) -> Cluster:
    """Start what has ended of a cluster, and leave what runs; a failure takes nothing down."""
    on_phase("starting what has ended")
    _create(cluster, found, on_phase, "--no-recreate")  # an image built anew must not end a node with its pauses
    _wait_until_ready(found, cluster, on_phase)
    return cluster


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


def explain(container: Container) -> str | None:
    """Return what is wrong with a container, in words, with its entrypoint's own; None where nothing is."""
    if container.is_ready:
        return None
    condition = container.health if container.state == "running" else container.state
    code = "" if container.exit_code is None else f" (exit code {container.exit_code})"
    why = engine.connect().gave_up_because(container)
    return f"its container is {condition}{code}" + (f": {why}" if why else "")


@dataclass(frozen=True)
class ComposePlace:
    """The containers of a cluster, where the user's project is mounted (see place.Place)."""

    cluster: Cluster

    def folder(self, here: Path) -> str:
        """Return what a folder of the project is called in the containers.

        Raises:
            RaydebugError: it is outside of the project, so no container sees it.
        """
        with contextlib.suppress(ValueError):
            return str(WORKSPACE / here.resolve().relative_to(self.cluster.project))
        raise RaydebugError(
            f"the containers of cluster '{self.cluster.name}' do not see {here}",
            cause=f"they have {self.cluster.project} as {WORKSPACE}, and nothing else of this machine",
            fix="run from there, or `raydebug down` and `raydebug up` from the folder of your project",
            code="run.outside-project",
            exit_code=Exit.USAGE,
        )

    def has_program(self, name: str, working_dir: Path) -> bool:
        """Ask the head."""
        question = "import shutil, sys; sys.exit(shutil.which(sys.argv[1]) is None)"
        code, _ = self._in_head(["-c", question, name], working_dir)
        return code == 0

    def run_python(self, arguments: list[str], working_dir: Path) -> str:
        """Run the image's Python in the head."""
        code, printed = self._in_head(arguments, working_dir)
        if code != 0:
            raise process.CommandFailed([PYTHON, *arguments], code, printed, fix="see `raydebug ps`")
        return printed

    def _in_head(self, arguments: list[str], working_dir: Path) -> tuple[int, str]:
        found = engine.connect()
        heads = [c for c in found.containers(project_of(self.cluster.name)) if c.service == "head"]
        if not heads or heads[0].state != "running":
            raise RaydebugError(
                f"cluster '{self.cluster.name}' has no running head",
                cause=f"its container is {heads[0].state if heads else 'gone'}",
                fix=f"see `raydebug ps --name {self.cluster.name}`",
                code="cluster.no-head",
                exit_code=Exit.SESSION_LOST,
            )
        return found.run_in(heads[0], [PYTHON, *arguments], self.folder(working_dir))


def _flavour(wish: Wish, found: Engine) -> str:
    has_gpu = found.has_gpu_runtime()
    flavour = wish.flavour or ("cuda" if has_gpu else "cpu")
    if flavour not in FLAVOURS:
        raise RaydebugError(
            f"there is no flavour '{flavour}'",
            cause=f"--flavour takes one of: {', '.join(FLAVOURS)}",
            fix="use `--flavour cpu` on a machine without a GPU",
            code="flavour.unknown",
            exit_code=Exit.USAGE,
        )
    if flavour == "cuda" and not has_gpu:
        raise RaydebugError(
            "Docker cannot give a GPU to a container here",
            cause="the engine has neither a runtime 'nvidia' nor a CDI device nvidia.com/gpu (`docker info`)",
            fix="install nvidia-container-toolkit and run `nvidia-ctk runtime configure`, or use `--flavour cpu`",
            code="engine.no-gpu",
            exit_code=Exit.NO_ENGINE,
        )
    if flavour == "cuda" and wish.workers > 1:
        raise RaydebugError(
            f"{wish.workers} workers of flavour cuda would share each GPU",
            cause="every worker container of a host sees all of its GPUs, and Ray would hand each of them out again",
            fix="use --workers 1, or join further hosts (docs/07-containers.md)",
            code="gpu.shared",
            exit_code=Exit.USAGE,
        )
    return flavour


def _check_image(found: Engine, flavour: str) -> None:
    image = os.environ.get("RAYDEBUG_IMAGE") or f"raydebug:{flavour}"  # docker-compose.yml
    if found.image_labels(image) is None:
        raise RaydebugError(
            f"there is no image {image} on this machine",
            cause="the Docker engine does not list it",
            fix=f"`raydebug image --flavour {flavour}` in a checkout, or `raydebug up --cluster local`",
            code="image.missing",
            exit_code=Exit.NO_ENGINE,
        )


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
        _check_foreign_containers(asked, found)
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
            python=PYTHON,
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


def _check_foreign_containers(asked: dict[str, int | None], found: Engine) -> None:
    """Name the container behind a port that the user named: the system knows its owner as docker-proxy at most."""
    for purpose, port in asked.items():
        owner = found.publisher_of(port) if port else None
        if owner:
            raise RaydebugError(
                f"port {port} for the {purpose} is taken",
                cause=f"container {owner} publishes it",
                fix=f"end it, or choose another port with --{purpose}-port (0 takes a free one)",
                code="port.taken",
                exit_code=Exit.TAKEN,
            )


def _settings(cluster: Cluster) -> dict[str, Any]:
    """Return what the compose files, .env and the environment amount to.

    Raises:
        RaydebugError: docker compose refuses a value.
    """
    try:
        printed = _compose(cluster, "config", "--format", "json")
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


def _create(cluster: Cluster, found: Engine, on_phase: Callable[[str], None], *options: str) -> None:
    """Make and start the containers; an engine that restarts meanwhile is waited for, once."""
    argv = ("up", "--detach", "--no-build", "--remove-orphans", *options)
    try:
        _compose(cluster, *argv)
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
        _look_patiently(found, cluster, on_phase)
        _compose(cluster, *argv)


def _compose(cluster: Cluster, *arguments: str) -> str:
    return process.run(
        compose_argv(cluster, *arguments),
        env={**os.environ, **compose_variables(cluster)},
        timeout_s=UP_TIMEOUT_S if arguments[0] == "up" else DOWN_TIMEOUT_S,
        fix="see what the engine says with `docker events`, or run the command with --debug",
    )


def _wait_until_ready(found: Engine, cluster: Cluster, on_phase: Callable[[str], None]) -> None:
    deadline = time.monotonic() + UP_TIMEOUT_S
    said = ""
    restarts = {c.id: c.restarts for c in _look_patiently(found, cluster, on_phase)}
    while time.monotonic() < deadline:
        interrupts.raise_if_pressed()
        now = _look_patiently(found, cluster, on_phase)
        phase = ", ".join(f"{c.service} {c.health or c.state}" for c in now)
        if phase != said:
            said = phase
            on_phase(phase)
        for one in now:
            # The restart policy starts what has ended again: what an entrypoint refuses, it will refuse then too.
            refused = one.state == "restarting" and one.exit_code == REFUSED
            if one.state in ("exited", "dead") or refused or one.restarts - restarts.get(one.id, 0) >= MOST_RESTARTS:
                raise RaydebugError(
                    f"{one.name} did not start",
                    cause=f"it ended with exit code {one.exit_code}: {found.last_words(one)}",
                    fix=f"read all that it said: docker logs {one.name} (before: raydebug --debug up)",
                    code="cluster.not-up",
                )
        if now and all(c.is_ready for c in now):
            return
        time.sleep(0.2)
    raise RaydebugError(
        f"cluster '{cluster.name}' was not healthy after {UP_TIMEOUT_S:.0f} s",
        cause=f"it was still at: {said}",
        fix="try again on a quieter machine, or look with `docker compose ps`",
        code="cluster.timeout",
        exit_code=Exit.TIMEOUT,
    )


def _look_patiently(found: Engine, cluster: Cluster, on_phase: Callable[[str], None]) -> list[Container]:
    """Return the cluster's containers; an engine that restarts is waited for."""
    deadline = time.monotonic() + ENGINE_AWAY_S
    while True:
        interrupts.raise_if_pressed()
        try:
            return found.containers(project_of(cluster.name))
        except RaydebugError as failure:
            if failure.code != engine.UNUSABLE or time.monotonic() > deadline:
                raise
            on_phase("the Docker engine does not answer; waiting for it")
        time.sleep(1.0)
