"""`raydebug check cluster`: the checklist of a running cluster: nodes, versions, clocks, ports, an all-reduce."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check import env, env_machine
from raydebug.check.probes import BUSY_TIMES, MARK, Facts
from raydebug.check.target import NoAnswer, StageResult, Target, facts_of
from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.head_requests import stop_job
from raydebug.cluster.locks import Use
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError, UsageError
from raydebug.findings import Finding, finding
from raydebug.jobs.submit import Job, submit
from raydebug.process import SAFE_PATH

BUDGET_S = 60.0
CLOCK_OFF_S = 2.0  # logs of two nodes no longer tell what came first; tokens and certificates bear more
POLL_S = 0.3


def check(target: Target) -> StageResult:
    """Gather facts about the nodes of the running cluster and judge them.

    Raises:
        RaydebugError: no cluster runs.
    """
    if target.cluster is None:
        raise UsageError(
            "no cluster runs that could be checked",
            cause="`raydebug check cluster` asks the nodes of a running one",
            fix="`raydebug up` first, or name one that runs with --name",
            code="check.no-cluster",
        )
    return StageResult(judge(_ask(target)))


def _ask(target: Target) -> Facts:
    """Run the probe as a job on the cluster and return its facts."""
    assert target.cluster is not None
    backend = "nccl" if target.cluster.flavour == "cuda" else "gloo"
    request = {"question": "cluster", "backend": backend, "limit_s": 3 * BUDGET_S}
    command = ["python", SAFE_PATH, "-m", "raydebug.check.probes", json.dumps(request)]
    job = Job(command=command, working_dir=target.runner.folder(target.folder), debugger="off")
    with Use(target.cluster.name) if target.cluster.owner else contextlib.nullcontext():
        return _run(target.cluster, job)


def _run(cluster: Cluster, job: Job) -> Facts:
    submission_id = submit(cluster, job)
    dashboard = Dashboard(cluster)
    deadline = time.monotonic() + 3 * BUDGET_S * BUSY_TIMES
    try:
        while dashboard.job(submission_id)["status"] not in ENDED and time.monotonic() <= deadline:
            time.sleep(POLL_S)
    finally:
        with contextlib.suppress(RaydebugError):
            stop_job(cluster, submission_id)
    log = dashboard.job_logs(submission_id)
    lines = [line for line in log.splitlines() if line.startswith(MARK)]
    if not lines:
        last = log.strip().splitlines()[-1:] or ["(it printed nothing)"]
        raise NoAnswer(finding("cluster.no-job", program=shlex.join(job.command[:3]), last=last))
    return facts_of(json.loads(lines[-1].removeprefix(MARK)), "cluster", 3 * BUDGET_S)


def judge(facts: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about a cluster. Pure."""
    living = [node for node in facts["nodes"] if node["alive"]]
    return [
        *_nodes(facts["nodes"]),
        *_environments([node for node in living if "facts" in node]),
        *_clocks(living),
        *(finding("cluster.ports", pair=pair, port=pair.get("port", "?")) for pair in facts["unreachable"][:5]),
        *_sum(facts["sum"]),
    ]


def _nodes(nodes: list[Mapping[str, Any]]) -> Iterator[Finding]:
    alive = {node["ip"] for node in nodes if node["alive"]}  # Ray keeps the entry of a node that was started again
    for node in nodes:
        if not node["alive"]:
            if node["ip"] in alive:
                continue
            yield finding("cluster.node.dead", node=node)
        elif "silent" in node:
            yield finding("cluster.node.silent", node=node)


def _environments(nodes: list[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the faults of single nodes, by name, and the differences between nodes."""
    if not nodes:
        return
    first, *others = nodes
    yield from env.compare(first["facts"], {node["ip"]: node["facts"] for node in others})
    for node in nodes:
        on_cpu = node["facts"]["variables"].get("VERL_PLATFORM") == "cpu" or not node["gpus"]
        gpus = env_machine.judge_gpus(node["facts"], on_cpu=on_cpu, wants_training=False)
        for fault in (*env_machine.judge_limits(node["facts"]), *gpus):
            yield Finding(fault.code, fault.severity, f"node {node['ip']}: {fault.what}", fault.why, fault.fix)


def _clocks(nodes: list[Mapping[str, Any]]) -> Iterator[Finding]:
    for node in nodes:
        off = abs(node.get("clock_off_s", 0.0)) - node.get("clock_known_to_s", 0.0)
        if off > CLOCK_OFF_S:
            yield finding("cluster.clock", node=node)


def _sum(found: Mapping[str, Any]) -> Iterator[Finding]:
    if "skipped" in found:
        yield finding("cluster.all-reduce.not-tried", skipped=found["skipped"])
    elif "failed" in found or not found["right"]:
        yield finding("cluster.all-reduce.failed" if "failed" in found else "cluster.all-reduce.wrong", tried=found)
