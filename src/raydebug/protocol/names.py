"""The name of a process, one on every screen: `WorkerDict rank 1`, `driver`; and lists of ranks as users write them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import Any

VLLM = "VLLM::"  # vLLM 0.28: titles of its processes, `VLLM::Worker_TP1`
TITLE_CHARS = 40  # of a longer one the program is named
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_RANK = 100_000
_DIGITS = re.compile(r"\d+")
_NUMBERS = re.compile(r"([_:.-]?\d+)+$")


def name_process(about: Mapping[str, Any], ranks: Collection[int] | None = None) -> str:
    """Return the name of a process: of a rank its class, of another actor its name too, else its program.

    Args:
        about: what a process has said of itself, in any of the records that have parts of it.
        ranks: of several processes like this one, in place of its own rank.

    >>> name_process({"actor": "WorkerDict x_0:1", "rank": 1}), name_process({"child_of": 7})
    ('WorkerDict rank 1', 'child of pid 7')
    """
    if ranks is None:
        ranks = [own] if isinstance(own := about.get("rank"), int) else []
    title = str(about.get("title") or about.get("argv") or about.get("role") or "").strip()
    if actor := about.get("actor"):  # the name behind its class is the trainer's, and has the rank mostly
        who = str(actor).partition(" ")[0] if ranks else str(actor)
    elif title.startswith(VLLM):
        who = _DIGITS.sub("", title.split()[0]) if ranks else title.split()[0]
    elif about.get("is_driver"):
        who = "driver"
    elif title:
        who = title if len(title) <= TITLE_CHARS else PurePath(title.split()[0]).name
    else:
        who = f"child of pid {about['child_of']}" if about.get("child_of") else "process"
    return name_ranks(ranks, who) if ranks else who


def pid_option(about: Mapping[str, Any]) -> str:
    """Return a process as `--pid` takes it: with its IP, as other nodes may have its pid, but for one of this machine.

    >>> pid_option({"pid": 77, "ip": "10.0.0.2"}), pid_option({"pid": 77, "ip": "127.0.0.1"})
    ('77@10.0.0.2', '77')
    """
    is_elsewhere = about.get("ip") and about["ip"] != "127.0.0.1"
    return f"{about['pid']}@{about['ip']}" if is_elsewhere else str(about["pid"])


def is_same_node(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two processes are on one node: by Ray's id of it where both have said that, else by their IP."""
    if one.get("node_id") and other.get("node_id"):
        return bool(one["node_id"] == other["node_id"])
    return bool(one.get("ip") == other.get("ip"))


def name_ranks(ranks: Collection[int], who: str = "") -> str:
    """Return the name of ranks.

    >>> name_ranks([3]), name_ranks([0, 1, 2, 7], "Judge")
    ('rank 3', 'Judge ranks 0-2,7')
    """
    return f"{who} rank{'s' if len(ranks) > 1 else ''} {','.join(runs(ranks))}".strip()


def role_of(about: Mapping[str, Any]) -> str:
    """Return what the ranks of one training have in common: verl's are `WorkerDict_0:1`, vLLM's `VLLM::Worker_TP1`."""
    if about["actor"]:
        return _NUMBERS.sub("", about["actor"]) or str(about["actor"])
    title = str(about["title"] or about["argv"] or "")
    return "driver" if about["is_driver"] else _DIGITS.sub("", title) if title.startswith(VLLM) else title


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
