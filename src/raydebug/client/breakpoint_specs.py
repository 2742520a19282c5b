"""Breakpoints as users write them: `WHERE[,if=EXPR][,rank=0][,step>=3][,every=100][,once][,max=5][,timeout=60s]...`.

`read_break` parses the text, `resolve_breaks` finds WHERE with the cluster's Python, `describe` writes a policy back.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from raydebug.errors import RaydebugError, UsageError
from raydebug.process import answer_in
from raydebug.protocol.names import parse_ranks
from raydebug.protocol.records import BreakpointSpec, Policy

if TYPE_CHECKING:
    from raydebug.cluster.runner import Runner

EXAMPLE = "--break 'train.py:120,rank=0,if=loss > 3,once'"
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_OPENING, _CLOSING = "([{", ")]}"
# They would change the function that the expression is compiled into, or are no valid expression there.
_REFUSED = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)


def resolve_breaks(
    texts: list[str], *, runner: Runner, working_dir: Path, search: Sequence[str] = ()
) -> list[BreakpointSpec]:
    """Return the location and the policy of each breakpoint, for the processes of a job.

    Args:
        texts: `WHERE[,CONDITION...]`; WHERE is `file.py:LINE`, `file.py:function`, `package.module:function` or
            `package.module:Class.method`.
        runner: runs the cluster's Python.
        working_dir: the job's working directory on this machine.
        search: folders that the job has on its PYTHONPATH and the cluster has not.

    Raises:
        RaydebugError: one of them cannot be parsed, or WHERE cannot be found.
    """
    if not texts:
        return []
    specs = [read_break(text) for text in texts]
    resolver = "raydebug.worker.breakpoints.resolve"
    answer = runner.run_python(["-m", resolver, os.pathsep.join(search), *(where for where, _ in specs)], working_dir)
    breaks: list[Any] = answer_in(answer)
    for spec in breaks:
        if "cause" in spec:
            raise UsageError(
                f"--break {spec['where']} names nothing", cause=spec["cause"], fix=spec["fix"], code="break.nothing"
            )
    for spec, (_, policy) in zip(breaks, specs, strict=True):
        spec["policy"] = policy
    return cast(list[BreakpointSpec], breaks)


def read_break(text: str) -> tuple[str, Policy]:
    """Return WHERE and the policy of a breakpoint.

    Args:
        text: WHERE, then conditions, separated by commas; commas inside quotes or brackets do not separate.

    Returns:
        WHERE as the user wrote it, and a policy with the given ones of these keys: `if` (an expression), `rank` (a list
        of ranks), `step` (pairs of operator and number), `every`, `max`, `timeout_s`, `log`.

    Raises:
        RaydebugError: a condition is unknown, or an expression does not parse.
    """
    where, *conditions = (part.strip() for part in _parts(text))
    policy: Policy = {}
    for condition in conditions:
        _read_condition(condition, policy, text)
    return where, policy


def describe(policy: Policy) -> str:
    """Return a policy in the form in which users write it after WHERE."""
    words = [f"rank={rank}" for rank in policy.get("rank", [])]
    words += [f"step{operator}{number}" for operator, number in policy.get("step", [])]
    words += [f"if={policy['if']}"] if "if" in policy else []
    words += [f"every={policy['every']}"] if "every" in policy else []
    words += ["once" if policy["max"] == 1 else f"max={policy['max']}"] if "max" in policy else []
    words += [f"timeout={policy['timeout_s']:g}s"] if "timeout_s" in policy else []
    words += [f'log="{policy["log"]}"'] if "log" in policy else []
    return ",".join(words)


def _parts(text: str) -> Iterator[str]:
    depth, quote, begin, i = 0, "", 0, 0
    while i < len(text):
        char = text[i]
        if quote:
            if char == "\\":
                i += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        elif char == "," and depth == 0:
            yield text[begin:i]
            begin = i + 1
        i += 1
    yield text[begin:]


def _read_condition(condition: str, policy: Policy, text: str) -> None:
    if condition == "once":
        policy["max"] = 1
        return
    if found := re.fullmatch(r"step\s*(>=|<=|==|=|>|<)\s*(\d+)", condition):
        policy.setdefault("step", []).append(["==" if found[1] == "=" else found[1], int(found[2])])
        return
    name, separator, value = condition.partition("=")
    name, value = name.strip(), value.strip()
    if separator and name == "if":
        policy["if"] = _expression(value, text)
    elif separator and name == "log":
        policy["log"] = _template(value, text)
    elif separator and name == "rank":
        policy["rank"] = sorted({*policy.get("rank", []), *_ranks(value, text)})
    elif separator and name == "every":
        policy["every"] = _count(name, value, text)
    elif separator and name == "max":
        policy["max"] = _count(name, value, text)
    elif separator and name == "timeout":
        policy["timeout_s"] = _seconds(value, text)
    else:
        raise _refused(
            text,
            f"'{condition}' is not a condition: there are if=, rank=, step>=, every=, once, max=, timeout= and log=",
            f"for example: {EXAMPLE}",
        )


def _count(name: str, value: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", value):
        raise _refused(text, f"{name}={value} is not a whole number from 1 on", f"write {name}=100")
    return int(value)


def _ranks(value: str, text: str) -> set[int]:
    try:
        return parse_ranks(value)
    except ValueError as error:
        raise _refused(text, f"rank={value} names no rank", "write rank=0, rank=0-3, or rank=0,rank=4") from error


def _seconds(value: str, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", value)
    if not found or float(found[1]) == 0:
        raise _refused(text, f"timeout={value} is not a time span", "write timeout=60s, timeout=5m or timeout=1h")
    return float(found[1]) * _SECONDS[found[2]]


def _expression(value: str, text: str) -> str:
    try:
        tree = ast.parse(value, mode="eval")
    except (SyntaxError, ValueError) as error:
        why = getattr(error, "msg", None) or error
        fix = "quote it: --break 'x.py:9,if=a > 3'"
        raise _refused(text, f"if={value} is not a Python expression: {why}", fix) from error
    _refuse_side_effects(tree, f"if={value}", text)
    return value


def _template(value: str, text: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    try:
        tree = ast.parse(f"f{value!r}", mode="eval")
    except (SyntaxError, ValueError) as error:
        raise _refused(
            text, f'log="{value}" is not a text with {{values}}: {error}', 'write log="loss={loss}"'
        ) from error
    _refuse_side_effects(tree, f'log="{value}"', text)
    return value


def _refuse_side_effects(tree: ast.AST, condition: str, text: str) -> None:
    if any(isinstance(node, _REFUSED) for node in ast.walk(tree)):
        cause = f"{condition} would change the function that it is compiled into"
        raise _refused(text, cause, "write an expression without side effects")


def _refused(text: str, cause: str, fix: str) -> RaydebugError:
    return UsageError(f"--break {text} cannot be read", cause=cause, fix=fix, code="break.policy")
