"""Stage `env`: do packages, variables, limits, disks and GPUs of the environment fit a training, and each other?

Facts come from `inside/env.py`; the rules here are pure. Each names what it leans on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from raydebug.check import env_gpu, env_limits, env_packages, env_variables
from raydebug.check.ask import ask
from raydebug.check.finding import Finding, error
from raydebug.check.stage import Checked
from raydebug.check.subject import Subject

BUDGET_S = 0.3

Facts = dict[str, Any]


def check(subject: Subject) -> Checked:
    """Ask the cluster's Python for its environment, and judge it."""
    facts = ask(subject, "env", budget_s=BUDGET_S)
    others = {name: ask(replace(subject, place=place), "env", budget_s=BUDGET_S) for name, place in subject.others}
    return Checked([*judge(subject, facts), *compare(facts, others)])


def compare(facts: Facts, others: Mapping[str, Facts]) -> Iterator[Finding]:
    """Return in what the nodes of a cluster differ. Pure.

    Args:
        facts: of the node that was looked at.
        others: of the others, by name.
    """
    for node, other in others.items():
        mine, theirs = ({"Python": f["python"], **f["packages"]} for f in (facts, other))
        different = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        if different:
            first = different[0]
            yield error(
                "env.node-differs",
                f"node {node} has {first} {theirs.get(first, '(not installed)')}, another has"
                f" {mine.get(first, '(not installed)')}",
                why=f"they differ in {', '.join(different[:6])}; Ray refuses another Ray or Python at once",
                fix="`raydebug down` and `raydebug up`: all nodes of one image",
            )


def judge(subject: Subject, facts: Facts) -> list[Finding]:
    """Return the findings about an environment. Pure.

    Args:
        subject: its command says what is needed; its caller's environment is that of the debugger's flags.
        facts: of `inside/env.py`.
    """
    on_cpu = facts["variables"].get("VERL_PLATFORM", "").strip().lower() == "cpu"
    return [
        *env_packages.judge(facts, wants_training=subject.trainer is not None),
        *env_variables.judge(facts, subject.caller),
        *env_limits.judge(facts),
        *env_gpu.judge(facts, on_cpu=on_cpu, wants_training=subject.trainer is not None),
    ]
