"""What a process says of its training: read from functions of the shape of verl's, in files named as verl's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import fetch_stacks
from raydebug.protocol.questions import TrainingWords
from raydebug.protocol.records import read
from raydebug.stacks.training_words import LOST, describe, fetch_words, join
from raydebug.worker import spans, stacks
from raydebug.worker.training import words

AGENTS = """
import asyncio
class AgentLoopWorker:
    async def _run_agent_loop(self, sampling_params, trajectory, *, agent_name, **kwargs):
        return await kwargs["loop"].run(**kwargs)

class ToolAgentLoop:
    async def run(self, agent_data, timer, **kwargs):
        with timer("tool_calls"):
            await asyncio.gather(self._call_tool(Thing(name="search"), agent_data, kwargs["tool"]))

    async def _call_tool(self, tool_call, agent_data, tool):
        await tool()
"""
BUFFER = """
class ReplayBuffer:
    def __init__(self, **keys):
        self.__dict__ |= keys

    def sample(self, global_steps, partition_id, batch_size):
        self._wait_for_next_poll(partition_id)

    def _wait_for_next_poll(self, partition_id):
        wait()
"""
REWARD = """
def run_single(compute_score, data_source):
    return (lambda: call_with_kwargs(compute_score, {}, data_source=data_source))()

def call_with_kwargs(function, more, **kwargs):
    return function(**kwargs, **more)
"""
VLLM = """
class AsyncLLM:
    async def generate(self, request_id):
        q = Thing(request_id=request_id + "-1")
        await wait()
        yield 1
"""
SYNC = """
class BucketedWeightReceiver:
    def receive_weights(self):
        wait()
"""
FIT = """
class PPOTrainer:
    def fit(self):
        self.global_steps = 7
        wait()
"""


class Thing:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__ |= attributes


def code(text: str, file: str, **names: Any) -> SimpleNamespace:
    """Return what a file of a library defines."""
    made: dict[str, Any] = {"Thing": Thing, "__name__": "library", **names}
    exec(compile(text, f"/v/lib/python3.11/site-packages/{file}", "exec"), made)
    return SimpleNamespace(**made)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Know no phases of other tests of this process, and leave none behind."""
    spans.begun.clear()
    yield
    spans.begun.clear()


@pytest.fixture
def in_thread() -> Iterator[Callable[..., TrainingWords]]:
    """Run a function in a thread until it waits; return what this process says then."""
    leave, threads = threading.Event(), []

    def start(make: Callable[[Callable[[], None]], Callable[[], Any]]) -> TrainingWords:
        inside = threading.Event()

        def wait() -> None:
            inside.set()
            leave.wait(30)

        threads.append(threading.Thread(target=make(wait)))
        threads[-1].start()
        assert inside.wait(10)
        return words({})

    yield start
    leave.set()
    for one in threads:
        one.join()


def test_a_process_without_a_training() -> None:
    """A process that knows nothing says nothing."""
    assert set(words({})) <= {"ended"}


def test_step_and_phase(in_thread: Callable[..., TrainingWords]) -> None:
    """The trainer says its step, its innermost phase and since when, and that it starts before the first step."""

    def make(wait: Callable[[], None]) -> Callable[[], Any]:
        trainer = code(FIT, "verl/trainer/ppo/ray_trainer.py", wait=wait).PPOTrainer()

        def run() -> None:
            with spans.span("step"), spans.span("update_actor"):
                trainer.fit()

        return run

    found = in_thread(make)
    assert (found["step"], found["phase"]) == (7, "update_actor")
    assert found["phase_age_s"] < 60
    assert "starting" not in found


def test_start(in_thread: Callable[..., TrainingWords]) -> None:
    """Before the first step the trainer says that it starts."""
    run = "class TaskRunnerV1:\n    def run(self, config):\n        wait()\n"
    found = in_thread(lambda wait: lambda: code(run, "verl/trainer/main_ppo.py", wait=wait).TaskRunnerV1().run(None))
    assert found["starting"] is True


