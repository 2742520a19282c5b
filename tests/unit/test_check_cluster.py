"""What `check cluster` says of nodes: pure judgements of gathered facts."""

from __future__ import annotations

from typing import Any

from raydebug.check import cluster


def judged(*nodes: dict[str, Any]) -> list[str]:
    facts = {"nodes": list(nodes), "unreachable": [], "sum": {"skipped": "no node has a GPU"}}
    return [finding.what for finding in cluster.judge(facts) if finding.severity == "error"]


def test_node_that_was_started_again() -> None:
    """Ray keeps the entry of a dead node; it is no fault where a node of the same address is alive."""
    dead = {"ip": "10.0.0.2", "alive": False, "why": "killed"}
    again = {"ip": "10.0.0.2", "alive": True, "silent": "no task ran"}
    assert judged(dead) == ["node 10.0.0.2 is dead"]
    assert judged(dead, again) == ["node 10.0.0.2 runs no task"]
