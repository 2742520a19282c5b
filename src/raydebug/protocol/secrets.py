"""Which names and texts hold secrets: their values reach no log, no command line, no snapshot and no file of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"
# Of a setting only names that end so: `data.prompt_key` and `max_num_batched_tokens` are no secrets, nor are a
# tokenizer's special tokens.
_NAME = (
    r"(?:(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!mask_)token|(?:api|access|private|secret)[-_.]?key"
    r"|secret(?:_value)?|password|passwd|passphrase|credentials?)"
)
_SECRET_ARGUMENT = re.compile(rf"(?:^|[^a-z]){_NAME}$", re.IGNORECASE)
_NAME_MARKS = ("token", "key", "secret", "passw", "passphrase", "credential")
# In a text: a name with its value. In source, where a bare word is a variable, only a quoted one.
_QUOTED = re.compile(rf"""({_NAME}["']?\s*[:=]\s*[bru]?)(["'])(?:(?!\2).)+\2""", re.IGNORECASE)
_UNQUOTED = re.compile(rf"""({_NAME}["']?\s*[:=]\s*)[^\s"'(),;]{{4,}}""", re.IGNORECASE)
# What a secret looks like, by the mark that each begins with: a text without the mark is not searched.
_LOOKS = [
    (("sk-",), re.compile(r"sk-[\w-]{16,}")),
    (("hf_",), re.compile(r"hf_[A-Za-z0-9]{20,}")),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"gh[pousr]_[A-Za-z0-9]{20,}")),
    (("github_pat_",), re.compile(r"github_pat_\w{20,}")),
    (("glpat-",), re.compile(r"glpat-[\w-]{16,}")),
    (("xox",), re.compile(r"xox[abprs]-[\w-]{10,}")),
    (("AKIA",), re.compile(r"AKIA[0-9A-Z]{16}")),
    (("eyJ",), re.compile(r"eyJ[\w-]{10,2000}\.[\w-]{10,2000}(?:\.[\w-]+)?")),
    (("PRIVATE KEY",), re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END).)*", re.DOTALL)),
    (("://",), re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")),
    (("earer ",), re.compile(r"(?<=earer )[\w.~+/=-]{16,}")),
]
_HEX_KEY = re.compile(r"\b[0-9a-fA-F]{40}\b")  # of Weights & Biases
MIN_VALUE = 6  # characters: a shorter value is part of too many words


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of secret ones hidden; a path to a token is no secret.

    >>> without_secrets({"HF_TOKEN": "x", "RAY_AUTH_TOKEN_PATH": "/t", "RANK": "0"})
    {'HF_TOKEN': '(hidden)', 'RAY_AUTH_TOKEN_PATH': '/t', 'RANK': '0'}
    """
    return {name: HIDDEN if is_secret(name) else value for name, value in variables.items()}


def is_secret(name: str) -> bool:
    """Say whether the value of a variable of this name is a secret."""
    return any(word in name.upper() for word in SECRET_WORDS) and not name.upper().endswith("_PATH")


def is_secret_name(name: str) -> bool:
    """Say whether a local, an attribute or a key of this name holds a secret, if it holds a text.

    >>> [is_secret_name(one) for one in ("password", "hf_token", "AWS_KEY_ID", "key", "tokens", "pad_token")]
    [True, True, True, False, False, False]
    """
    return _SECRET_ARGUMENT.search(name) is not None or (name.isupper() and "_" in name and is_secret(name))


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


def _hide(found: re.Match[str]) -> str:
    return HIDDEN + "\n" * found[0].count("\n")  # the lines below keep their numbers


class Scrubber:
    """Hides secrets in texts: what looks like one, values after a secret's name, and values that are known.

    Args:
        values: the known ones; those of less than MIN_VALUE characters are left.

    >>> Scrubber(["hunter22"]).scrub("login(hunter22, token: abcdef)"), Scrubber([]).scrub("token: str", source=True)
    ('login((hidden), token: (hidden))', 'token: str')
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({one for one in values if len(one) >= MIN_VALUE}, key=len, reverse=True)

    def scrub(self, text: str, *, source: bool = False) -> str:
        """Return a text without secrets; of source code only quoted values are hidden by their name."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        for marks, look in _LOOKS:
            if any(mark in text for mark in marks):
                text = look.sub(_hide, text)
        if len(text) >= 40:
            text = _HEX_KEY.sub(HIDDEN, text)
        if not _has_name(text):
            return text
        return "\n".join(_without_named(line, source) if _has_name(line) else line for line in text.split("\n"))


def _has_name(text: str) -> bool:
    lower = text.lower()
    return any(mark in lower for mark in _NAME_MARKS)


def _without_named(line: str, source: bool) -> str:
    line = _QUOTED.sub(rf"\1\2{HIDDEN}\2", line)
    return line if source else _UNQUOTED.sub(rf"\1{HIDDEN}", line)
