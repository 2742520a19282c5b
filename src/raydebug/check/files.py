"""The data files and the model of a training whose trainer has no rules here: are they there, and whole?"""

from __future__ import annotations

from collections.abc import Iterator

from raydebug.check.config import not_run
from raydebug.check.probes import Facts
from raydebug.check.target import Target
from raydebug.findings import Finding, finding

HOW = "`raydebug check train -- COMMAND` starts the whole training, small"


def judge_columns(target: Target, facts: Facts) -> Iterator[Finding]:
    """Return what is wrong with the columns of the data files that were read."""
    config = target.config(facts["config"])
    prompt, key = config.get("prompt_column"), spelled(target, facts, "prompt_column")
    named = False
    for split, files in facts["splits"].items():
        for file in files:
            named = True
            if prompt is not None and prompt not in file.get("columns", [prompt]):
                yield finding(
                    "data.column-missing.fork",
                    key=spelled(target, facts, f"{split}_data"),
                    prompt=prompt,
                    file=file,
                    columns=", ".join(file["columns"]) or "no column",
                    key_2=key,
                )
    yield from not_run(facts)
    if not named:
        key = spelled(target, facts, "train_data")
        yield finding("check.not-run.data", key=key, how=HOW)
    yield without_rules(target, "the prompts, their lengths and the reward")


def spelled(target: Target, facts: Facts, word: str) -> str:
    """Return the key that a command has for a setting, as its arguments spell it."""
    key = target.config(facts["config"]).keys.get(word)
    return f"{target.checks.sign}{key}" if key else f"the key for {word.replace('_', ' ')}"


def without_rules(target: Target, parts: str) -> Finding:
    """Return the note that a part of the check is not there for the program of a command."""
    assert target.program is not None
    return finding("check.not-run.program", parts=parts, target=target, how=HOW)
