"""Inputs of a cluster in containers, decided before anything is created: sizes, files, mounts, keys."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydebug.cluster.compose.engine import Engine
from raydebug.cluster.compose.project import ENV_FILE_VARIABLE
from raydebug.cluster.compose.sizing import Host, Setting, look_at_host, settings_for
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.dotenv import check_env_file
from raydebug.settings.files import compose_dir
from raydebug.settings.flavours import GPU_FLAVOURS

# Shared memory and what has to fit in it: if the user sets one of these, none of ours is set.
TOGETHER = ("SHM_SIZE", "OBJECT_STORE_BYTES", "HEAD_SHM_SIZE", "HEAD_OBJECT_STORE_BYTES")
# In the order in which docker compose looks for them. Source: compose-go v2 cli/options.go DefaultFileNames.
COMPOSE_NAMES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
OVERRIDE_NAMES = ("compose.override.yml", "compose.override.yaml", "docker-compose.override.yml",
                  "docker-compose.override.yaml")  # fmt: skip
MOUNTS_VARIABLE = "RAYDEBUG_MOUNTS"  # several, separated by commas
MOUNTED_IN = ("head", "worker", "job")  # the gateway needs no data
HUB_TARGET = "/hf"
# No space, quote, `$`, colon or comma: neither compose nor a list in a variable could mean another path.
_PATH = re.compile(r"/[A-Za-z0-9._@+=~/-]*")
# Paths that the image, docker-compose.yml and the kernel use.
_OURS = tuple(
    f"/{name}"
    for name in ("", "workspace", "cache", "runs", "spill", "gateway", "tmp", "home", "run", "var/run", "opt", "usr",
                 "bin", "lib", "lib64", "sbin", "etc", "proc", "sys", "dev")
)  # fmt: skip
# On this machine. Docker's socket is in /run, and /var/run is a link to it.
_NEVER = ("/", "/proc", "/sys", "/dev", "/run", "/var/run")


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine, and where containers have it."""

    source: str
    target: str
    read_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


@dataclass(frozen=True)
class Given:
    """The user's input beside the options of `up`.

    Args:
        variables: .env of a checkout, and above it the environment.
        mounts: folders of this machine.
        env_file: a file with keys and proxies for the nodes.
    """

    variables: Mapping[str, str]
    mounts: list[Mount]
    env_file: Path | None


def read_given(mounts: list[str], env_file: Path | None, *, hf_cache: bool) -> Given:
    """Return the user's input.

    Raises:
        RaydebugError: a mount, the .env or the file with keys cannot be used (exit 2).
    """
    of_file = check_env_file(compose_dir() / ".env")
    variables = {**{name: os.path.expandvars(value) for name, value in of_file.items()}, **os.environ}
    wanted = parse_mounts(mounts, variables.get(MOUNTS_VARIABLE, ""))
    if hf_cache:
        wanted.append(hub_mount(variables))
    if env_file is None and variables.get(ENV_FILE_VARIABLE):
        env_file = Path(variables[ENV_FILE_VARIABLE]).expanduser()
    return Given(variables, wanted, None if env_file is None else check_keys(env_file))


def check_keys(path: Path) -> Path:
    """Return the absolute path of a file with the user's keys, which only its owner can read.

    Raises:
        RaydebugError: it is missing, belongs to another user, others can read it, or a line of it is not KEY=VALUE.
    """
    path = path.absolute()
    try:
        facts = path.stat()
    except OSError as error:
        raise _bad_keys(path, error.strerror or str(error), "name a file of KEY=VALUE lines") from error
    if not stat.S_ISREG(facts.st_mode):
        raise _bad_keys(path, "it is not a regular file", "name a file of KEY=VALUE lines")
    if facts.st_uid not in (os.getuid(), 0):
        raise _bad_keys(
            path, f"it belongs to uid {facts.st_uid}, and you are {os.getuid()}", f"chown {os.getuid()} {path}"
        )
    if facts.st_mode & 0o077:
        raise _bad_keys(path, f"its mode is {facts.st_mode & 0o777:o}: others can read your keys", f"chmod 600 {path}")
    check_env_file(path)
    return path


def sizes_of(
    found: Engine, flavour: str, variables: Mapping[str, str], *, workers: int, logical_gpus: int
) -> tuple[Host, list[Setting]]:
    """Return the host of the engine, and those sizes for its containers that the user does not set."""
    host = look_at_host(with_gpus=flavour in GPU_FLAVOURS, engine=found.machine())
    wanted = settings_for(host, workers=workers, logical_gpus=logical_gpus)
    taken = {size.name for size in wanted if variables.get(size.name)}
    if taken & set(TOGETHER):
        taken |= set(TOGETHER)
    return host, [size for size in wanted if size.name not in taken]


