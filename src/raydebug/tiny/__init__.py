"""A tiny model and a tiny dataset, made on this machine, offline, the same bytes for the same seed.

`model` builds config, tokenizer and weights, `dataset` the questions and the reward function beside them; each writes
to a folder that appears whole or not at all.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.flavours import install


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Give a temporary folder beside `target` to write to, and rename it to `target` when all went well.

    Raises:
        RaydebugError: the target is taken, cannot be written, or the disk is full. Nothing is left behind.
    """
    target = Path(os.path.abspath(target.expanduser()))
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(
            f"'{target}' exists already",
            cause="a folder is built new, and nothing of yours is overwritten",
            fix="name another folder, or remove this one",
            code="tiny.exists",
        )
    partial: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        yield partial
        _open_up(partial)
        partial.rename(target)
        partial = None
    except Exception as failure:
        # safetensors and tokenizers report a failed write as an exception of their own, with the system's words.
        if getattr(failure, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(failure):
            existing = next(place for place in target.parents if place.exists())
            raise RaydebugError(
                f"no space left for '{target}'",
                cause=f"{failure}; {shutil.disk_usage(existing).free / 2**20:.1f} MiB are free in '{existing}'",
                fix="free some space there, or name a folder on another disk; nothing was left behind",
                code="tiny.disk-full",
            ) from failure
        if isinstance(failure, OSError):
            raise RaydebugError(
                f"cannot write '{target}'",
                cause=str(failure),
                fix="name a folder that you may write to",
                code="tiny.unwritable",
            ) from failure
        raise
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def _open_up(folder: Path) -> None:
    """Give the folder and its files the rights that the umask allows; temporary files are made for one user only."""
    mask = os.umask(0o077)  # not 0: another thread may make a file just now
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


@contextmanager
def needed_for(what: str, package: str, more: str = "") -> Iterator[None]:
    """Explain an import that fails.

    Args:
        what: what needs it: `a tiny dataset`.
        package: what is imported, the first word of it as the error's code has it.
        more: is said after the cause.

    Raises:
        RaydebugError: it is not installed.
    """
    try:
        yield
    except ImportError as failure:
        raise RaydebugError(
            f"{what} needs {package}",
            cause=f"{failure}{more}",
            fix=f"install the cpu flavour: {install(flavour='cpu')}",
            code=f"tiny.no-{package.partition(' ')[0]}",
        ) from failure
