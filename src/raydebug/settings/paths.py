"""Where raydebug keeps what it must remember, and where its own data files are."""

from __future__ import annotations

from pathlib import Path


def state_dir() -> Path:
    """Return the user's state folder for raydebug (XDG_STATE_HOME is obeyed); it may not exist yet."""
    from platformdirs import user_state_path

    return user_state_path("raydebug", appauthor=False)


def environment_dir() -> Path:
    """Return the folder with the environment as data (pins, profiles): in the wheel, or env/ of a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "env"
    return inside if inside.is_dir() else package.parent.parent / "env"


def compose_dir() -> Path:
    """Return the folder with docker-compose.yml: the wheel's package, or the root of a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package if (package / "docker-compose.yml").is_file() else package.parent.parent
