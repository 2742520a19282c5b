"""Find the rank that comes to collectives later than the others, again and again: they wait for it. Pure.

A collective ends when its last rank comes. What this rank costs is how long the one before it waited, less what it had
itself waited for others just before. The duration of a phase shows nothing: ranks of a synchronous step end together.
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from raydebug.protocol.listings import ListedAnswer
from raydebug.protocol.names import VLLM, name_process, pid_option
from raydebug.protocol.questions import CollectiveTimes
from raydebug.render import command, duration
from raydebug.stacks.wait_kinds import LIKELY, Verdict, make_verdict

# The time is cut into PARTS equal parts, or at the ends of steps. A rank is slow if in MOST of those with collectives
# it has cost the others SHARE of the part, LEAST_S in all, and TIMES as much as any other rank: on a loaded machine
# each is late now and then, and two ranks come to 3 times in 3 % of such runs.
PARTS, LEAST_PARTS, MOST = 10, 3, 0.7
SHARE, SHARE_OF_STEP = 0.1, 0.05
LEAST_S, TIMES = 0.5, 4.0
_ONE_SIDED = re.compile(r"broadcast|^scatter")  # idle servers wait for the next command of one rank
Answer: TypeAlias = ListedAnswer[CollectiveTimes]


class LateCall(NamedTuple):
    """A collective that all of its ranks have called, and who came last."""

    at_s: float  # of the last call, since the epoch
    took_s: float  # since the collective before it
    rank: int
    cost_s: float
    what: str


class Team(NamedTuple):
    """The ranks of one training, or of a part of it such as a reward model, with their collectives in order."""

    job: str | None
    name: str
    answers: Mapping[int, Answer]  # by rank
    calls: Sequence[LateCall]
    age_s: float  # of the last call

    def goes_on(self) -> bool:
        """Return whether it does not hang: its last collective is not older than they are apart at most."""
        return self.age_s <= 2 * max((call.took_s for call in self.calls), default=0.0)


class SlowRank(NamedTuple):
    """A rank that the others wait for, and in words what it costs."""

    team: Team
    rank: int
    text: str

    def verdict(self, cause: str) -> Verdict:
        """Return the verdict; the cause is what was seen of the rank, empty if nothing was."""
        answer = self.team.answers[self.rank]
        text = f"{self.text}; {cause}" if cause else self.text
        following = command("raydebug", "attach", "--pid", pid_option(answer["process"]))
        verdict = make_verdict("slow-rank", LIKELY, text, following)
        return {
            **verdict,
            "pids": [answer["process"]["pid"] or 0],
            "instances": [answer["instance"]],
            "ranks": [self.rank],
        }


def find_teams(answers: Sequence[Answer]) -> list[Team]:
    """Return the teams of the ranks that have answered."""
    by_role: dict[object, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer["answer"] and "rank" in answer["answer"]:
            by_role[answer["process"]["job"], _role(answer), answer["process"]["child_of"]].append(answer)
    return [team for members in by_role.values() if (team := _team(members)) is not None]


def _role(one: Answer) -> str:
    """Return what ranks of one part of a job have in common; empty for plain processes, whose titles may differ."""
    role = one.get("role", "")
    return role if one["process"]["actor"] or role.startswith(VLLM) else ""


def _team(members: Sequence[Answer]) -> Team | None:
    times_of = {process["answer"]["rank"]: process["answer"] for process in members if process["answer"]}
    answers = {process["answer"]["rank"]: process for process in members if process["answer"]}
    if len(times_of) != len(members) or len(times_of) < 2:  # two trainings of one role cannot be told apart
        return None
    at: dict[tuple[tuple[object, ...], int, str], dict[int, float]] = defaultdict(dict)
    for rank, times in times_of.items():
        for group in times.get("groups", []):
            ranks = group.get("name"), group.get("backend"), *group.get("ranks", [])
            for seq, op, at_ns in zip(
                group.get("seqs", []), group.get("ops", []), group.get("at_ns", []), strict=False
            ):
                at[ranks, seq, op][rank] = at_ns / 1e9
    whole = [(f"{op} number {seq}", each) for (ranks, seq, op), each in at.items() if len(each) == len(ranks) - 2 > 1]
    ahead = _clocks({rank: str(one["process"]["ip"]) for rank, one in answers.items()}, [each for _, each in whole])
    same = [(what, {rank: moment - ahead[rank] for rank, moment in each.items()}) for what, each in whole]
    calls = _late_calls(sorted(same, key=lambda one: max(one[1].values())))
    now_s = statistics.median(times.get("now_ns", 0) / 1e9 - ahead[rank] for rank, times in times_of.items())
    age_s = now_s - calls[-1].at_s if calls else math.inf
    return Team(members[0]["process"]["job"], _role(members[0]), answers, calls, age_s)


def _clocks(nodes: Mapping[int, str], calls: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return by how many seconds the clock of each rank's node is ahead of that of the first rank's.

    Ranks leave a collective at one time. So two nodes come to most of them at one time, whatever their clocks say: a
    constant difference makes nobody late.
    """
    apart: dict[str, list[float]] = defaultdict(list)
    for at in calls:
        first: dict[str, float] = {}
        for rank, moment in at.items():
            first[nodes[rank]] = min(moment, first.get(nodes[rank], math.inf))
        for node in first:
            apart[node].append(first[node] - first.get(nodes[min(nodes)], first[node]))
    return {rank: statistics.median(apart[node] or [0.0]) for rank, node in nodes.items()}


