"""Lists of ranks as users write them, and read them: `0,3-5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

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


def runs(numbers: Iterable[int]) -> list[str]:
    """Return whole numbers in order, with runs of three and more shortened.

    >>> runs([7, 0, 1, 2]), runs([4, 3]), runs([])
    (['0-2', '7'], ['3', '4'], [])
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [word for run in found for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
