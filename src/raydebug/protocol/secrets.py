"""Which names and texts hold secrets: their values reach no log, no command line, no snapshot and no file of ours.

It sees names and forms, not meaning: docs/03-checks.md says which secrets it cannot see.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Mapping, Sequence

from raydebug.protocol.secret_kinds import compiled, without_kinds

HIDDEN = "(hidden)"
MIN_VALUE = 6  # characters: a shorter value is part of too many words
MAX_NAME = 200  # characters: a longer text is no name
_SWITCHES = frozenset(("none", "null", "true", "false"))  # values of `use_auth_token=true`, which hide nothing

# Names, by their last words. A training has tokens of a tokenizer, numbers of tokens and keys of dicts: those stay.
_ALWAYS = frozenset((
    "password", "passwords", "passwd", "passwds", "passphrase", "passphrases", "secret", "secrets", "credential",
    "credentials", "cookie", "cookies", "authorization", "auth", "oauth", "pw", "jsessionid", "sessionid", "phpsessid",
))  # fmt: skip
_GROUPS = frozenset(("secret", "secrets", "credential", "credentials", "passwords"))  # of settings: `secrets.openai=`
_TOKENIZERS = frozenset((  # what stands before `token`
    "pad", "bos", "eos", "unk", "mask", "sep", "cls", "stop", "start", "end", "boi", "eoi", "image", "video", "audio",
    "special", "think", "next", "last", "first", "prev", "new", "prompt", "response", "input", "output", "max", "min",
    "num", "per", "avg", "each",
))  # fmt: skip
_SERVICES = frozenset((  # what stands before `key`, and before `tokens`
    "api", "access", "private", "secret", "account", "subscription", "auth", "refresh", "bearer", "encryption",
    "signing", "session", "master", "license", "ssh", "wandb", "hf", "huggingface", "openai", "anthropic", "azure",
    "aws", "gcp", "client", "google", "gemini", "ngc", "nvidia", "comet", "neptune", "swanlab", "clearml", "groq",
    "mistral", "deepseek", "dashscope",
))  # fmt: skip
_OWNERS = frozenset((  # what stands before `pass` and `pwd`
    "db", "user", "smtp", "mail", "mysql", "postgres", "redis", "admin", "root",
))  # fmt: skip
_NAME_MARKS = (
    "token",
    "key",
    "secret",
    "passw",
    "passphrase",
    "credential",
    "auth",
    "cookie",
    "pw",
    "_pass",
    "sessionid",
)
_VARIABLE = r"TOKEN(?!IZER|S$)|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|_(?:PASS|PWD|PAT)$"
_NO_VALUES = ("_PATH", "_FILE", "_DIR", "_APPLICATION_CREDENTIALS")  # ends of variables that say where a secret is

# In a text: the end of a name, and what follows it, with the value. `is_secret_name` decides on the whole name first:
# so the time grows as the text does. In source, where a bare word is a variable, only a literal is a value: of
# `password: str = "x"`, `get("password", "x")`, `["--password", "x"]`, `credentials = {"user": "x"}` and
# `add_argument("--password", default="x")`.
_END = (
    r"(?i)(?:tokens?|key[-_]data|keys?|secrets?|values?|passw(?:or)?ds?|passphrases?|credentials?|cookies?|authorization"
    r"|auth|pwd?|pass|sessionid|(?<=_)pat)(?!\w)"
)
_NAME_LETTERS = string.ascii_letters + string.digits + "_.-"
_TEXT = r"""(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\]){1,4000}+(?P=quote)"""
_REST = r"""(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\])++(?P=quote)?"""  # a text, also one without its end
_LITERAL = (
    r"""(?i)(?:["']?\]?\s*(?:[:=]=?|:[^=\n"'(),]{1,40}=)\s*|["']\s*,\s*(?:(?!help\b)\w+\s*=\s*)?)[bfru]{0,2}"""
    rf"""(?P<value>{_TEXT}|[\[({{][^\n\])}}]{{0,1000}})"""
)
_DEFAULT = rf"""(?i)["'][^\n]{{1,200}}?\bdefault\s*=\s*[bfru]{{0,2}}(?P<value>{_TEXT})"""
_TRIPLE = (
    r"""(?is)["']?\]?\s*(?::[^=\n"'(),]{1,40})?=\s*[bfru]{0,2}"""
    r"""(?P<value>(?P<quote>"{3}|'{3}).*?(?:(?P=quote)|\Z))"""
)
_BARE = (
    r"""(?i)(?:\\*["']?\s*(?:[:=]|%3[AD])\s*\\*\$?["']?|[ \t]+)"""
    r"""(?!(?:none|nonetype|null|true|false)\b|[+-]?\d+\.\d+(?:e[+-]?\d+)?(?![\w.]))"""  # chi2_token:-0.05
    r"""(?P<value>"[^"\\\n]+"|'[^'\\\n]+'|(?!\{)[^\s"'\\(),;]{4,})"""
)
_HEADER = r"""(?i)((?<![a-z])(?:authorization|cookies?)["']?\s*[:=]\s*)[^\n"'{]{4,}"""
_PAIR = (  # of a list of variables: `{"name": "HF_TOKEN", "value": "x"}`
    r"""(?i)\b(?:name|key)\\*["']?\s*[:=]\s*\\*["']?(?P<name>[\w.-]{1,80})\\*["']?[\s,]+\\*["']?value\\*["']?\s*[:=]"""
    r"""\s*\\*["']?(?P<value>[^\s"'\\,}]{4,})"""
)
_ITEM = _TEXT + r"(?P<key>\s*:)?"  # in a literal list or dict


# Names


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of secret ones hidden; a path to a token is no secret.

    >>> without_secrets({"HF_TOKEN": "x", "RAY_AUTH_TOKEN_PATH": "/t", "RANK": "0"})
    {'HF_TOKEN': '(hidden)', 'RAY_AUTH_TOKEN_PATH': '/t', 'RANK': '0'}
    """
    return {name: HIDDEN if is_secret(name) else scrubbed(value) for name, value in variables.items()}


def is_secret(name: str) -> bool:
    """Return whether the value of an environment variable of this name is a secret.

    >>> [is_secret(name) for name in ("WANDB_API_KEY", "PGPASSWORD", "MY_AUTH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS")]
    [True, True, True, False, False]
    """
    found = re.search(_VARIABLE, name.upper()) or _ends_in_secret(name)
    return bool(found) and not name.upper().endswith(_NO_VALUES)


def is_secret_name(name: str) -> bool:
    """Return whether a local, attribute, key, option or setting of this name holds a secret, if it holds a text.

    >>> [is_secret_name(name) for name in ("password", "hf_token", "AWS_KEY_ID", "--apiKeys", "key", "pad_token")]
    [True, True, True, True, False, False]
    """
    return len(name) <= MAX_NAME and _is_secret_name(name)


@functools.lru_cache(2048)
def _is_secret_name(name: str) -> bool:
    return _ends_in_secret(name) or (name.isupper() and "_" in name and is_secret(name))


def _ends_in_secret(name: str) -> bool:
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())  # also of apiKey
    if words[-2:] in (["key", "id"], ["key", "data"], ["secret", "value"]):
        del words[-1]
    *_, owner, last = "", "", *words
    one = last.removesuffix("s")
    if last in _ALWAYS or one.endswith("password"):
        return True
    if one in ("token", "key"):
        return owner in _SERVICES or (last == "token" and owner not in _TOKENIZERS)
    if last in ("pass", "pwd"):
        return owner in _OWNERS
    return one.endswith(("key", "token")) and one.removesuffix("key").removesuffix("token") in _SERVICES  # apikey


def without_secret(name: str, value: str) -> str:
    """Return the value of a setting, hidden where the setting's name tells of a secret, and without secrets in it."""
    return HIDDEN if value and _is_secret_value(name, value) else scrubbed(value)


def _is_secret_value(name: str, value: str) -> bool:
    is_named = is_secret_name(name) or not _GROUPS.isdisjoint(name.lower().lstrip("+~-").split(".")[:-1])
    return is_named and value.lower() not in _SWITCHES


# Commands


def without_secret_arguments(command: Sequence[str]) -> list[str]:
    """Return a command without its secrets: the values after `NAME=` and `--NAME`, and what looks like a secret.

    >>> without_secret_arguments(["train.py", "wandb.api_key=x", "--token", "y", "data.prompt_key=prompt", "a://b:c@d"])
    ['train.py', 'wandb.api_key=(hidden)', '--token', '(hidden)', 'data.prompt_key=prompt', 'a://(hidden)@d']
    """
    shown: list[str] = []
    for word in command:
        name, equals, value = word.partition("=")
        after_name = (
            shown and (shown[-1].startswith("-") or shown[-1].endswith(":")) and _is_secret_value(shown[-1], word)
        )
        if after_name and not word.startswith("--"):
            shown.append(HIDDEN)
        elif equals and value and _is_secret_value(name, value):
            shown.append(f"{scrubbed(name)}={HIDDEN}")  # the word may be a whole line: of `bash -c`, a process's title
        else:
            shown.append(scrubbed(word))
    return shown


def without_secrets_in_line(line: str) -> str:
    """Return a command line without its secrets; one that was not made of quoted words is treated as text.

    >>> without_secrets_in_line("python s.py --api-key x --lr 1"), without_secrets_in_line("a && b --api-key xyzxyz")
    ("python s.py --api-key '(hidden)' --lr 1", 'a && b --api-key (hidden)')
    """
    import shlex  # not at the top: processes import this module when they start

    try:
        words = shlex.split(line)
    except ValueError:
        words = []
    is_command = shlex.join(words) == line and not any(word.endswith((":", "=")) for word in words)  # that is a text
    return shlex.join(without_secret_arguments(words)) if is_command else scrubbed(line)


# Texts


def scrubbed(text: str, *, source: bool = False) -> str:
    """Return a text without secrets, as `Scrubber` does it that knows no values."""
    return _SCRUBBER.scrub(text, source=source)


def scrubbed_texts(document: object) -> object:
    """Return a JSON document with all of its texts scrubbed; names of fields stay."""
    if isinstance(document, str):
        return scrubbed(document)
    if isinstance(document, Mapping):
        return {name: scrubbed_texts(value) for name, value in document.items()}
    return [scrubbed_texts(item) for item in document] if isinstance(document, list | tuple) else document


class Scrubber:
    """Hides secrets in texts: what looks like one, values after a secret's name, and values that are known.

    Args:
        values: the known ones; those of less than MIN_VALUE characters are left.

    >>> Scrubber(["hunter22"]).scrub("login(hunter22, token: abcdef)"), Scrubber([]).scrub("token: str", source=True)
    ('login((hidden), token: (hidden))', 'token: str')
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value for value in values if len(value) >= MIN_VALUE}, key=len, reverse=True)

    def scrub(self, text: str, *, source: bool = False) -> str:
        """Return a text without secrets; of source code only quoted values are hidden by their name."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        text = without_kinds(text, HIDDEN)
        if not _has_name(text):
            return text
        if '"""' in text or "'''" in text:
            text = _hide_values(_TRIPLE, text)
        if "value" in text.lower():
            text = _without_pairs(text)
        return "\n".join(_without_named(line, source) if _has_name(line) else line for line in text.split("\n"))


_SCRUBBER = Scrubber(())


def _has_name(text: str) -> bool:
    lower = text.lower()
    for mark in _NAME_MARKS:  # noqa: SIM110 - any() takes four times as long, and each line of a snapshot is asked
        if mark in lower:
            return True
    return False


def _without_named(line: str, source: bool) -> str:
    has_text = '"' in line or "'" in line
    if has_text:
        line = _hide_values(_LITERAL, line)
    if has_text and "default" in line:
        line = _hide_values(_DEFAULT, line)
    if not source:
        return _hide_values(_BARE, compiled(_HEADER).sub(rf"\1{HIDDEN}", line))
    if not has_text:
        return line
    # What a text of the program says is a text: `"Authorization: Basic ..."`.
    return compiled(_REST).sub(lambda at: _without_named(at[0], False) if _has_name(at[0]) else at[0], line)


def _hide_values(pattern: str, text: str) -> str:
    """Hide the values that a pattern finds after the name of a secret."""
    written, at, match = [], 0, compiled(pattern).match
    for end in compiled(_END).finditer(text):
        if end.start() < at:  # in a value
            continue
        before = text[max(0, end.start() - 80) : end.start()]
        name = before[len(before.rstrip(_NAME_LETTERS)) :] + end[0]
        if is_secret_name(name) and (found := match(text, end.end())) and _is_value(text, name, found):
            written += [text[at : found.start("value")], _hidden_as(found["value"])]
            at = found.end("value")
    return "".join([*written, text[at:]])


def _is_value(text: str, name: str, found: re.Match[str]) -> bool:
    """Return whether what stands between a name and a match says that the match is the name's value."""
    start = found.start() - len(name)
    before, between = text[max(0, start - 20) : start], text[found.start() : found.start("value")]
    if between == ": " and name.endswith("s") and found["value"][0] not in "\"'[({":
        return False  # prose: "its record keeps no secrets: ..."
    between = between.strip("\\\"']")
    if not between.strip() or "," in between:
        is_set = name.startswith("-") or before.endswith("configure set ")
        return is_set or ("," in between and before.rstrip("\"'bru").endswith("("))
    return True


def _without_pairs(text: str) -> str:
    """Hide the value of each variable in a list of variables, as the environment of a pod has it."""
    return compiled(_PAIR).sub(
        lambda at: at[0][: at.start("value") - at.start()] + HIDDEN if is_secret(at["name"]) else at[0], text
    )


def _hidden_as(value: str) -> str:
    if value[0] in "[({":
        return compiled(_ITEM).sub(lambda at: at[0] if at["key"] else at["quote"] + HIDDEN + at["quote"], value)
    quote = next((mark for mark in ('"""', "'''", '"', "'") if value.startswith(mark)), "")
    return quote + HIDDEN + "\n" * value.count("\n") + quote
