"""Ask ranks when they have called their collectives: once in `raydebug stacks`, once in a while in `raydebug run`.

Why a rank is slow is looked up once: LOOKS looks at its stack, and what it, the others and its node use meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydebug import render
from raydebug.client.gateway_client import ask_processes, fetch_stacks
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError
from raydebug.process import answer_in
from raydebug.protocol.messages import ANSWERED
from raydebug.protocol.questions import COLLECTIVE_TIMES, TRAINING, CollectiveTimes, Nothing, TimesBody
from raydebug.stacks.groups import place
from raydebug.stacks.slow_ranks import PARTS, Answer, LateCall, SlowRank, Team, find_slow, find_teams
from raydebug.stacks.wait_kinds import COLLECTIVE, Verdict, wait_of

if TYPE_CHECKING:
    from raydebug.jobs.recorder import Recorder

EVERY_S = 30.0  # a reading takes a rank 50 ms at most
WINDOW_S, ONCE_S = 300.0, 600.0  # of a program without steps; of one look
MOST_CALLS = 20_000  # of a team
LOOKS, APART_S, TIMEOUT_S, GPUS_S = 12, 0.15, 1.0, 30.0
DISK_BYTES, DISK_TIMES = 2**20, 4  # read by the slow rank, and as much as by any other one
BUSY = 1.5  # load of a node for each of its CPUs
# verl 0.9.1 utils/seqlen_balancing.py, log_seqlen_unbalance: tokens of the rank with most and with fewest, balanced or
# not. `minmax_diff` is their difference.
LENGTHS = (("global_seqlen/balanced_max", "global_seqlen/balanced_min"), ("global_seqlen/max", "global_seqlen/min"))
LONGER = 1.2


def slow_verdicts(cluster: Cluster, job: str | None) -> dict[str | None, Verdict]:
    """Return a verdict for each job (None: of all) that goes on and has a slow rank; none without a gateway."""
    verdicts: dict[str | None, Verdict] = {}
    with contextlib.suppress(RaydebugError):
        for team in find_teams(_ask(cluster, ONCE_S, job=job)):
            if team.goes_on() and (slow := find_slow(team)) is not None:
                verdicts[team.job] = slow.verdict(find_cause(cluster, slow))
    return verdicts


def _ask(cluster: Cluster, last_s: float, **which: Any) -> Sequence[Answer]:
    body: TimesBody = {"last_s": last_s}
    return ask_processes(cluster, COLLECTIVE_TIMES, body, timeout_s=TIMEOUT_S, **which)


class SlowWatch:
    """Watches the ranks of one job; each slow one is a finding of the run, once."""

    def __init__(self) -> None:
        self._calls: dict[object, deque[LateCall]] = {}
        self._named: set[object] = set()

    async def watch(self, cluster: Cluster, job: str, recorder: Recorder) -> None:
        """Watch until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                if recorder.is_paused:  # the others wait for a breakpoint
                    continue
                for team in find_teams(await asyncio.to_thread(_ask, cluster, 2 * EVERY_S, job=job)):
                    if (slow := self.take(team, recorder.step_ends)) is not None:
                        await asyncio.to_thread(_report, cluster, slow, recorder)
            except RaydebugError:  # without a gateway nothing is known
                continue
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the user's run
                render.say(f"slow ranks are not looked for any more: {type(error).__name__}: {error}")
                return

    def take(self, team: Team, step_ends: Sequence[float] | None) -> SlowRank | None:
        """Add the new calls of a team, and return its slow rank if that was not named before. Pure.

        Args:
            team: from the last look.
            step_ends: of the training, in seconds since the epoch; None where no trainer is recognised.
        """
        key = team.job, team.name, tuple(sorted(answer["instance"] for answer in team.answers.values()))
        known = self._calls.setdefault(key, deque(maxlen=MOST_CALLS))
        last_s = known[-1].at_s if known else 0.0
        known += [call for call in team.calls if call.at_s > last_s]
        recent_s = known[-1].at_s - WINDOW_S if known and step_ends is None else 0.0
        recent = team._replace(calls=[call for call in known if call.at_s > recent_s])
        slow = find_slow(recent, None if step_ends is None else step_ends[-PARTS - 1 :])
        if slow is None or (key, slow.rank) in self._named:
            return None
        self._named.add((key, slow.rank))
        return slow


def _report(cluster: Cluster, slow: SlowRank, recorder: Recorder) -> None:
    causes = [cause for cause in (longer_batch(recorder.last_metrics), find_cause(cluster, slow)) if cause]
    why, following = "; ".join(causes) or "not seen", slow.verdict("")["next"] or ""
    recorder.take_finding("run.slow-rank", "warning", slow.text, why=why, fix=following)
    for line in (f"warning: {slow.text}  [run.slow-rank]", f"cause: {why}", f"next: {following}"):
        render.say(render.visible(line, keep=""))


