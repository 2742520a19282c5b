"""Stage `env`: do packages, variables, limits, disks and GPUs of the environment fit a training, and each other?

Facts come from `inside/env.py`; the rules here are pure. Each names what it leans on.
"""

from __future__ import annotations

from typing import Any

from raydebug.check import env_gpu, env_limits, env_packages, env_variables
from raydebug.check.ask import ask
from raydebug.check.finding import Finding
from raydebug.check.stage import Checked
from raydebug.check.subject import Subject

BUDGET_S = 0.3

Facts = dict[str, Any]


def check(subject: Subject) -> Checked:
    """Ask the cluster's Python for its environment, and judge it."""
    return Checked(judge(subject, ask(subject, "env", budget_s=BUDGET_S)))


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
