"""The Docker engine: is it usable, what can it do, which containers are ours; the only importer of the docker SDK."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from raydebug import process
from raydebug.errors import Exit, RaydebugError

if TYPE_CHECKING:
    import docker

PROJECT_LABEL = "com.docker.compose.project"  # docker compose sets it on all that it makes
SERVICE_LABEL = "com.docker.compose.service"
OLDEST_API = (1, 44)  # engine 25: healthcheck.start_interval, which halves the time to healthy
OLDEST_COMPOSE = (2, 24)  # `!reset` in an override file takes the GPU away
CONNECT_TIMEOUT_S = 10
UNUSABLE = "engine.unusable"  # the code of every error that says that an engine is not there, or not for us
SAYS, GIVES_UP = "raydebug: ", "; giving this container up"  # entrypoints/node.py
GIVE_UP_S = 5  # from these words to the container's end, at most
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Container:
    """A container of a compose project, as the engine sees it.

    Args:
        project, service: docker compose's names.
        silent_s: seconds since its health check last succeeded; 0 while it does.
        published: port of the container -> port on this host.
        mounts: path in the container -> path on the engine's host.
        labels, environ: as it was made.
    """

    id: str
    name: str
    service: str
    state: str
    health: str
    exit_code: int | None
    address: str
    restarts: int = 0
    silent_s: float = 0.0
    project: str = ""
    published: dict[int, int] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Running, and healthy where it has a healthcheck."""
        return self.state == "running" and self.health in ("healthy", "")


