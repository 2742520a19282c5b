"""Who ended a process of a job on a real cluster: `run` names it, and diagnose has it in place of Ray's guesses.

Two kinds of death; RAYDEBUG_TEST_LONG=1 plants all of tests/support/planted_deaths.py.
"""

from __future__ import annotations

import os

import pytest

from planted_deaths import KINDS, PRIVILEGED, plant
from raydebug.cluster.state import Cluster

PLANTED = list(KINDS) if os.environ.get("RAYDEBUG_TEST_LONG") else ["sigsegv"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", PLANTED)
def test_a_death_is_named(kind: str, cluster: Cluster) -> None:
    """The certificate names who ended the process, while the job runs and in its record."""
    if kind in PRIVILEGED and os.geteuid():
        pytest.skip("it needs root")
    row = plant(cluster, kind)
    assert row["right"], row["output"]
    assert row["said"], row["output"]
    assert "End of file" not in "".join(row["said"])
    if kind == "sigsegv":
        assert "deaths.py" in row["said"][0], "the line that crashed"
        assert any("process-death" in line for line in row["told"]), row["output"]