def files_for(flavour: str, variables: Mapping[str, str], project: Path) -> list[Path]:
    """Return the compose files of a cluster, as docker compose itself would choose them.

    COMPOSE_FILE names all of them. Else ours, and an override file: of the checkout, or of the project's folder where
    that has no compose file of its own, which the override would belong to.
    """
    if variables.get("COMPOSE_FILE"):
        separator = variables.get("COMPOSE_PATH_SEPARATOR") or os.pathsep
        return [Path(name).absolute() for name in variables["COMPOSE_FILE"].split(separator) if name]
    ours = ["docker-compose.yml"] + ([] if flavour in GPU_FLAVOURS else ["docker-compose.cpu.yml"])
    folders = [compose_dir()]
    if not any((project / name).exists() for name in COMPOSE_NAMES):
        folders.append(project)
    found = (folder / name for folder in folders for name in OVERRIDE_NAMES if (folder / name).is_file())
    override = next(found, None)
    return [compose_dir() / name for name in ours] + ([] if override is None else [override.absolute()])


def _bad_keys(path: Path, cause: str, fix: str) -> RaydebugError:
    return UsageError(f"cannot use {path}", cause=cause, fix=fix, code="env-file.invalid")


def parse_mounts(options: list[str], variable: str) -> list[Mount]:
    """Return the mounts that the user named: values of `--mount`, and the value of RAYDEBUG_MOUNTS.

    Raises:
        RaydebugError: one cannot be mounted, or its folder is missing (exit 2).
    """
    of_variable = [text for text in variable.split(",") if text.strip()]
    asked = [*(("--mount", text) for text in options), *((MOUNTS_VARIABLE, text) for text in of_variable)]
    mounts = [_parse_mount(where, text.strip()) for where, text in asked]
    for index, mount in enumerate(mounts):
        if mount.target in [earlier.target for earlier in mounts[:index]]:
            raise _no_mount(
                f"{mount.target} is mounted twice", f"the second one is {mount}", "give each its own target"
            )
    return mounts


def hub_mount(environ: Mapping[str, str]) -> Mount:
    """Return the mount of this user's Hugging Face cache.

    Raises:
        RaydebugError: there is none (exit 2).
    """
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")  # noqa: PTH118
    return _parse_mount("--hf-cache", f"{Path(home).expanduser()}:{HUB_TARGET}")


def as_compose(mounts: list[Mount]) -> str:
    """Return the compose file that adds mounts to the nodes and jobs."""
    volumes = [
        {"type": "bind", "source": mount.source, "target": mount.target, "read_only": mount.read_only,
         "bind": {"create_host_path": False}} for mount in mounts
    ]  # fmt: skip
    service: dict[str, Any] = {"volumes": volumes}
    if any(mount.target == HUB_TARGET for mount in mounts):
        service["environment"] = {"HF_HOME": HUB_TARGET}
    return json.dumps({"services": dict.fromkeys(MOUNTED_IN, service)}, indent=2)


def _parse_mount(where: str, text: str) -> Mount:
    source, *rest = text.split(":")
    what = f"{where} {text!r} cannot be mounted"
    if not 1 <= len(rest) <= 2 or not rest[0]:
        raise _no_mount(what, "it is neither SOURCE:TARGET nor SOURCE:TARGET:ro", f"{where} /data:/data:ro")
    target, mode = rest[0], rest[1] if len(rest) == 2 else "rw"
    for path in (source, target):
        if not _PATH.fullmatch(path) or ".." in path.split("/"):
            raise _no_mount(
                what,
                f"{path!r} is not an absolute path of letters, digits and ._@+=~-/ without '..'",
                "write the whole path; a link without such characters works too",
            )
    if mode not in ("ro", "rw"):
        raise _no_mount(what, f"its mode is {mode!r}", "the mode is ro (read-only) or rw (the default)")
    if why := why_no_mount(None, target):
        raise _no_mount(what, why, "choose another target, such as /data")
    if why := why_no_mount(source, target):
        raise _no_mount(what, why, "name the folder that they need")
    if not Path(source).exists():
        raise _no_mount(what, f"there is no {source} on this machine", "make it first, or name another one")
    return Mount(source, target, mode == "ro")


def why_no_mount(source: str | None, target: str) -> str | None:
    """Return why a folder of this machine may not be mounted in containers; None if it may, or for a target alone."""
    if _tidy(target) in _OURS or _tidy(target).startswith(("/proc/", "/sys/", "/dev/", "/run/", "/opt/raydebug")):
        return f"the containers have {target} for themselves"
    real = "" if source is None else _tidy(os.path.realpath(source))
    inside = real.startswith(("/proc/", "/sys/", "/dev/", "/run/"))  # an engine's socket is in /run, or elsewhere
    if real in _NEVER or inside or real.endswith(".sock") or Path(real).is_socket():
        return f"{source} would give the containers this machine"
    return None


def _tidy(path: str) -> str:
    return os.path.normpath(path.replace("//", "/"))


def _no_mount(what: str, cause: str, fix: str) -> RaydebugError:
    return UsageError(what, cause=cause, fix=fix, code="mount.invalid")