def test_samples_of_an_agent_worker() -> None:
    """Each open sample has its uid, state, turn, tool and the tool's URL without its query; its age is the state's."""
    client = "async def _request(method, str_or_url):\n    await wait()\n"

    async def main() -> TrainingWords:
        wait = asyncio.Event()
        request = code(client, "aiohttp/client.py", wait=wait.wait)._request
        agents = code(AGENTS, "verl/experimental/agent_loop/tool_agent_loop.py")
        tasks = []
        for number in range(3):
            given = {
                "loop": agents.ToolAgentLoop(),
                "tool": lambda: request("GET", "https://me:secret@tools:80/find?token=abc"),
                "agent_data": Thing(assistant_turns=2),
                "timer": spans.span,
                "uid": f"u{number}",
            }
            trajectory = {"step": 1, "sample_index": number}
            run = agents.AgentLoopWorker()._run_agent_loop({}, trajectory, agent_name="tool_agent", **given)
            tasks.append(asyncio.create_task(run))
        await asyncio.sleep(0.05)
        found = words({})
        wait.set()
        await asyncio.gather(*tasks)
        return found

    found = asyncio.run(main())
    assert sorted(one["uid"] for one in found["samples"]) == ["u0", "u1", "u2"]
    sample = found["samples"][0]
    assert (sample["state"], sample["turn"], sample["tool"]) == ("in a tool", 2, "search")
    assert sample["url"] == "https://tools:80/find"
    assert 0 <= sample["age_s"] < 60
    assert "samples" not in words({}), "they have ended"


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        ({"running_keys": {"train": {"a"}}, "pending_keys": {"train": {"b"}, "val": {"c"}}, "partitions": {}},
         {"a": "running", "b": "pending"}),
        ({"partitions": {"train": {"a": {"status": "running"}, "b": {"status": "success"}}}}, {"a": "running"}),
    ],
    ids=["0.9", "0.8"],
)  # fmt: skip
def test_samples_of_the_trainer(in_thread: Callable[..., TrainingWords], buffer: Any, expected: dict[str, str]) -> None:
    """The trainer says which samples its replay buffer waits for."""
    file = "verl/trainer/ppo/v1/replay_buffer.py"
    found = in_thread(lambda wait: lambda: code(BUFFER, file, wait=wait).ReplayBuffer(**buffer).sample(1, "train", 4))
    assert {one["uid"]: one["state"] for one in found["samples"]} == expected


def test_rewards(in_thread: Callable[..., TrainingWords]) -> None:
    """A call of a reward function has its data source, the user's function and an age that grows."""

    def make(wait: Callable[[], None]) -> Callable[[], Any]:
        def compute_score(data_source: str) -> None:
            url = "http://judge:8000/v1?key=secret"  # noqa: F841 - between two tries
            wait()

        file = "verl/experimental/reward_loop/reward_manager/naive.py"
        return lambda: code(REWARD, file).run_single(compute_score, "gsm8k")

    first = in_thread(make)["rewards"][0]
    time.sleep(0.01)
    assert "compute_score in " in first["function"]
    assert (first["data_source"], first["url"], first["age_s"]) == ("gsm8k", "http://judge:8000/v1", 0.0)
    assert words({})["rewards"][0]["age_s"] > 0


def test_requests_of_an_engine() -> None:
    """A request to vLLM has its id, the tokens made so far and the engine's process."""

    async def main() -> TrainingWords:
        wait = asyncio.Event()
        engine = code(VLLM, "vllm/v1/engine/async_llm.py", wait=wait.wait).AsyncLLM()
        state = Thing(detokenizer=Thing(token_ids=[1, 2, 3]))
        engine.output_processor = Thing(request_states={"r-1": state})
        process = Thing(_popen=Thing(pid=4))
        resources = Thing(engine_manager=Thing(processes=[process]))
        engine.engine_core = Thing(resources=resources)

        async def serve() -> None:
            async for _ in engine.generate("r"):
                pass

        task = asyncio.create_task(serve())
        await asyncio.sleep(0.05)
        found = words({})
        wait.set()
        await task
        return found

    assert asyncio.run(main())["requests"] == [{"id": "r", "age_s": 0.0, "tokens": 3, "engine": 4}]


def test_side_of_a_weight_sync(in_thread: Callable[..., TrainingWords]) -> None:
    """A process in a synchronisation of weights says on which side it is."""
    file = "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py"
    found = in_thread(lambda wait: lambda: code(SYNC, file, wait=wait).BucketedWeightReceiver().receive_weights())
    assert found["sync"]["side"] == "rollout"


def test_openrlhf(in_thread: Callable[..., TrainingWords]) -> None:
    """OpenRLHF's phase is the function of its trainer, and the URL of its reward server is known."""
    text = "def make_experience():\n    _post_request('http://rm:5000/get')\ndef _post_request(url):\n    wait()\n"
    file = "openrlhf/utils/agent.py"
    found = in_thread(lambda wait: lambda: code(text, file, wait=wait).make_experience())
    assert found["phase"] == "make_experience"
    assert found["rewards"][0]["url"] == "http://rm:5000/get"


def test_values_of_other_types(in_thread: Callable[..., TrainingWords]) -> None:
    """Locals that are not what they are in verl are not called, and the record fits its type."""

    class Hostile:
        def __str__(self) -> str:
            raise AssertionError

        __eq__ = __hash__ = __len__ = __getattr__ = __str__  # type: ignore[assignment]

    file = "verl/trainer/ppo/v1/replay_buffer.py"
    buffer = {"running_keys": {"train": [Hostile()]}, "pending_keys": Hostile(), "partitions": Hostile()}
    found = in_thread(lambda wait: lambda: code(BUFFER, file, wait=wait).ReplayBuffer(**buffer).sample(1, "train", 4))
    assert [one["uid"] for one in found["samples"]] == ["Hostile"]
    assert read(found, TrainingWords) == found


