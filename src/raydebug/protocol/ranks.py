"""Lists of ranks as users write them: `0,3-5`."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_RANK = 100_000


def parse_ranks(text: str) -> set[int]:
    """Return the ranks of a list such as `0,3-5`.

    Raises:
        ValueError: the text is not a list of ranks.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        span = _RANGE.fullmatch(part.strip())
        if span is None:
            raise ValueError(f"{text!r} is not a list of ranks such as 0,3-5")
        first, last = int(span[1]), int(span[2] or span[1])
        if not first <= last < _MAX_RANK:
            raise ValueError(f"{part.strip()!r} is not a range of ranks")
        ranks.update(range(first, last + 1))
    return ranks
