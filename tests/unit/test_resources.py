"""Logical GPUs and CPUs of a local cluster, and requests that a cluster can never satisfy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydebug.cluster import environment
from raydebug.cluster.compose.image import flash_attn_archs
from raydebug.cluster.gpus import Gpu, list_gpus
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError
from raydebug.jobs import resource_requests

TWO = [Gpu("GPU-1f2e3d4c-aaaa", 9), Gpu("GPU-5b6a7988-bbbb", 9)]
NODE = {"state": "ALIVE", "resources_total": {"CPU": 16.0, "GPU": 2.0, "memory": 16.0 * 1024**3, "node:10.0.0.1": 1.0}}


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (None, 2),
        ("", 0),
        ("-1", 0),
        ("1", 1),
        ("0, 1", 2),
        ("0,7,1", 1),  # CUDA ignores an invalid entry and all after it
        ("GPU-5b6a", 1),
        ("GPU-5b6a7988-bbbb,GPU-1f2e3d4c-aaaa", 2),
        ("GPU-ffff", 0),
        ("MIG-1f2e3d4c", 1),
        ("NoDevFiles", 0),
    ],
)
def test_visible_gpus(said: str | None, count: int) -> None:
    """The GPUs of a local cluster are those that the driver lists and CUDA_VISIBLE_DEVICES leaves, by index or UUID."""
    assert len(environment.visible_indexes([gpu.uuid for gpu in TWO], said)) == count
    assert environment.visible_indexes([], said) == []


def test_the_driver_here() -> None:
    """A machine without an NVIDIA driver has no GPU, and the driver's own library says why."""
    gpus, failure = list_gpus()
    if gpus:
        pytest.skip("this machine has a GPU")
    assert failure
    assert environment.choose_gpus(None, {}) == 0
    assert environment.choose_gpus(8, {"CUDA_VISIBLE_DEVICES": ""}) == 8  # logical ones: there is none to hide
    assert environment.start_environment({"CUDA_VISIBLE_DEVICES": "", "A": "1"}, 8) == {"A": "1"}


def test_hidden_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """More GPUs than CUDA_VISIBLE_DEVICES names are refused in three lines; Ray would end at its start."""
    monkeypatch.setattr(environment, "list_gpus", lambda: (TWO, None))
    assert environment.choose_gpus(None, {"CUDA_VISIBLE_DEVICES": "1"}) == 1
    with pytest.raises(RaydebugError) as refused:
        environment.choose_gpus(2, {"CUDA_VISIBLE_DEVICES": "1"})
    assert str(refused.value) == (
        "error: --gpus 2 is more than CUDA_VISIBLE_DEVICES allows\n"
        "cause: CUDA_VISIBLE_DEVICES=1 names 1 of the 2 GPUs of this machine; Ray does not start with more logical GPUs"
        " than it names\n"
        "fix: --gpus 1, or unset CUDA_VISIBLE_DEVICES"
    )
    assert refused.value.exit_code == Exit.USAGE


def test_cpus_follow_from_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has the logical CPUs that verl reserves beside its GPUs, and never less than its cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2), raising=False)
    assert [environment.cpus_for(gpus) for gpus in (0, 1, 2, 8)] == [16, 16, 18, 36]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(192), raising=False)
    assert environment.cpus_for(8) == 192


def cluster_of_a_run() -> Cluster:
    """Return a cluster with 2 logical GPUs that a `run` has started."""
    there = Path()
    return Cluster("mine", "id", "local", there, there, "", {}, 16, 2, "off", "core", 0.0, owner=4711)


def test_resources_that_a_cluster_of_a_run_lacks() -> None:
    """Where `run` has started the cluster for the job, the fix is a larger one from `up`: there is none to end."""
    fix = resource_requests.unsatisfiable(cluster_of_a_run(), "4 GPUs", "1 node with 2 GPUs").fix
    assert fix == (
        "let the program ask for less, or make the cluster larger: raydebug up --gpus N --cpus N, then the"
        " same command again"
    )


def test_generations_that_flash_attn_is_built_for() -> None:
    """An image is built for the GPUs of this host; for all where there is none that flash-attn has kernels for."""
    assert flash_attn_archs(TWO) == "90"
    assert flash_attn_archs([Gpu("GPU-1", 8), Gpu("GPU-2", 12)]) == "80;120"
    assert flash_attn_archs([Gpu("GPU-1", 7)]) is None
    assert flash_attn_archs([]) is None


def group(*bundles: dict[str, float], said: str = "NO_RESOURCES") -> dict[str, Any]:
    return {"bundles": [{"unit_resources": one} for one in bundles], "stats": {"scheduling_state": said}}


def task(needed: dict[str, float], kind: str = "NORMAL_TASK", name: str = "work") -> dict[str, Any]:
    return {"type": kind, "name": name, "required_resources": needed}


POOL = [{"CPU": 3.0, "GPU": 1.0}] * 8


@pytest.mark.parametrize(
    ("row", "asks"),
    [
        (group(*POOL, said="INFEASIBLE"), "a placement group of 8 x (3 CPUs, 1 GPU)"),
        (group(*POOL), "a placement group of 8 x (3 CPUs, 1 GPU)"),  # PACK: Ray itself does not say INFEASIBLE
        (group({"CPU": 3.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}), None),  # it waits for its turn
        (task({"CPU": 1.0, "GPU": 8.0}), "task work with 1 CPU, 8 GPUs"),
        (task({"GPU": 3.0}, "ACTOR_CREATION_TASK", "Rank.__init__"), "actor Rank with 3 GPUs"),
        (task({"memory": 64.0 * 1024**3}), "task work with 64.0 GiB memory"),
        (task({"accelerator_type:H100": 0.001}), "task work with 0.001 accelerator_type:H100"),
        (task({"CPU": 1.0, "GPU": 2.0, "node:10.0.0.1": 0.01}), None),
        (task({"GPU_group_0_ab": 1.0, "bundle_group_ab": 0.001}), None),  # of a placement group's own
        (task({}), None),
    ],
)
def test_requests_that_never_fit(row: dict[str, Any], asks: str | None) -> None:
    """A pending request is one that can never be satisfied when no node, or all together, have what it asks for."""
    groups, tasks = ([row], []) if "bundles" in row else ([], [row])
    expected = (asks, "1 node with 16 CPUs, 2 GPUs, 16.0 GiB memory") if asks else None
    assert resource_requests.judge(groups, tasks, [NODE], now_s=1000.0) == expected


def test_a_node_may_come_back() -> None:
    """While a node that has just died may come back, a request is not called impossible."""
    died = {**NODE, "state": "DEAD", "end_time_ms": 990_000}
    asks = [task({"GPU": 8.0})]
    assert resource_requests.judge([], asks, [NODE, died], now_s=1000.0) is None
    assert resource_requests.judge([], asks, [NODE, died], now_s=2000.0) is not None
    assert resource_requests.judge([], asks, [died], now_s=2000.0) is None  # no node at all: it is only coming up