def _late_calls(calls: Sequence[tuple[str, Mapping[int, float]]]) -> list[LateCall]:
    released: dict[int, float] = {}  # when each rank could go on after the collective before
    late_calls, before_s = [], math.nan
    for what, at in calls:
        *_, second, last = sorted(at, key=lambda rank: at[rank])
        if last in released and second in released:
            own = [max(0.0, at[rank] - released[rank]) for rank in (second, last)]
            cost_s = 0.0 if _ONE_SIDED.search(what) else max(0.0, min(at[last] - at[second], own[1] - own[0]))
            late_calls.append(LateCall(at[last], at[last] - before_s, last, cost_s, what))
        before_s = at[last]
        released.update(dict.fromkeys(at, before_s))
    return late_calls


def find_slow(team: Team, step_ends: Sequence[float] | None = None) -> SlowRank | None:
    """Return the rank that the others wait for; None if there is none.

    Args:
        team: with its collectives.
        step_ends: when its last steps have ended, in seconds since the epoch; the first one only begins the second
            step. None where steps are unknown: equal parts of the time stand for them.
    """
    if not team.calls:
        return None
    first_s, last_s = team.calls[0].at_s - team.calls[0].took_s, team.calls[-1].at_s
    inner = [first_s + (last_s - first_s) * number / PARTS for number in range(1, PARTS)]
    edges = [-math.inf, *inner, math.inf] if step_ends is None else step_ends
    parts: dict[int, list[LateCall]] = defaultdict(list)
    for call in team.calls:
        parts[bisect_left(edges, call.at_s)].append(call)
    for outside in (0, len(edges)):  # before the first of these steps; of one that has not ended
        parts.pop(outside, None)
    slow_in, share = Counter[int](), SHARE if step_ends is None else SHARE_OF_STEP
    for calls in parts.values():
        worst, most_s, next_s = _two_worst(calls)
        slow_in[worst] += most_s - next_s >= share * sum(call.took_s for call in calls)
    shown = [call for calls in parts.values() for call in calls]
    rank, cost_s, others_s = _two_worst(shown)
    if len(parts) < LEAST_PARTS or slow_in[rank] < MOST * len(parts) or cost_s < max(LEAST_S, TIMES * others_s):
        return None
    most = max((call for call in shown if call.rank == rank), key=lambda call: call.cost_s)
    who = name_process(team.answers[rank]["process"], [rank])
    text = (
        f"{who} is slower than the others: they have waited {duration(cost_s)} of"
        f" {duration(sum(call.took_s for call in shown))} for it, in {slow_in[rank]} of {len(parts)}"
        f" {'parts of the time' if step_ends is None else 'steps'}, and for the next one {duration(others_s)};"
        f" most before {most.what} ({duration(most.cost_s)})"
    )
    return SlowRank(team, rank, text)


def _two_worst(calls: Sequence[LateCall]) -> tuple[int, float, float]:
    """Return the rank that has cost most, how much, and what the next one has."""
    cost_s: dict[int, float] = defaultdict(float)
    for call in calls:
        cost_s[call.rank] += call.cost_s
    (rank, most_s), (_, next_s) = sorted([*cost_s.items(), (-1, 0.0), (-1, 0.0)], key=lambda one: -one[1])[:2]
    return rank, most_s, next_s
