"""debugpy, which a pause needs: a worker of another environment (Ray's runtime_env) may have none, or an old one."""

from __future__ import annotations

import sys

AT_LEAST = (1, 8)  # as Ray asks for (2.60.0, util/debugpy.py:19); what is tested is the version of env/core.lock


class NoDebugger(Exception):
    """This process cannot pause at all; the text says why, and what to install."""


_verdict: str | None = None  # why not; empty when all is well


def require_debugpy() -> None:
    """Check once that debugpy is here.

    Raises:
        NoDebugger: it is not, or it is too old.
    """
    global _verdict
    if _verdict is None:
        _verdict = _why_not()
    if _verdict:
        raise NoDebugger(_verdict)


def _why_not() -> str:
    wanted = ".".join(map(str, AT_LEAST))
    fix = f"`{sys.executable} -m pip install 'debugpy>={wanted}'`; breakpoints of this process are passed over"
    try:
        import debugpy

        version = str(debugpy.__version__)
    except Exception as error:  # noqa: BLE001 - a broken package is none
        return f"debugpy cannot be loaded ({error}); {fix}"
    return "" if _is_enough(version) else f"debugpy {version} is too old; {fix}"


def _is_enough(version: str) -> bool:
    """Compare as numbers: as text, which is how Ray compares, 1.10 comes before 1.8.

    >>> _is_enough("1.10.0"), _is_enough("1.8.0rc1"), _is_enough("1.7.9"), _is_enough("0+unknown")
    (True, True, False, False)
    """
    numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in version.split("+")[0].split(".")]
    return tuple(numbers[:2]) >= AT_LEAST
