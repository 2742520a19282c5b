"""A folder full of modules with the names of others: whoever imports one of them leaves a mark."""

from __future__ import annotations

from pathlib import Path

# The standard library's names that our processes load, and packages of theirs: a module of the folder must not win.
NAMES = (
    "types", "json", "platform", "queue", "random", "secrets", "select", "socket", "subprocess", "tempfile", "typing",
)  # fmt: skip
NAMES += ("uuid", "logging", "signal", "inspect", "asyncio", "sitecustomize", "usercustomize", "raydebug", "psutil")
NAMES += ("httpx", "yaml", "typer", "rich", "ray", "debugpy", "h11", "websockets", "re2", "hydra", "verl", "torch")
MARK = "imported"


def set_traps(folder: Path) -> Path:
    """Write the modules, and return the file that is there once one of them was imported."""
    mark = folder / MARK
    code = f"import sys\nopen({str(mark)!r}, 'a').write(f'{{__name__}} by {{sys.orig_argv}}\\n')\nraise ImportError\n"
    for name in NAMES:
        (folder / f"{name}.py").write_text(code)
    return mark
