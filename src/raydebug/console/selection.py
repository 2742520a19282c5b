"""Which pauses come to a prompt, how they are named there (`rank 3`, `#5`, `ranks 0-6`) and addressed (`@0,3 p x`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from raydebug.protocol.listings import ListedPause
from raydebug.protocol.names import parse_ranks, runs

ALL = "*"
_ADDRESS_FIRST = re.compile(r"@\s*(\*|all\b|[#\d,-]+)(?:\s+(.*))?", re.DOTALL)
_ADDRESS_AT_END = re.compile(r"(.*\S)\s+@(\*|[#\d][#\d,-]*)", re.DOTALL)


@dataclass(frozen=True)
class Selection:
    """The pauses that `attach all`, `--ranks` and `--job` ask for.

    Args:
        ranks: only these; None: all, also those without a rank.
        job: only of this job, by its submission id or Ray's own job id.
        steal: also pauses that other clients hold.
    """

    ranks: frozenset[int] | None = None
    job: str | None = None
    steal: bool = False

    def __str__(self) -> str:
        words = "pauses" if self.ranks is None else f"ranks {', '.join(map(str, sorted(self.ranks)))}"
        return words if self.job is None else f"{words} of job {self.job}"

    def takes(self, pause: ListedPause) -> bool:
        """Return whether a pause belongs to the selection, no matter which client holds it."""
        if self.ranks is not None and pause.get("rank") not in self.ranks:
            return False
        return self.job is None or self.job in (pause.get("job"), pause.get("job_id"))

    def split(self, pauses: Iterable[ListedPause]) -> tuple[list[ListedPause], list[ListedPause]]:
        """Return the pauses to attach, by rank, then oldest first; and those that other clients hold."""
        mine = [pause for pause in pauses if self.takes(pause)]
        free = [pause for pause in mine if self.steal or pause.get("state") == "waiting"]
        free.sort(key=lambda pause: (pause.get("rank") is None, pause.get("rank") or 0))
        return free, [pause for pause in mine if not self.steal and pause.get("state") != "waiting"]

    def missing(self, pauses: Iterable[ListedPause]) -> set[int]:
        """Return the requested ranks that these pauses lack."""
        return set(self.ranks or ()) - {pause["rank"] for pause in pauses if pause.get("rank") is not None}


class NotAnAddress(ValueError):
    """The text after an `@` names no pause; the message says why."""


def label(rank: int | None, number: int, taken: Collection[str]) -> str:
    """Return the label of a pause: its rank, else its number; both where another pause has the same rank.

    >>> label(3, 1, []), label(3, 2, ["rank 3"]), label(None, 3, [])
    ('rank 3', 'rank 3 #2', '#3')
    """
    if rank is None:
        return f"#{number}"
    return f"rank {rank}" if f"rank {rank}" not in taken else f"rank {rank} #{number}"


def joined(labels: Sequence[str]) -> str:
    """Return the labels of several pauses, with runs of ranks abbreviated.

    >>> joined(["rank 0", "rank 1", "rank 2", "rank 7"]), joined(["rank 7"]), joined(["#1", "#2", "rank 0"])
    ('ranks 0-2, 7', 'rank 7', 'rank 0, #1, #2')
    """
    ranks = sorted(int(name.removeprefix("rank ")) for name in labels if re.fullmatch(r"rank \d+", name))
    words = []
    if ranks:
        words.append(("rank " if len(ranks) == 1 else "ranks ") + ", ".join(runs(ranks)))
    return ", ".join([*words, *(name for name in labels if not re.fullmatch(r"rank \d+", name))])


def split_address(line: str, *, is_command: bool) -> tuple[str | None, str]:
    """Return the address of a line (None: the current pause) and the command; `c @*` means `@* c`.

    Args:
        line: as typed.
        is_command: whether the line begins with the name of a command; else `a @0` may be Python.

    Raises:
        NotAnAddress: it begins with `@` and names no pause.

    >>> split_address("@0,3 p x", is_command=False), split_address("@3", is_command=False)
    (('0,3', 'p x'), ('3', ''))
    >>> split_address("c @*", is_command=True), split_address("a @0", is_command=False)
    (('*', 'c'), (None, 'a @0'))
    """
    line = line.strip()
    if line.startswith("@"):
        found = _ADDRESS_FIRST.fullmatch(line)
        if found is None:
            raise NotAnAddress(f"{line.split()[0]} names no ranks; write @0,3 or @* or @#1")
        return (ALL if found[1] == "all" else found[1]), (found[2] or "").strip()
    at_end = _ADDRESS_AT_END.fullmatch(line) if is_command else None
    return (at_end[2], at_end[1]) if at_end else (None, line)


def pick(address: str, known: Sequence[tuple[int, int | None]]) -> list[int]:
    """Return the numbers of the pauses that an address names, in the order of `known`.

    Args:
        address: `*`, or ranks and #numbers: `0,3-5,#2`.
        known: number and rank of each pause.

    Raises:
        NotAnAddress: no pause has that rank or number.
    """
    if address == ALL:
        return [number for number, _ in known]
    wanted: set[int] = set()
    for part in address.split(","):
        if part.startswith("#"):
            if part[1:] not in {str(number) for number, _ in known}:
                raise NotAnAddress(f"there is no {part} here; `ranks` lists what there is")
            wanted.add(int(part[1:]))
            continue
        try:
            ranks = sorted(parse_ranks(part))
        except ValueError as error:
            raise NotAnAddress(str(error)) from error
        for rank in ranks:
            found = [number for number, has in known if has == rank]
            if not found:
                hint = "" if any(has is not None for _, has in known) else ": no pause here has a rank; use @#1"
                raise NotAnAddress(f"there is no rank {rank} here{hint or '; `ranks` lists what there is'}")
            wanted.update(found)
    return [number for number, _ in known if number in wanted]
