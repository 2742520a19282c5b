"""Lists of ranks, as people write them."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 100_000


def parse_ranks(text: str) -> set[int]:
    """Return the ranks of `0,3-5`.

    Raises:
        ValueError: it is no list of ranks.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{text!r} is no list of ranks such as 0,3-5")
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < _MOST:
            raise ValueError(f"{part.strip()!r} is no range of ranks")
        ranks.update(range(first, last + 1))
    return ranks