STALL = """
import threading, types
from raydebug.worker import control_channel, spans
control_channel.open_channel()
made = types.ModuleType("naive")
text = "def run_single(score, data_source):\\n    score(data_source)\\n"
exec(compile(text, "/v/site-packages/verl/workers/reward_manager/naive.py", "exec"), made.__dict__)
def compute_score(data_source):
    print("ready", flush=True)
    number = 27
    while True:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
with spans.span("step"), spans.span("reward"):
    made.run_single(compute_score, "gsm8k")
"""


def test_asked_over_the_gateway(gateway: GatewayUnderTest) -> None:
    """A process that computes for ever answers the question; its call has an age from the second look on."""
    process = gateway.start(STALL, RAYDEBUG_JOB="j1")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for look in range(2):
        time.sleep(0.3)
        (process_seen,) = fetch_stacks(gateway, timeout_s=5.0)  # type: ignore[arg-type]
        found = fetch_words(gateway, None, [process_seen])[process_seen["instance"]]  # type: ignore[arg-type]
        assert found["phase"] == "reward"
        (reward,) = found["rewards"]
        assert reward["data_source"] == "gsm8k"
        assert reward["function"].startswith("compute_score in /")
        (call,) = process_seen["calls"]
        assert call["function"] == "compute_score"
        assert (call["age_s"] > 0, reward["age_s"] > 0) == (look == 1, True), (call, reward)


# What all processes together know


def process(pid: int, role: str, rank: int | None = None) -> Any:
    return {"pid": pid, "instance": str(pid), "role": role, "rank": rank}


def test_lost_samples() -> None:
    """A sample that the trainer waits for, and that no agent worker has, is lost; not so if some have not answered."""
    for all_said in (True, False):
        found: dict[str, TrainingWords] = {
            "1": {"samples": [{"uid": "a", "state": "running"}, {"uid": "b", "state": "running"}], "samples_total": 2},
            "2": {"samples": [{"uid": "a", "state": "in a tool"}], "samples_total": 1},
        }
        join(found, [], all_said=all_said)
        states = [one["state"] for one in found["1"]["samples"]]
        assert states == (["running", LOST] if all_said else ["running", "running"])


def test_who_is_missing_in_a_weight_sync() -> None:
    """A rank of the trainer that is not in the synchronisation is missing; if all are, the other side is."""
    ranks = [process(1, "WorkerDict", 0), process(2, "WorkerDict", 1), process(3, "VLLM::EngineCore", 0)]
    trainer, rollout, both = {"side": "trainer"}, {"side": "rollout"}, {"side": "both"}
    for inside, missing in (
        ({1: trainer, 3: rollout}, "trainer's rank 1"),
        ({1: trainer, 2: trainer}, "rollout"),
        ({3: rollout}, "trainer"),
        ({1: trainer, 2: trainer, 3: rollout}, None),
        ({1: both, 2: both}, None),
        ({1: both}, "trainer's rank 1"),
    ):
        found: Any = {str(pid): {"sync": {**sync}} for pid, sync in inside.items()}
        join(found, ranks, all_said=True)
        assert {one["sync"].get("missing") for one in found.values()} == {missing}


def test_in_one_line() -> None:
    """What all processes know is said in one line: step, phase, samples by state, requests, the weight sync."""
    processes = [process(3, "vLLMHttpServer"), process(4, "TaskRunnerV1")]
    agent = {"uid": "a", "state": "in a tool", "tool": "search", "url": "http://t/find", "age_s": 31.0}
    found: Any = {
        "4": {"step": 7, "phase": "gen", "phase_age_s": 40.0, "samples": [{"uid": "a", "state": "running"}]},
        "5": {"samples": [agent, {**agent, "uid": "b", "age_s": 3.0}], "ended": 2},
        "3": {"requests": [{"id": "r", "age_s": 12.0}]},
    }
    assert describe(found, processes) == (
        "step 7, phase gen for 40 s; 2 samples are in a tool for 31 s: a, tool search at http://t/find; "
        "1 requests at vLLMHttpServer (pid 3) have no answer: r for 12 s"
    )
    lost: Any = {"4": {"samples": [{"uid": "a", "state": LOST}]}, "6": {"sync": {"missing": "rollout", "age_s": 4.0}}}
    assert describe(lost, processes) == (
        "one sample is lost, no agent worker has it: a; a weight sync has not ended, the rollout has not joined for 4 s"
    )
    assert describe({}, processes) is None


def test_age_of_a_call() -> None:
    """The outermost call of the user's own code in a thread has an age from the first look on."""
    leave, inside = threading.Event(), threading.Event()

    def compute_score() -> None:
        inside.set()
        leave.wait(30)

    def serve() -> None:
        compute_score()

    def ages() -> dict[str, float]:
        return {one["function"].rpartition(".")[2]: one["age_s"] for one in stacks.collect()["calls"]}

    for _ in range(2):
        leave.clear()
        inside.clear()
        thread = threading.Thread(target=serve)
        thread.start()
        assert inside.wait(10)
        assert ages()["serve"] == 0.0
        time.sleep(0.01)
        assert ages()["serve"] > 0.0
        leave.set()
        thread.join()
    assert "serve" not in ages()
