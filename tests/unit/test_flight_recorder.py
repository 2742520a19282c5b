"""What a rank reports from the flight recorder, on a recorded dump; tests/cpu/test_torch_hangs.py uses a real torch."""

from __future__ import annotations

import json
import sys
import time
import types
from typing import Any

import pytest

from raydebug.protocol import questions, records
from raydebug.worker import flight_recorder, stacks
from raydebug.worker.flight_recorder import MOST_TIMES, times_for

# torch 2.13.0+cpu, gloo: `_dump_fr_trace_json(True, False)` on rank 2 of 3, stuck in its sixth collective.
ENTRY = """{"collective_seq_id":5,"input_dtypes":["Float"],"input_sizes":[[1000]],"is_p2p":false,"op_id":5,
"output_dtypes":["Float"],"output_sizes":[[1000]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],
"profiling_name":"gloo:all_reduce","record_id":4,"retired":true,"state":"scheduled","thread_id":"140328734985088",
"thread_name":"python","time_created_ns":1795421010303757891,"time_discovered_completed_ns":0,
"time_discovered_started_ns":0,"timeout_ms":1800000}"""
BROADCAST = {"collective_seq_id": 6, "input_sizes": [[4]], "profiling_name": "gloo:broadcast", "retired": False}


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch):
    """Make this process look like rank 2 of 3 with these entries in the recorder."""
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE", raising=False)
    group = object()
    c10d: Any = types.SimpleNamespace(
        is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 3,
        _world=types.SimpleNamespace(pg_names={group: "0"}, pg_group_ranks={group: {0: 0, 1: 1, 2: 2}}),
    )  # fmt: skip
    native: Any = types.SimpleNamespace()

    def record(*entries: dict[str, Any]) -> None:
        native._dump_fr_trace_json = lambda _collectives, _active: json.dumps({"entries": entries}).encode()

    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", native)
    return record


def test_calls_of_a_group(rank) -> None:
    """A call has number, operation, sizes and whether it is completed; the gateway accepts the record."""
    done = json.loads(ENTRY)
    rank(done, {**done, **BROADCAST}, {**done, "collective_seq_id": 7, "is_p2p": True})
    read = records.read(json.loads(json.dumps(stacks.collect())), records.StacksRecord)
    (group,) = read["collectives"]
    assert (read["rank"], read["world"]) == (2, 3)
    assert (group["name"], group["description"], group["ranks"]) == ("0", "default_pg", [0, 1, 2])
    assert group["calls"] == [
        {
            "backend": "gloo",
            "seq": 5,
            "op": "all_reduce",
            "sizes": "[1000]",
            "elements": 1000,
            "dtypes": "Float",
            "done": True,
        },
        {
            "backend": "gloo",
            "seq": 6,
            "op": "broadcast",
            "sizes": "[4]",
            "elements": 4,
            "dtypes": "Float",
            "done": False,
        },
    ]


def test_number_of_calls(rank) -> None:
    """Of 2,000 calls the newest 10 that are completed and the oldest 10 that are pending are reported."""
    entry = json.loads(ENTRY)
    rank(*({**entry, "collective_seq_id": seq, "retired": seq < 1900} for seq in range(2000)))
    (group,) = flight_recorder.read_groups()
    assert [call["seq"] for call in group["calls"]] == [*range(1890, 1900), *range(1900, 1910)]


def test_group_whose_calls_are_overwritten(rank) -> None:
    """A recorder that has overwritten its oldest calls is reported as full."""
    entry = {**json.loads(ENTRY), "process_group": ["1", "undefined"]}
    rank(*({**entry, "collective_seq_id": seq} for seq in range(2000)))
    (group,) = flight_recorder.read_groups()
    assert (group["calls"], group["full"]) == ([], True)


def test_two_backends(rank) -> None:
    """The collectives of gloo and NCCL in one process group are counted apart: NCCL has its own recorder."""
    entry = json.loads(ENTRY)
    rank(entry)
    nccl = json.dumps({"entries": [{**entry, "profiling_name": "nccl:_all_gather_base"}]}).encode()
    sys.modules["torch._C._distributed_c10d"]._dump_nccl_trace_json = lambda *_: nccl  # type: ignore[attr-defined]
    (group,) = flight_recorder.read_groups()
    assert [(call["backend"], call["op"], call["seq"]) for call in group["calls"]] == [
        ("gloo", "all_reduce", 5), ("nccl", "_all_gather_base", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("size", ["0", "1000000"])
def test_recorder_of_another_size(rank, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """A recorder that is turned off, or so large that reading it takes seconds, is not read."""
    rank(json.loads(ENTRY))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", size)
    assert flight_recorder.read_groups() == []


def test_times_of_calls(rank) -> None:
    """The times of the last calls are answered by group, with what this process has used; the gateway accepts them."""
    entry = json.loads(ENTRY)
    at_ns = time.time_ns() - 10**9
    times = [{**entry, "collective_seq_id": seq, "time_created_ns": at_ns - seq * 10**8} for seq in range(2000)]
    rank(*times, {**times[0], "is_p2p": True}, {**times[0], "process_group": ["gone", ""]})
    read = records.read(json.loads(json.dumps(times_for({"last_s": 30.0}))), questions.CollectiveTimes)
    (group,) = read["groups"]
    assert (read["rank"], group["name"], group["backend"], group["ranks"]) == (2, "0", "gloo", [0, 1, 2])
    assert group["seqs"] == [*range(len(group["seqs"]) - 1, -1, -1)], "oldest first"
    assert 280 <= len(group["seqs"]) <= 290
    assert (group["ops"][0], group["at_ns"][-1]) == ("all_reduce", at_ns)
    assert read["cpu_s"] > 0
    assert read["cpus"] >= 1
    assert len(times_for({"last_s": 1e9})["groups"][0]["seqs"]) == MOST_TIMES
    assert times_for({"last_s": 0.0})["groups"] == times_for({})["groups"] == []


@pytest.mark.parametrize(
    ("members", "own", "expected"),
    [({0: 0, 2: 1}, 1, 2), ({n: n for n in range(9)}, 7, 7)],
    ids=["subgroup", "trainer and engines of OpenRLHF"],
)
def test_rank_in_a_group(rank, members: dict[int, int], own: int, expected: int) -> None:
    """A rank is named as its group names it: by the default group's rank, or in a group of several by its own."""

    class Group:
        def rank(self) -> int:
            return own

    rank(json.loads(ENTRY))
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    group = Group()
    world.pg_names, world.pg_group_ranks = {group: "0"}, {group: members}
    (read,) = flight_recorder.read_groups()
    assert (read["rank"], read["ranks"]) == (expected, sorted(members))


def test_process_that_is_no_rank() -> None:
    """A process without torch's groups has no times."""
    assert times_for({"last_s": 30.0}) == {}


def test_fork_of_a_rank(rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a rank, such as a DataLoader worker, is no rank: its recorder is a copy of its parent's."""
    rank(json.loads(ENTRY))
    monkeypatch.setattr(flight_recorder, "of_parent", False)
    flight_recorder.note_fork()
    assert "collectives" not in stacks.collect()


def test_damaged_dump(rank) -> None:
    """With a dump in an unknown format the collectives are missing, but not the stacks."""
    rank({"process_group": "0"})
    assert stacks.collect()["rank"] == 2
