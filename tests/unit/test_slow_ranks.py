"""Who keeps the others waiting in collectives, by when each rank has called them; tests/cpu has a real torch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from test_stack_verdicts import collective, process

from raydebug.errors import RaydebugError
from raydebug.stacks import slow_watch
from raydebug.stacks.slow_ranks import SlowRank, find_slow, find_teams
from raydebug.stacks.slow_watch import SlowWatch, describe_cause, longer_batch
from raydebug.stacks.verdict import as_document

STARTED = 1_795_000_000.0
Work = Callable[[int, int], float]


def run_ranks(
    ranks: int, work: Work, *, steps: int = 20, calls: int = 3, op: str = "all_reduce", pause_s: float = 0.0
) -> list[list[float]]:
    """Return when each rank has called each collective: it works for so long in each step; all leave at one time."""
    at: list[list[float]] = [[] for _ in range(ranks)]
    now = STARTED
    for step in range(steps):
        now += pause_s
        for call in range(calls):
            came = [now + (work(rank, step) if call == 0 else 0.001 + 0.0001 * rank) for rank in range(ranks)]
            for rank, moment in enumerate(came):
                at[rank].append(moment)
            now = max(came)
    return at


def answers(
    at: Sequence[Sequence[float]],
    *,
    ips: Sequence[str] = (),
    op: str = "all_reduce",
    name: str = "0",
    after_s: float = 0.1,
) -> list[Any]:
    """Return what ranks answer that have called these collectives, and are asked a moment later."""
    ends = max(max(one) for one in at)
    return [
        {
            "process": {"pid": 100 + rank, "ip": ips[rank] if ips else "10.0.0.1", "job": "j", "actor": "Trainer",
                        "child_of": None},
            "instance": str(rank), "role": "Trainer", "state": "answered", "cause": "",
            "answer": {"rank": rank, "now_ns": int((ends + after_s) * 1e9), "groups": [
                {"name": name, "backend": "gloo", "ranks": [*range(len(at))], "seqs": [*range(len(moments))],
                 "ops": [op] * len(moments), "at_ns": [int(one * 1e9) for one in moments]}]},
        }
        for rank, moments in enumerate(at)
    ]  # fmt: skip


def slow_of(found: Sequence[Any], step_ends: Sequence[float] | None = None) -> SlowRank | None:
    (team,) = find_teams(found)
    return find_slow(team, step_ends)


def late(slow: int | None, extra_s: float = 0.15, usual_s: float = 0.05) -> Work:
    rng = random.Random(7)
    return lambda rank, _: usual_s * (1 + 0.1 * rng.random()) + (extra_s if rank == slow else 0.0)


@pytest.mark.parametrize(("ranks", "slow"), [(ranks, slow) for ranks in (2, 3, 8) for slow in range(ranks)])
def test_slow_rank(ranks: int, slow: int) -> None:
    """A rank that comes 150 ms later in each step is named, with what it costs, whichever it is."""
    found = slow_of(answers(run_ranks(ranks, late(slow))))
    assert found is not None
    assert found.rank == slow
    assert found.text.startswith(f"Trainer rank {slow} is slower than the others: they have waited 2.")
    assert ", in 10 of 10 parts of the time, and for the next one " in found.text
    verdict = found.verdict("why")
    assert (verdict["kind"], verdict["certainty"], verdict["ranks"], verdict["pids"]) == (
        "slow-rank", "likely", [slow], [100 + slow]
    )  # fmt: skip
    assert verdict["next"] == f"raydebug attach --pid {100 + slow}@10.0.0.1"


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_a_loaded_machine(seed: int) -> None:
    """Ranks that are late by turns, by as much as a step takes, are all healthy."""
    rng = random.Random(seed)
    for ranks in (2, 3, 8):
        assert slow_of(answers(run_ranks(ranks, lambda *_: 0.05 + rng.expovariate(10), steps=30))) is None


def test_little_cost() -> None:
    """A rank that has cost less than half a second is not named, nor one that was late in a few parts of the time."""
    assert slow_of(answers(run_ranks(2, late(1, 0.02, usual_s=0.01)))) is None
    assert slow_of(answers(run_ranks(2, lambda rank, step: 0.05 + 3.0 * (rank == 1 and step == 10)))) is None
    assert slow_of(answers(run_ranks(2, lambda rank, step: 0.05 + 0.3 * (rank == 1 and step < 5)))) is None


def test_clock_of_another_node() -> None:
    """A clock that is ahead by 50 ms, or behind, makes nobody late, and hides no rank that is."""
    for ahead_s in (0.05, -0.05, 30.0):
        for slow in (None, 0, 1):
            at = run_ranks(2, late(slow))
            at[1] = [moment + ahead_s for moment in at[1]]
            found = slow_of(answers(at, ips=["10.0.0.1", "10.0.0.2"]))
            assert (None if found is None else found.rank) == slow


def test_slow_sample() -> None:
    """Ranks that all wait for a slow sample before each update are not slow."""
    assert slow_of(answers(run_ranks(2, late(None), pause_s=5.0))) is None


def test_wait_for_a_command() -> None:
    """Ranks that wait for the next broadcast of one of them, as idle servers do, wait for no slow rank."""
    assert slow_of(answers(run_ranks(2, late(0), op="broadcast"), op="broadcast")) is None
    assert slow_of(answers(run_ranks(2, late(0)), op="_reduce_scatter_base")) is not None


def test_who_waits_makes_others_wait() -> None:
    """A rank that is late in one group because it has waited in another one is not to blame for it."""
    at = run_ranks(2, late(0), calls=1)
    released = [max(both) for both in zip(*at, strict=True)]
    second = [[moment + 0.001 for moment in released], [moment - 0.12 for moment in released]]
    found = answers(at)
    for rank, one in enumerate(answers([at[0], second[0], second[1]], name="1")):
        group = {**one["answer"]["groups"][0], "ranks": [1, 2]}
        if rank == 1:
            found[1]["answer"]["groups"].append(group)
        if rank == 2:
            found.append({**one, "answer": {**one["answer"], "groups": [group]}})
    slow = slow_of(found)
    assert slow is not None
    assert slow.rank == 0


def test_steps_of_a_trainer() -> None:
    """Where steps are known, a rank is named that costs a twentieth of each; the open one is left out."""
    at = run_ranks(2, late(1, 0.2), pause_s=2.0, steps=12)
    ends = [at[0][3 * step + 2] + 0.01 for step in range(12)]
    slow = slow_of(answers(at), ends)
    assert slow is not None
    assert slow.rank == 1
    assert ", in 11 of 11 steps, " in slow.text
    assert slow_of(answers(at), ends[:3]) is None, "over several steps only"
    assert slow_of(answers(at), []) is None


@pytest.mark.parametrize("given", ["nothing", "one rank", "two of a kind", "no whole call", "one call"])
def test_too_little_is_known(given: str) -> None:
    """Ranks that have not all answered, or cannot be told apart, or have no collective in common, name nobody."""
    found = answers(
        run_ranks(2, late(1), steps=1 if given == "one call" else 20, calls=1 if given == "one call" else 3)
    )
    if given == "nothing":
        found = [{**found[0], "state": "silent", "answer": None}, {**found[1], "answer": {}}]
    elif given == "one rank":
        found = found[:1]
    elif given == "two of a kind":
        found += [{**one, "instance": f"{one['instance']}b"} for one in found]
    elif given == "no whole call":
        found[0]["answer"]["groups"][0]["seqs"] = [*range(1000, 1060)]
    assert [find_slow(team) for team in find_teams(found)] in ([], [None])


def test_answers_of_another_form() -> None:
    """A process of the job may leave out any field, or send numbers of no sense: nobody is named, and nothing fails."""
    found = answers(run_ranks(2, late(1)))
    group = found[1]["answer"]["groups"][0]
    for field in group:
        found[1]["answer"]["groups"] = [{name: value for name, value in group.items() if name != field}]
        assert slow_of(found) is None
    found[1]["answer"] = {"rank": 1, "groups": [{**group, "at_ns": [-(2**62)] * 60, "ranks": [1]}]}
    assert slow_of(found) is None
    assert describe_cause(1, Counter(), "", {0: {"rank": 0}, 1: {"rank": 1}}, {0: {"rank": 0}, 1: {"rank": 1}}) == (
        "it uses 0.0 CPUs, the others 0.0"
    )


def test_a_job_that_hangs_has_no_slow_rank() -> None:
    """A team whose last collective is older than they are apart does not go on."""
    for after_s, does in ((0.1, True), (5.0, False)):
        (team,) = find_teams(answers(run_ranks(2, late(1)), after_s=after_s))
        assert team.goes_on() == does


def test_verdict_of_stacks() -> None:
    """The verdict on a slow rank takes the place of one on what moves or waits, and not that of a pause."""
    slow = slow_of(answers(run_ranks(2, late(1))))
    assert slow is not None
    verdicts = {"j": slow.verdict("it was at train.py:3 load in 9 of 12 looks")}
    waits = [collective(0), process(1, {"file": "/job/train.py", "line": 3, "function": "load"})]
    document = as_document([waits], [], {}, verdicts)
    assert document["verdict"]["kind"] == "slow-rank"
    assert document["verdict"]["text"].endswith("; it was at train.py:3 load in 9 of 12 looks")
    assert document["verdict"].keys() == as_document([waits], [])["verdict"].keys()
    assert as_document([waits], [])["verdict"]["kind"] == "starting"
    paused = [waits[0], {**waits[1], "pauses": ["3"]}]
    assert as_document([paused], [], {}, verdicts)["verdict"]["kind"] == "paused"


def test_watch_of_a_run() -> None:
    """Looks that overlap are put together; each slow rank is reported once."""
    at = run_ranks(2, late(1), steps=40)
    watch, named = SlowWatch(), []
    for last in range(30, 121, 15):
        (team,) = find_teams(answers([moments[max(0, last - 40) : last] for moments in at]))
        named.append(watch.take(team, None))
    assert [one.rank for one in named if one is not None] == [1]
    ends = [at[0][3 * step + 2] + 0.001 for step in range(40)]
    watch = SlowWatch()
    (team,) = find_teams(answers(at))
    assert watch.take(team, ends[:3]) is None
    assert watch.take(find_teams(answers(at))[0], ends) is not None


class _Recorder:
    """The part of a run's recorder that the watch needs; it is paused at the first look."""

    step_ends = None
    looks = 0

    @property
    def is_paused(self) -> bool:
        self.looks += 1
        return self.looks == 1


