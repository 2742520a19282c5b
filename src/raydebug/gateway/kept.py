"""What processes have sent for their jobs, within a budget of bytes: any code of a job may send, in any job's name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Living = Callable[[], Collection[str]]
ITEM_BYTES = 1024  # of an item itself, beside its texts


def size_of(document: Any) -> int:
    """Return about how many bytes of memory a document takes."""
    return len(repr(document).encode("utf-8", "surrogatepass")) + ITEM_BYTES


class KeptPerJob(Generic[Item]):
    """Items of jobs, oldest first. Beyond the bytes of all, or the items of one, jobs lose their oldest.

    First those lose that have ended (that are not among `living()`), then the one that has most: no job displaces what
    others have.
    """

    def __init__(self, most_bytes: int, most_items: int, living: Living) -> None:
        self._most_bytes, self._most_items, self._living = most_bytes, most_items, living
        self._kept: dict[str, deque[tuple[int, Item]]] = {}

    def add(self, job: str, item: Item, size: int) -> None:
        """Keep an item of so many bytes."""
        self._kept.setdefault(job, deque(maxlen=self._most_items)).append((size, item))
        sizes = {one: sum(of for of, _ in kept) for one, kept in self._kept.items()}
        while sum(sizes.values()) > self._most_bytes:
            living = self._living()
            ended = next((one for one in sizes if one not in living), None)
            loser = max(sizes, key=sizes.__getitem__) if ended is None else ended
            sizes[loser] -= self._kept[loser].popleft()[0]
            if not self._kept[loser]:
                del self._kept[loser], sizes[loser]

    def of_job(self, job: str) -> list[Item]:
        """Return the items of a job."""
        return [item for _, item in self._kept.get(job, ())]
