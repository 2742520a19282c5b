"""Which kind of cluster `up` starts, by its options."""

from __future__ import annotations

import pytest

from raydebug.cli.up_kinds import choose
from raydebug.errors import RaydebugError


@pytest.mark.parametrize(
    ("asked", "given", "kind"),
    [
        (None, [], None),
        (None, ["--gpus", "--dashboard-port", "--prefork"], None),
        (None, ["--python"], "local"),
        (None, ["--dry-run"], "compose"),
        ("local", [], "local"),
    ],
)
def test_the_kind(asked: str | None, given: list[str], kind: str | None) -> None:
    """An option that only one kind takes says which; what both take says nothing."""
    assert choose(asked, given) == kind


@pytest.mark.parametrize(
    ("asked", "given", "what"),
    [
        ("cloud", [], "there is no kind of cluster 'cloud'"),
        ("local", ["--mount", "--yes"], "--mount and --yes are for --cluster compose"),
        ("compose", ["--python"], "--python is for --cluster local"),
        (None, ["--python", "--dry-run"], "--dry-run is for --cluster compose"),
    ],
)
def test_what_does_not_fit(asked: str | None, given: list[str], what: str) -> None:
    """An option of another kind is refused with the kind that takes it."""
    with pytest.raises(RaydebugError) as failure:
        choose(asked, given)
    assert failure.value.what == what
