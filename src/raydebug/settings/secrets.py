"""Which variables and arguments hold secrets: their values reach no log, no command line and no file of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"
# Of a setting only names that end so: `data.prompt_key` and `max_num_batched_tokens` are no secrets.
_SECRET_ARGUMENT = re.compile(r"(?:^|[^a-z])(?:token|api[-_.]?key|secret|password)$", re.IGNORECASE)


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of secret ones hidden; a path to a token is no secret.

    >>> without_secrets({"HF_TOKEN": "x", "RAY_AUTH_TOKEN_PATH": "/t", "RANK": "0"})
    {'HF_TOKEN': '(hidden)', 'RAY_AUTH_TOKEN_PATH': '/t', 'RANK': '0'}
    """
    return {name: HIDDEN if is_secret(name) else value for name, value in variables.items()}


def is_secret(name: str) -> bool:
    """Say whether the value of a variable of this name is a secret."""
    return any(word in name.upper() for word in SECRET_WORDS) and not name.upper().endswith("_PATH")


def without_secret_arguments(command: Sequence[str]) -> list[str]:
    """Return a command with the values after `NAME=` and `--NAME` hidden where the name is that of a secret.

    >>> without_secret_arguments(["train.py", "wandb.api_key=x", "--token", "y", "data.prompt_key=prompt"])
    ['train.py', 'wandb.api_key=(hidden)', '--token', '(hidden)', 'data.prompt_key=prompt']
    """
    shown: list[str] = []
    for word in command:
        name, equals, value = word.partition("=")
        if shown and shown[-1].startswith("-") and _SECRET_ARGUMENT.search(shown[-1]):
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={without_secret(name, value)}" if equals else word)
    return shown


def without_secret(name: str, value: str) -> str:
    """Return the value of a setting, hidden where the setting's name tells of a secret."""
    return HIDDEN if value and _SECRET_ARGUMENT.search(name) else value
