"""Which kind of cluster `up` starts, by its options."""

from __future__ import annotations

import pytest

from raydebug.cli.up_kinds import COMMAND, choose
from raydebug.errors import RaydebugError


@pytest.mark.parametrize(
    ("asked", "given", "kind"),
    [
        (None, [], None),
        (None, ["--gpus", "--dashboard-port", "--prefork"], None),
        (None, ["--python"], "local"),
        (None, ["--dry-run"], "compose"),
        (None, ["--dry-run", "--nodes"], "slurm"),
        (None, [COMMAND], "slurm"),
        (None, [COMMAND, "--image"], "kubernetes"),
        (None, ["--hosts", "--python", "--node-options"], "ssh"),
        ("ssh", ["--python", "--gpus"], "ssh"),
        ("local", [], "local"),
    ],
)
def test_the_kind(asked: str | None, given: list[str], kind: str | None) -> None:
    """An option that only some kinds take says which; what all take says nothing."""
    assert choose(asked, given) == kind


@pytest.mark.parametrize(
    ("asked", "given", "what"),
    [
        ("cloud", [], "there is no kind of cluster 'cloud'"),
        ("local", ["--mount", "--yes"], "--mount and --yes are for --cluster compose"),
        ("compose", ["--python"], "--python is for --cluster local or slurm or ssh"),
        ("ssh", ["--dry-run"], "--dry-run is for --cluster compose or slurm or kubernetes"),
        (None, ["--python", "--image"], "--image is for --cluster kubernetes"),
        (None, ["--hosts", "--nodes"], "--nodes is for --cluster slurm"),
        ("local", [COMMAND], "what follows `--` is for --cluster slurm or kubernetes"),
    ],
)
def test_what_does_not_fit(asked: str | None, given: list[str], what: str) -> None:
    """An option of another kind is refused with the kinds that take it."""
    with pytest.raises(RaydebugError) as failure:
        choose(asked, given)
    assert failure.value.what == what