def find_cause(cluster: Cluster, slow: SlowRank) -> str:
    """Return what is seen of a slow rank, in words; empty where the gateway does not answer."""
    answer = slow.team.answers[slow.rank]
    ranks, own = [answer["instance"] for answer in slow.team.answers.values()], answer["instance"]
    other = next((instance for instance in ranks if instance != own), own)
    places: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}  # while another rank waits, or does not
    used: list[dict[int, CollectiveTimes]] = []
    try:
        for look in range(LOOKS):
            if look in (0, LOOKS - 1):
                times = [answer["answer"] for answer in _ask(cluster, 0.0, only=ranks) if answer["answer"]]
                used.append({each["rank"]: each for each in times if "rank" in each})
            both = fetch_stacks(cluster, only=[own, other], timeout_s=TIMEOUT_S)
            waits = {process["instance"]: wait_of(process) for process in both if process["state"] == ANSWERED}
            if own in waits and waits[own].kind != COLLECTIVE and waits[own].at:
                what = f", waiting for {waits[own].what}" if waits[own].what else ""
                places[other in waits and waits[other].kind == COLLECTIVE][f"{place(waits[own].at)}{what}"] += 1
            time.sleep(APART_S)
        words = ask_processes(cluster, TRAINING, Nothing(), only=[own], timeout_s=TIMEOUT_S)
    except RaydebugError:
        return ""
    phase = next((row["answer"]["phase"] for row in words if row["answer"] and "phase" in row["answer"]), "")
    on_gpu = any(group["backend"] == "nccl" for group in (answer["answer"] or {}).get("groups", []))
    gpus = _slowed_gpus(cluster, answer) if on_gpu else []
    return describe_cause(slow.rank, places[True] or places[False], phase, used[0], used[1], gpus)


def describe_cause(
    rank: int,
    places: Counter[str],
    phase: str,
    before: Mapping[int, CollectiveTimes],
    after: Mapping[int, CollectiveTimes],
    gpus: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return why a rank is slow, as far as it is seen, in words. Pure.

    Args:
        rank: the slow one.
        places: where it was while the others waited, with the number of looks.
        phase: of the training, as the rank says it; empty if unknown.
        before: what each rank had used at first.
        after: what each rank had used some seconds later.
        gpus: of its node that are slowed down (cluster/gpus.py).
    """
    parts = [f"it is in phase {phase}"] if phase else []
    total = f"{places.total()} looks"
    parts += [f"it was at {where} in {looks} of {total}" for where, looks in places.most_common(1)]
    parts += [f"GPU {gpu['index']} of its node is slowed down: {', '.join(gpu['slowed_by'])}" for gpu in gpus]

    def used(name: str) -> tuple[float, list[float]]:
        """Return how much of something the slow rank has used meanwhile, and the others."""
        each = {rank: float(after[rank].get(name, 0) - before[rank].get(name, 0)) for rank in both}  # type: ignore[operator]
        return each.pop(rank), [*each.values()]

    both = [rank for rank in after if rank in before]
    if rank in both and len(both) > 1:
        took_s = used("now_ns")[0] / 1e9 or 1.0
        cpu_s, others_s = used("cpu_s")
        parts.append(f"it uses {cpu_s / took_s:.1f} CPUs, the others {statistics.median(others_s) / took_s:.1f}")
        times, others = used("collections")
        if times > max(others) + 1:
            parts.append(f"Python's garbage collector went over all of its objects {times:.0f} times meanwhile, over"
                        f" those of another rank {max(others):.0f} times at most")  # fmt: skip
        size, others = used("disk_bytes")
        if size > max(DISK_BYTES, DISK_TIMES * max(others)):
            parts.append(f"it has read {size / 2**20:.0f} MiB from a disk meanwhile, another rank"
                        f" {max(others) / 2**20:.0f} MiB at most")  # fmt: skip
    node = after.get(rank, {})
    if node.get("load", 0.0) > BUSY * node.get("cpus", 1):
        parts.append(f"its node is busy: a load of {node['load']:.0f} on {node['cpus']} CPUs")
    return "; ".join(parts)


def longer_batch(metrics: Mapping[str, float]) -> str:
    """Return that the ranks had batches of different length in the last step, in words; empty if they had not."""
    known = [(metrics[high], metrics[low]) for high, low in LENGTHS if {high, low} <= metrics.keys()]
    if not known or known[0][0] <= LONGER * known[0][1]:
        return ""
    tokens = f"{known[0][1]:.0f} to {known[0][0]:.0f} tokens"
    batches = f"the ranks had batches of different length in the last step, {tokens}"
    return f"{batches}: it may have more work, and be no slower"


def _slowed_gpus(cluster: Cluster, answer: Answer) -> list[dict[str, Any]]:
    """Return the GPUs that the driver slows down: those of the rank if its node knows them, else all of the node."""
    process = answer["process"]
    folder = Path(cluster.project or ("/" if cluster.is_of_nodes else Path.cwd()))
    try:
        if (runner := kind_of(cluster).runner_at(process["ip"])) is None:
            return []
        printed = runner.run_python(["-m", "raydebug.cluster.gpus"], folder, timeout_s=GPUS_S)
        found: list[dict[str, Any]] = answer_in(printed)
    except (RaydebugError, ValueError, IndexError):
        return []
    slowed = [{**one, "index": index} for index, one in enumerate(found) if one["slowed_by"]]
    return [gpu for gpu in slowed if process["pid"] in gpu["pids"]] or slowed
