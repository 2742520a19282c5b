"""Find the rank that keeps others waiting in a collective: from torch's flight recorder, or from stacks without one.

The recorder numbers the collectives of each process group. If a rank waits in one that another rank called with another
operation, size or type, or did not call, this is the reason for the hang. Stacks show only where each rank is now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.names import name_process, name_ranks
from raydebug.protocol.records import RAY_COLLECTIVE, CollectiveCall, CollectiveGroup
from raydebug.stacks.groups import place
from raydebug.stacks.wait_kinds import (
    CERTAIN,
    COLLECTIVE,
    LIKELY,
    LOGS,
    Verdict,
    Wait,
    attach,
    holds_gil,
    make_verdict,
    show_locals,
    who,
)

# Operations that need inputs of equal size and type on all ranks, as the recorder calls them (torch 2.11 and 2.13).
EQUAL_INPUTS = re.compile(
    r"^_?(all_?reduce|broadcast|reduce|all_?gather_(base|into_tensor)|reduce_scatter_(base|tensor))$"
)
POINT_TO_POINT = re.compile(r"send|recv")


def judge_collectives(
    waits: Sequence[Wait],
    processes: Sequence[ListedStacks],
    moved: Sequence[ListedStacks],
    earlier: Sequence[ListedStacks] = (),
) -> Verdict | None:
    """Return the verdict on the rank that keeps others waiting in a collective; None if there is none.

    Args:
        waits: of the processes that work.
        processes: all of the job.
        moved: those that were elsewhere in an earlier look.
        earlier: the processes of earlier looks; a rank that was never seen is not there yet.
    """
    groups, instances = _read_groups(processes), {process["instance"] for process in moved}
    places = {wait.process["instance"]: wait for wait in waits}
    judged = [_judge_group(group, places, processes, instances) for group in groups]
    # A rank that is missing because it waits in a collective of another group is explained by that group. If two ranks
    # wait in different groups, one has left out the other's collective: rank 0 is blamed last.
    if verdicts := [pair for pair in judged if pair is not None]:
        return min(verdicts, key=lambda pair: (pair[0], [-rank for rank in pair[1]["ranks"]]))[1]
    recorded = {process["instance"] for group in groups for process in group.waiting()}
    by_role: dict[object, list[Wait]] = {}
    for wait in waits:
        if wait.kind == COLLECTIVE and wait.process["instance"] not in recorded:
            by_role.setdefault((wait.process["role"], wait.process["child_of"]), []).append(wait)
    seen = {(process["role"], process["rank"]) for process in earlier}
    by_stacks = [_judge_stacks(inside, waits, processes, instances, seen) for inside in by_role.values()]
    return min(filter(None, by_stacks), key=lambda verdict: verdict["kind"] == "moving", default=None)


# By the flight recorder


@dataclass
class _ProcessGroup:
    """One process group: its ranks, their processes, and the calls of each by sequence number."""

    label: str
    ranks: list[int]
    present: set[int]  # ranks with a process in a group like this one, of any role
    is_rays: bool = False  # of ray.util.collective: it counts no calls
    members: dict[int, ListedStacks] = field(default_factory=dict)
    calls: dict[int, dict[int, CollectiveCall]] = field(default_factory=dict)
    is_ambiguous: bool = False  # two groups have the same key

    def pending(self, rank: int) -> list[int]:
        return [seq for seq, call in self.calls[rank].items() if not call.get("done")]

    def waiting(self) -> list[ListedStacks]:
        return [process for rank, process in self.members.items() if self.pending(rank)]


def _read_groups(processes: Sequence[ListedStacks]) -> list[_ProcessGroup]:
    """Return the groups in which a rank waits: one for each backend that a process group of torch has."""
    backends: dict[object, set[str]] = {}
    for _, given in _given(processes):
        backends.setdefault(_name(given), set()).update(call.get("backend", "") for call in given.get("calls", []))
    groups: dict[object, _ProcessGroup] = {}
    present: dict[object, set[int]] = {}
    for process, given in _given(processes):
        rank, about = given.get("rank", -1), given.get("description", "")
        alike = present.setdefault((process["job"], _name(given)), set())
        alike.add(rank)
        for backend in backends[_name(given)]:
            calls = {call.get("seq", 0): call for call in given.get("calls", []) if call.get("backend", "") == backend}
            if not calls and given.get("full"):
                continue  # its calls may be overwritten
            label = " ".join(part for part in (given.get("name", ""), about, backend) if part not in ("", "undefined"))
            of_role = () if about == RAY_COLLECTIVE else (process["role"], process["child_of"])
            key = (process["job"], *of_role, backend, _name(given))
            group = groups.setdefault(key, _ProcessGroup(label, given["ranks"], alike, about == RAY_COLLECTIVE))
            group.is_ambiguous |= rank in group.members
            group.members[rank], group.calls[rank] = process, calls
    return [group for group in groups.values() if not group.is_ambiguous and group.waiting()]


def _given(processes: Sequence[ListedStacks]) -> Iterator[tuple[ListedStacks, CollectiveGroup]]:
    for process in processes:
        for given in process.get("collectives", []):
            if len(given.get("ranks", [])) > 1:
                yield process, given


def _name(given: CollectiveGroup) -> object:
    return given.get("name", ""), *given["ranks"]


def _judge_group(
    group: _ProcessGroup, places: dict[str, Wait], processes: Sequence[ListedStacks], moved: set[str]
) -> tuple[int, Verdict] | None:
    """Return the verdict on a group and its priority: the lowest one of all groups is the cause."""
    seq = min(seq for rank in group.members for seq in group.pending(rank))
    inside = {rank: group.members[rank] for rank in group.members if seq in group.pending(rank)}
    if any(process["instance"] in moved for process in inside.values()):
        return None
    # The calls of ray.util.collective have no numbers: ranks one call apart would differ.
    for each in sorted({seq for calls in group.calls.values() for seq in calls if not group.is_rays}):
        different = _differences(group, each)
        if len(different) > 1:
            return 0, _mismatch(group, each, different, places)
    rank, first = next(iter(inside.items()))
    waiting = f"{name_ranks(inside)} {_verb('wait', len(inside))} in collective {seq} of group {group.label}, "
    waiting += f"{_words(group.calls[rank][seq])}, {_where(first, places)}"
    members = {process["instance"] for process in group.members.values()}
    of_role = [process for process in processes if process["role"] == first["role"]]
    others = [process for process in of_role if process["instance"] not in members]
    there = {process["rank"] for process in others} | group.present
    gone = [rank for rank in group.ranks if rank not in there]
    if not group.is_rays and max(group.ranks) >= (first["world"] or 0):
        others, gone = [], []  # OpenRLHF's group of a trainer and its engines counts ranks of its own
    if gone and None not in there and group.is_rays:
        return 1, _not_there(gone, first, waiting)
    if gone and None not in there:  # torch makes a group when all of its ranks are there
        return 1, _gone(gone, name_process(first, gone), waiting)
    silent = [process for process in others if process["state"] != messages.ANSWERED]
    late = {process["rank"]: process for process in silent if process["rank"] in group.ranks}
    late |= {rank: one for rank, one in group.members.items() if max(group.calls[rank], default=0) < seq}
    if not late:
        return None
    first = next(iter(late.values()))
    late_ones = name_process(first, [rank for rank in late if rank is not None])
    if first["instance"] in moved:
        return 4, _slow(late_ones, _state(first, places), waiting, list(late.values()))
    waits = [places[process["instance"]] for process in late.values() if process["instance"] in places]
    also_waits = any(wait.kind == COLLECTIVE for wait in waits)
    text = f"{late_ones} did not join {_words(group.calls[rank][seq])}: it {_state(first, places)}; {waiting}"
    return 3 if also_waits else 2, make_verdict("missing-rank", CERTAIN, text, attach(first), list(late.values()))


def _differences(group: _ProcessGroup, seq: int) -> list[list[int]]:
    """Group the ranks that called a collective by operation, size and type; the largest group comes first."""
    found: dict[object, list[int]] = {}
    for rank in sorted(group.calls):
        if call := group.calls[rank].get(seq):
            op = call.get("op", "")
            sizes = (call.get("elements"), call.get("dtypes")) if EQUAL_INPUTS.search(op) else ()
            found.setdefault((op, *sizes), []).append(rank)
    return sorted(found.values(), key=len, reverse=True)


def _mismatch(group: _ProcessGroup, seq: int, different: list[list[int]], places: dict[str, Wait]) -> Verdict:
    parts = []
    for ranks in [*different[1:], different[0]]:
        call, process = group.calls[ranks[0]][seq], group.members[ranks[0]]
        if call.get("done"):
            parts.append(f"{name_ranks(ranks)} has called {_words(call)}, and {_state(process, places)}")
        else:
            parts.append(f"{name_ranks(ranks)} {_verb('call', len(ranks))} {_words(call)} {_where(process, places)}")
    odd = [group.members[rank] for ranks in different[1:] for rank in ranks]
    members = name_process(odd[0], list(group.calls))
    text = f"{members} differ in collective {seq} of group {group.label}: {'; '.join(parts)}"
    return make_verdict("collective-mismatch", CERTAIN, text, show_locals(odd[0]), odd)


# Words


def _words(call: CollectiveCall) -> str:
    return " ".join(part for part in (call.get("op", "").lstrip("_"), call.get("sizes"), call.get("dtypes")) if part)


def _verb(verb: str, subjects: int) -> str:
    return verb if subjects > 1 else f"{verb}s"


def _where(process: ListedStacks, places: dict[str, Wait]) -> str:
    wait = places.get(process["instance"])
    return f"at {place(wait.at)}" if wait is not None else "(its task has returned)"


def _state(process: ListedStacks, places: dict[str, Wait]) -> str:
    wait = places.get(process["instance"])
    if wait is None:
        return "is idle, its task has returned" if process["threads"] else "does not answer"
    if process["state"] != messages.ANSWERED and holds_gil(process, wait.thread):
        return f"is at {place(wait.at)}, where native code holds Python's lock (GIL)"
    return f"is at {place(wait.at)}" + (f", waiting for {wait.what}" if wait.what else "")


# By stacks


def _judge_stacks(
    inside: Sequence[Wait], waits: Sequence[Wait], processes: Sequence[ListedStacks], moved: set[str],
    seen: Collection[tuple[str, int | None]],
) -> Verdict | None:  # fmt: skip
    """Return the verdict on ranks of one role without recorded calls, from their stacks."""
    if any(wait.process["instance"] in moved for wait in inside):
        return None
    names = {wait.what for wait in inside}
    by_name = sorted(([wait for wait in inside if wait.what == name] for name in names), key=len)
    if len(by_name) > 1 and not any(POINT_TO_POINT.search(wait.what) for wait in inside):
        parts = [f"{_members(same)} in {same[0].what} at {place(same[0].at)}" for same in by_name]
        odd = [wait.process for wait in by_name[0]]
        text = f"{_members(inside)} are in different collectives: {'; '.join(parts)}"
        return make_verdict("collective-mismatch", LIKELY, text, show_locals(odd[0]), odd)
    first = inside[0].process
    role, waiting = first["role"], _waiting(inside)
    there = {process["rank"] for process in processes if process["role"] == role}
    missing = [rank for rank in range(max(wait.process["world"] or 0 for wait in inside)) if rank not in there]
    if missing and None not in there:
        if gone := [rank for rank in missing if (role, rank) in seen]:
            return _gone(gone, name_ranks(gone), waiting)
        return _not_there(missing, first, waiting)
    places = {wait.process["instance"]: wait for wait in waits}
    outside = []
    for process in processes:
        wait = places.get(process["instance"])
        is_peer = process["role"] == role and process["child_of"] == first["child_of"] and process["threads"]
        if is_peer and (process["rank"] is not None if wait is None else wait.kind != COLLECTIVE):
            outside.append(process)
    if not outside:
        return None
    first = outside[0]
    if first["instance"] in moved:
        return _slow(who(first), _state(first, places), waiting, outside)
    ranks = [process["rank"] for process in outside if process["rank"] is not None]
    late = name_ranks(ranks) if len(ranks) == len(outside) else ", ".join(who(process) for process in outside[:3])
    text = f"{late} did not join {inside[0].what}: it {_state(first, places)}; {waiting}"
    return make_verdict("missing-rank", LIKELY, text, attach(first), outside)


def _gone(ranks: list[int], those: str, waiting: str) -> Verdict:
    text = f"the process of {those} is gone; {waiting}"
    return {**make_verdict("crashed-peer", CERTAIN, text, LOGS), "ranks": ranks}


def _slow(those: str, state: str, waiting: str, late: Sequence[ListedStacks]) -> Verdict:
    text = f"the others wait for a slow one: {those} {state}, and moves; {waiting}"
    return make_verdict("moving", LIKELY, text, None, late)


def _not_there(ranks: list[int], peer: ListedStacks, waiting: str) -> Verdict:
    are = "are" if len(ranks) > 1 else "is"
    text = f"{name_process(peer, ranks)} {are} not there (yet): no such process was seen; {waiting}"
    return {**make_verdict("starting", LIKELY, text, LOGS), "ranks": ranks}


def all_inside(waits: Sequence[Wait]) -> Verdict | None:
    """Return the verdict on ranks that all wait in a collective."""
    inside = [wait for wait in waits if wait.kind == COLLECTIVE]
    if not inside:
        return None
    where = f"{_waiting(inside)} at {place(inside[0].at)}"
    text = f"{where}; no rank is seen elsewhere: it takes long, or the network fails"
    return make_verdict("unknown", LIKELY, text, "raydebug stacks --samples 2", [wait.process for wait in inside])


def _waiting(inside: Sequence[Wait]) -> str:
    return f"{_members(inside)} {_verb('wait', len(inside))} in {inside[0].what}"


def _members(waits: Sequence[Wait]) -> str:
    """Name ranks of one role, `Trainer ranks 0-2`; where no rank is known, `2 processes of Trainer`."""
    first, ranks = waits[0].process, [wait.process["rank"] for wait in waits if wait.process["rank"] is not None]
    several = f"{len(waits)} process{'es' if len(waits) > 1 else ''} of {first['role']}"
    return name_process(first, ranks) if ranks else several