def _explained(question: Callable[Concatenate[Engine, _P], _R]) -> Callable[Concatenate[Engine, _P], _R]:
    """Turn the exceptions of the docker SDK, requests and urllib3 when an engine goes away into ours."""

    @functools.wraps(question)
    def ask(self: Engine, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        from docker.errors import DockerException

        try:
            return question(self, *arguments, **options)
        except (DockerException, OSError) as error:  # requests' own exceptions are OSErrors
            raise _explain(error, self.where) from error

    return ask


class Engine:
    """A Docker engine that answers, by the docker SDK; `where` is its address, for messages."""

    def __init__(self, client: docker.DockerClient, where: str) -> None:
        self._client = client
        self.where = where

    @_explained
    def has_gpu_runtime(self) -> bool:
        """Return whether the engine can give an NVIDIA GPU to a container."""
        info = self._client.info()
        devices = info.get("DiscoveredDevices") or []
        return "nvidia" in info.get("Runtimes", {}) or any("nvidia.com/gpu" in str(d) for d in devices)

    @_explained
    def data_folder(self) -> str:
        """Return the engine's data folder on its own machine; empty if unknown."""
        return str(self._client.info().get("DockerRootDir") or "")

    @_explained
    def machine(self) -> tuple[int, int]:
        """Return the cores and the bytes of memory of the engine's machine."""
        info = self._client.info()
        return int(info["NCPU"]), int(info["MemTotal"])

    @_explained
    def image_labels(self, image: str) -> dict[str, str] | None:
        """Return an image's labels; None without such an image."""
        from docker.errors import ImageNotFound

        try:
            return dict(self._client.images.get(image).labels)
        except ImageNotFound:
            return None

    @_explained
    def containers(self, project: str) -> list[Container]:
        """Return the containers of a project, also those that have ended."""
        found = self._client.containers.list(all=True, filters={"label": f"{PROJECT_LABEL}={project}"})
        return sorted((_describe(container) for container in found), key=lambda c: (c.service != "head", c.name))

    @_explained
    def labelled(self, label: str) -> list[Container]:
        """Return the running containers of compose projects that carry a label."""
        return [_describe(found) for found in self._client.containers.list(filters={"label": [label, PROJECT_LABEL]})]

    @_explained
    def last_words(self, container: Container) -> str:
        """Return the last three lines that a container printed, on one line."""
        text = self.log_end(container, lines=50).decode(errors="replace")
        said = [line.strip() for line in text.splitlines() if line.strip()]
        ours = [line for line in said if line.startswith(("error:", "cause:", "fix:"))]
        return " / ".join((ours or said)[-3:]) or "(it printed nothing)"

    @_explained
    def log_end(self, container: Container, lines: int = 2000) -> bytes:
        """Return the last lines of a container's log; empty for a container that is gone."""
        from docker.errors import APIError

        with contextlib.suppress(APIError):
            return bytes(self._client.containers.get(container.id).logs(tail=lines))
        return b""

    @_explained
    def gave_up_because(self, container: Container) -> str | None:
        """Return why a container's entrypoint ended its last run, as it printed it; None if it did not."""
        from docker.errors import APIError

        with contextlib.suppress(APIError):
            one = self._client.containers.get(container.id)
            # of that run only: an older one may have ended for another reason
            since = _seconds(one.attrs["State"]["FinishedAt"]) - GIVE_UP_S
            said = one.logs(since=max(0, since)).decode(errors="replace").splitlines()
            given = [line for line in said if line.startswith(SAYS) and line.endswith(GIVES_UP)]
            return given[-1].removeprefix(SAYS).removesuffix(GIVES_UP) if given else None
        return None

    @_explained
    def programs(self, container: Container) -> list[str]:
        """Return the command lines of the processes in a running container."""
        listed = self._client.containers.get(container.id).top()
        column = listed["Titles"].index("CMD")
        return [row[column] for row in listed["Processes"] or ()]

    @_explained
    def run_in(self, container: Container, argv: list[str], folder: str) -> tuple[int, str]:
        """Run a program in a container and return its exit code and what it printed."""
        done = self._client.containers.get(container.id).exec_run(argv, workdir=folder)
        return int(done.exit_code), done.output.decode(errors="replace")

    @_explained
    def publisher_of(self, port: int) -> str | None:
        """Return the name of the running container that publishes a port on this host, with its image."""
        for row in self._client.api.containers():
            if any(p.get("PublicPort") == port for p in row.get("Ports") or []):
                return f"{row['Names'][0].lstrip('/')} (image {row['Image']})"
        return None

    @_explained
    def volumes(self, project: str) -> list[str]:
        """Return the names of a project's volumes."""
        found = self._client.volumes.list(filters={"label": f"{PROJECT_LABEL}={project}"})
        return [volume.name for volume in found]

    @_explained
    def remove_volumes(self, names: list[str]) -> None:
        """Remove volumes that nothing uses."""
        from docker.errors import APIError

        for name in names:
            with contextlib.suppress(APIError):
                self._client.volumes.get(name).remove()

    @_explained
    def leftovers(self, project: str) -> list[str]:
        """Return what is left of a project: containers and networks (volumes keep caches on purpose)."""
        wanted = {"label": f"{PROJECT_LABEL}={project}"}
        networks = [f"network {n.name}" for n in self._client.networks.list(filters=wanted)]
        return [f"container {c.name}" for c in self.containers(project)] + networks


def connect() -> Engine:
    """Return the engine that DOCKER_HOST or docker's own default names, to read from it.

    Raises:
        RaydebugError: there is no usable one (exit 5).
    """
    import docker
    from docker.errors import DockerException

    if shutil.which("docker") is None:
        raise _unusable("docker is not installed", "no program 'docker' on PATH", "install Docker Engine 25 or newer")
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        client = docker.from_env(timeout=CONNECT_TIMEOUT_S)
        version = client.version()
    except DockerException as error:
        raise _explain(error, where) from error
    api = tuple(int(part) for part in version["ApiVersion"].split("."))
    if api < OLDEST_API:
        raise _unusable(
            f"the Docker engine is too old (API {version['ApiVersion']})",
            f"engine {version.get('Version')} at {where}; {'.'.join(map(str, OLDEST_API))} (engine 25) is needed",
            "update Docker Engine",
        )
    return Engine(client, where)


def connect_to_change() -> Engine:
    """Return the engine, with a docker compose that can start and end clusters in it.

    Raises:
        RaydebugError: the engine or docker compose cannot be used (exit 5).
    """
    found = connect()
    try:
        printed = process.run(["docker", "compose", "version", "--short"], timeout_s=CONNECT_TIMEOUT_S)
    except process.CommandFailed as failure:
        raise _unusable(
            "docker compose is missing", failure.cause, "install the docker compose plug-in (v2)"
        ) from failure
    numbers = printed.strip().splitlines()[-1].lstrip("v").split("-")[0].split("+")[0].split(".")
    if tuple(int(n) for n in numbers[:2]) < OLDEST_COMPOSE:
        needed = ".".join(map(str, OLDEST_COMPOSE))
        raise _unusable(
            f"docker compose is too old ({printed.strip()})", f"{needed} is needed", "update the compose plug-in"
        )
    return found


def engine_answers() -> str | None:
    """Return None if an engine can be used, else why not, in one line."""
    try:
        connect_to_change()
    except RaydebugError as failure:
        return failure.what
    return None


def _explain(error: Exception, where: str) -> RaydebugError:
    said, refused = str(error), getattr(error, "explanation", None)  # of docker's APIError: the engine answered
    if refused:
        return RaydebugError(
            "the Docker engine refused",
            cause=f"{where}: {str(refused)[:200]}",
            fix="see `raydebug ps`, or what the engine says with `docker events`",
            code="engine.refused",
            exit_code=Exit.NO_ENGINE,
        )
    if "Permission denied" in said or "PermissionError" in said:
        return _unusable(
            "no permission to use the Docker engine",
            f"{where}: permission denied for your user",
            "sudo usermod -aG docker $USER, then log in again",
        )
    if "timed out" in said:
        return _unusable(
            "the Docker engine does not answer", f"{where} was silent for {CONNECT_TIMEOUT_S} s", "restart the engine"
        )
    return _unusable(
        "the Docker engine is not running", f"{where}: {said[:200]}", "start it: sudo systemctl start docker"
    )


def _unusable(what: str, cause: str, fix: str) -> RaydebugError:
    return RaydebugError(what, cause=cause, fix=fix, code=UNUSABLE, exit_code=Exit.NO_ENGINE)


def _seconds(moment: str) -> int:
    """Return the seconds since 1970 of a moment as the engine writes it: 2026-01-31T12:00:00.123456789Z, or +01:00."""
    return int(datetime.datetime.fromisoformat(moment).timestamp())


def _describe(container: Any) -> Container:
    attrs, state = container.attrs, container.attrs["State"]
    settings = attrs.get("NetworkSettings", {})
    ports = settings.get("Ports") or {}
    return Container(
        id=container.id,
        name=container.name,
        service=container.labels.get(SERVICE_LABEL, ""),
        state=state["Status"],
        health=(state.get("Health") or {}).get("Status", ""),
        exit_code=state.get("ExitCode") if state["Status"] in ("exited", "restarting") else None,
        address=next((network.get("IPAddress", "") for network in settings.get("Networks", {}).values()), ""),
        restarts=int(attrs.get("RestartCount") or 0),
        silent_s=_silent_s(attrs),
        project=container.labels.get(PROJECT_LABEL, ""),
        published={int(port.partition("/")[0]): int(at[0]["HostPort"]) for port, at in ports.items() if at},
        mounts={mount["Destination"]: mount.get("Source", "") for mount in attrs.get("Mounts") or ()},
        labels=dict(container.labels),
        environ=dict(line.partition("=")[::2] for line in attrs.get("Config", {}).get("Env") or ()),
    )


def _silent_s(attributes: dict[str, Any]) -> float:
    """Return for how many seconds a running container's health checks have failed; the engine keeps five."""
    health = attributes["State"].get("Health") or {}
    streak, log = health.get("FailingStreak") or 0, health.get("Log") or []
    if attributes["State"]["Status"] != "running" or not streak or not log:
        return 0.0
    interval_s = attributes["Config"]["Healthcheck"]["Interval"] / 1e9
    since: float = _seconds(log[-min(streak, len(log))]["Start"]) - max(0, streak - len(log)) * interval_s
    return max(0.0, time.time() - since)