async def test_fault_of_the_watch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """While a process is paused nobody is asked; a gateway that is gone is asked again, a fault is said once."""
    outcomes = [RaydebugError("gone", cause="", fix="", code="x"), KeyError("groups")]
    recorder: Any = _Recorder()

    def ask(*_: Any, **__: Any) -> Any:
        raise outcomes.pop(0)

    monkeypatch.setattr(slow_watch, "_ask", ask)
    monkeypatch.setattr(slow_watch, "EVERY_S", 0.001)
    await SlowWatch().watch(None, "j", recorder)  # type: ignore[arg-type]
    assert (recorder.looks, outcomes) == (3, [])
    assert capsys.readouterr().err == "slow ranks are not looked for any more: KeyError: 'groups'\n"


def test_cause_in_words() -> None:
    """The cause has where the rank was, its phase, what it used more than others, and what its node and GPU say."""

    def used(cpu_s: float, collections: int, disk: int, now: int) -> Any:
        node = {"now_ns": now * 10**9, "load": 20.0, "cpus": 2}
        return {"cpu_s": cpu_s, "collections": collections, "disk_bytes": disk, **node}

    before = {0: used(1.0, 5, 0, 1), 1: used(1.0, 5, 0, 1)}
    after = {0: used(1.2, 5, 0, 3), 1: used(2.8, 25, 90 << 20, 3)}
    gpu = {"index": 3, "slowed_by": ["its temperature (hardware)"], "pids": [7]}
    said = describe_cause(
        1, Counter({"train.py:3 load": 9, "train.py:4 save": 1}), "actor_update", before, after, [gpu]
    )
    assert said == (
        "it is in phase actor_update; it was at train.py:3 load in 9 of 10 looks; GPU 3 of its node is slowed"
        " down: its temperature (hardware); it uses 0.9 CPUs, the others 0.1; Python's garbage collector went over all"
        " of its objects 20 times meanwhile, over those of another rank 0 times at most; it has read 90 MiB from a disk"
        " meanwhile, another rank 0 MiB at most; its node is busy: a load of 20 on 2 CPUs"
    )
    assert describe_cause(1, Counter(), "", {}, {}) == ""


def test_longer_batch() -> None:
    """A batch that is longer on one rank is told apart, after balancing if verl balances; equal ones are not named."""
    metrics = {"global_seqlen/min": 100.0, "global_seqlen/max": 900.0}
    assert longer_batch(metrics).startswith("the ranks had batches of different length in the last step, 100 to 900")
    assert longer_batch({**metrics, "global_seqlen/balanced_min": 480.0, "global_seqlen/balanced_max": 500.0}) == ""
    assert longer_batch({}) == ""
