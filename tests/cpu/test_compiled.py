"""Breakpoints in functions that torch.compile compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gateway_under_test import open_gateway
from paused_programs import PausedProgram
from raydebug.client.gateway_client import fetch_pauses
from raydebug.console.attach import attach_group
from raydebug.console.selection import Selection
from raydebug.console.session import GatewayAddress
from raydebug.worker.torch_hooks import NO_GRAPH

PROGRAM = """
import os, raydebug, torch
import torch._dynamo
def double(x):
    y = x * 2
    %s
    z = y + 1
    return z
compiled = torch.compile(double, backend="eager", fullgraph="FULL" in os.environ)
for i in range(40):
    compiled(torch.ones(2) * i)
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
LIMIT_S = 120.0
MOST_GRAPHS = 2  # before the breakpoint and behind it; 8 is where torch gives up and warns


@pytest.mark.parametrize(
    "policy", [{"every": 100}, {"rank": [1]}, {"if": "x[0] > 100"}], ids=lambda one: next(iter(one))
)
def test_misses_from_outside(tmp_path, policy):
    """A breakpoint that does not stop compiles its function not once more with each call, and draws no warning."""
    program = tmp_path / "program.py"
    breaks = [{"id": "b1", "where": "program.py:6", "file": str(program), "line": 6, "policy": policy}]
    graphs, said = run_below_a_cluster(program, "pass", RAYDEBUG_BREAKS=json.dumps(breaks))
    assert (graphs <= MOST_GRAPHS, said) == (True, ""), graphs


@pytest.mark.parametrize("given", ["every=100", "rank=1", "when=False"])
def test_misses_in_the_code(tmp_path, given):
    """So does `raydebug.breakpoint()`."""
    graphs, said = run_below_a_cluster(tmp_path / "program.py", f"raydebug.breakpoint({given})")
    assert (graphs <= MOST_GRAPHS, said) == (True, ""), graphs


def test_hits(tmp_path):
    """One that is due is reached, with the values of that call."""
    program = tmp_path / "program.py"
    policy = {"every": 15, "log": "y={y.tolist()}"}
    breaks = [{"id": "b1", "where": "program.py:6", "file": str(program), "line": 6, "policy": policy}]
    _, said = run_below_a_cluster(program, "pass", RAYDEBUG_BREAKS=json.dumps(breaks))
    assert said == "".join(f"raydebug: {program}:6 y={y}\n" for y in ([28.0, 28.0], [58.0, 58.0]))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("disabled", [False, True], ids=["compiled", "disabled"])
def test_pause(tmp_path, disabled):
    """A pause knows that variables may be missing; torch neither compiles nor warns of what the pause runs."""
    variables = {"TORCH_COMPILE_DISABLE": "1"} if disabled else {}
    with open_gateway(tmp_path) as gateway:
        program = PausedProgram(
            gateway, tmp_path, PROGRAM % "breakpoint() if len(x) == 2 else None", LIMIT_S, **variables
        )
        try:
            assert program.pause["compiled"] is not disabled
            console = GatewayAddress(gateway.gateway_host, gateway.gateway_port, gateway.token)
            attach_group(console, Selection(), lambda: fetch_pauses(gateway), commands=["p x", "n", "n", "p z"])
        finally:
            program.close()
    assert "Warning" not in program.complained


def test_one_graph_only(tmp_path):
    """Where a function has to be one graph, torch refuses our breakpoints as any; its error says what to do."""
    program = tmp_path / "program.py"
    breaks = [{"id": "b1", "where": "program.py:6", "file": str(program), "line": 6, "policy": {}}]
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_below_a_cluster(program, "pass", RAYDEBUG_BREAKS=json.dumps(breaks), FULL="1")
    assert NO_GRAPH in failed.value.stderr


def run_below_a_cluster(program, line, **variables):
    """Run the program with a line in its function; return how many graphs torch made of it, and what it said."""
    program.write_text(PROGRAM % line)
    done = subprocess.run(
        [sys.executable, str(program)], env={**os.environ, "RAYDEBUG_GATEWAY": "127.0.0.1:1", "RANK": "0", **variables},
        capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    return int(done.stdout), done.stderr
