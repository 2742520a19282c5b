"""How many threads numerical libraries use: read from OMP_NUM_THREADS when they are loaded, so set anew in a fork."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

# The function's name in OpenBLAS, as numpy's and scipy's wheels build it (scipy-openblas64 0.3.30), and elsewhere.
_OPENBLAS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def follow_environment() -> None:
    """Use as many threads as OMP_NUM_THREADS says, now and when Ray sets it for a task.

    Source: ray 2.60.0 _private/utils.py:235 sets it before the user's code is loaded, which would then load torch.
    """
    _apply()
    utils: Any = sys.modules.get("ray._private.utils")
    if utils is None:
        return
    plain = utils.set_omp_num_threads_if_unset

    def set_omp_num_threads_if_unset() -> bool:
        was_set = bool(plain())
        if was_set:
            _apply()
        return was_set

    utils.set_omp_num_threads_if_unset = set_omp_num_threads_if_unset


def _apply() -> None:
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if not wanted.isdigit() or int(wanted) < 1:
        return
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(wanted))
    for path in _loaded("openblas"):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS:
            if hasattr(library, name):
                getattr(library, name)(int(wanted))
                break


def _loaded(part: str) -> set[str]:
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if part in line and "/" in line}
