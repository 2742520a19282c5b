"""What this process knows of its training: its step and phase, and the samples, rewards and requests not finished.

It is read when it is asked for: from the locals of known functions of verl, vLLM and OpenRLHF, and plain attributes of
their objects; no code of the user's classes is called. Only phases have times of their own (spans.py); other ages
count from the first look at a call.
Sources: verl 0.4.0 to 0.9.1, held by tests/wheels; vllm 0.28.0 v1/engine/async_llm.py; OpenRLHF 0.11.0.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from raydebug.protocol.questions import Nothing, OpenRequest, OpenReward, OpenSample, TrainingWords
from raydebug.protocol.secrets import scrubbed
from raydebug.worker import spans
from raydebug.worker.frame_locals import locals_of
from raydebug.worker.frames import MAX_NAME, active_thread, is_users
from raydebug.worker.stacks import call_age_s, callers, stacks_of_tasks
from raydebug.worker.training_step import attributes_of, step_of_frame

MAX_OPEN = 50  # samples, rewards and requests that are listed
MAX_SEARCHED = 300  # stacks, for the step
MAX_URL = 200
# The timers around what a sample does, and what it then is: verl 0.5 to 0.9.1 experimental/agent_loop.
STATE_OF = {"generate_sequences": "generating", "tool_calls": "in a tool", "compute_score": "waiting for the reward"}
# Functions of an agent worker that say the same where there is no timer: the innermost one counts.
STATE_IN = {"_compute_score": STATE_OF["compute_score"], "_agent_loop_postprocess": "storing the result"}
STEP, OF_REQUESTS = spans.STEP, "_generate"  # the end of a name of verl's states of a request
REWARD_FILES = re.compile(r"/reward_manager/|/reward_loop/|/trainer/ppo/reward\.py$")
OPENRLHF_REWARDS = ("_fetch_rewards_via_func", "_post_request", "request_api_wrapper", "remote_rm_fn_ray")
# OpenRLHF has no timers that one can hook: the function of its trainer is the phase.
OPENRLHF_PHASES = ("generate_samples", "make_experience", "ppo_train", "broadcast_to_vllm", "evaluate")
# File, function, side: where a process is in a synchronisation of weights. The innermost frame counts.
SYNC = (
    (r"/checkpoint_engine/|/bucketed_weight_transfer\.py$", r"send_weights$", "trainer"),
    (r"/checkpoint_engine/|/bucketed_weight_transfer\.py$", r"receive_weights$", "rollout"),
    (r"/checkpoint_engine/base\.py$", r"^CheckpointEngineWorker\.update_weights$", "rollout"),
    (r"/vllm_rollout/", r"\.update_weights_from_ipc$", "rollout"),
    (r"/workers/[a-z_]+_workers\.py$", r"\.(update_weights|rollout_mode|sync_rollout_weights)$", "trainer"),
    (r"/sharding_manager/", r"\.__enter__$", "both"),
    (r"/openrlhf/trainer/ray/ppo_actor\.py$", r"broadcast_to_vllm$", "trainer"),
    (r"/openrlhf/trainer/ray/vllm_", r"\.update_weight", "rollout"),
)
# File, function, local: where libraries hold the URL that they wait for. aiohttp 3, httpx 0.28, requests 2, CPython.
URLS = (
    ("/aiohttp/client.py", "_request", "str_or_url"),
    ("/httpx/_client.py", "send", "request"),
    ("/requests/sessions.py", "request", "url"),
    ("/urllib/request.py", "urlopen", "url"),
)
USERS_URLS = ("url", "endpoint", "api_url", "base_url", "api_base", "reward_url")


class _Stack(NamedTuple):
    """A thread, or a task of asyncio, with the phases that this task is in."""

    frames: list[FrameType]  # innermost first
    spans: list[spans.Span]


def words(_body: Nothing) -> TrainingWords:
    """Return what this process knows of its training."""
    stacks = [*_stacks()]
    found: TrainingWords = {}
    for read in (_progress, _samples, _rewards, _requests, _sync):
        with contextlib.suppress(Exception):  # another version of the trainer: the rest is still known
            found |= read(stacks)
    return found


def _stacks() -> Iterator[_Stack]:
    """Yield the stacks of all threads, that of the user's code first, and of the tasks that do not run."""
    active = active_thread()
    running: set[FrameType] = set()
    of_tasks: dict[int | None, list[spans.Span]] = {}
    for span in [*spans.open_spans.values()]:
        of_tasks.setdefault(span.task, []).append(span)
    for _, frame in sorted(sys._current_frames().items(), key=lambda one: one[0] != active):
        frames = callers(frame)
        running.update(frames)
        yield _Stack(frames, [])
    for task, _, frames in stacks_of_tasks():
        if frames[-1] not in running:
            yield _Stack(frames, of_tasks.get(id(task), []))


def _at(stack: _Stack, file: str, *functions: str) -> int | None:
    """Return the index of the innermost frame of these functions in files with this part in their path."""
    for index, frame in enumerate(stack.frames):
        if frame.f_code.co_name in functions and file in frame.f_code.co_filename:
            return index
    return None


# Step and phase


def _progress(stacks: Sequence[_Stack]) -> TrainingWords:
    found: TrainingWords = {"ended": spans.ended} if spans.ended else {}
    frames = (frame for stack in stacks[:MAX_SEARCHED] for frame in stack.frames)
    step = next((number for frame in frames if (number := step_of_frame(frame)) is not None), None)
    if step is not None:
        found["step"] = step
    phases = [
        span
        for span in [*spans.open_spans.values()]
        if span.name != STEP and (span.task is None or not (span.name in STATE_OF or span.name.endswith(OF_REQUESTS)))
    ]
    if phases:
        found["phase"], found["phase_age_s"] = phases[-1].name[:MAX_NAME], _since(phases[-1].began_s)
    for stack in stacks:
        if not phases and (at := _at(stack, "/openrlhf/", *OPENRLHF_PHASES)) is not None:
            found["phase"] = stack.frames[at].f_code.co_name
        if _at(stack, "/trainer/main_ppo", "run") is not None and STEP not in spans.begun:
            found["starting"] = True
    return found


def _since(moment_s: float) -> float:
    return round(time.monotonic() - moment_s, 3)


# Samples


def _samples(stacks: Sequence[_Stack]) -> TrainingWords:
    found = [*_samples_of_agents(stacks), *_samples_of_buffer(stacks)]
    return {"samples": _oldest(found), "samples_total": len(found)} if found else {}


def _oldest(found: Iterable[Any]) -> list[Any]:
    return sorted(found, key=lambda one: -one.get("age_s", 0.0))[:MAX_OPEN]


def _samples_of_agents(stacks: Sequence[_Stack]) -> Iterator[OpenSample]:
    """Yield the samples of an agent worker: one task for each, and one for each of its tools."""
    tools: dict[int, tuple[dict[str, Any], _Stack]] = {}
    for stack in stacks:
        if (at := _at(stack, "/agent_loop", "_call_tool")) is not None and (local := locals_of(stack.frames[at])):
            tools[id(local["self"])] = local, stack
    for stack in stacks:
        at = _at(stack, "/agent_loop", "_run_agent_loop")
        if at is None:
            continue
        local = locals_of(stack.frames[at])
        ids = (_get(local.get("kwargs"), "uid"), _get(local.get("trajectory"), "sample_index"))
        uid = next((sample_id for sample_id in ids if sample_id is not None), "?")
        sample: OpenSample = {"uid": _text(uid), "state": "in the agent loop"}
        if timers := [span for span in stack.spans if span.name in STATE_OF]:
            sample["state"] = STATE_OF[timers[-1].name]
            sample["age_s"] = _since(timers[-1].began_s)
        elif inside := [frame for frame in stack.frames[:at] if frame.f_code.co_name in STATE_IN]:
            sample["state"] = STATE_IN[inside[0].f_code.co_name]
        if "age_s" not in sample and (age_s := call_age_s(stack.frames[at])) is not None:
            sample["age_s"] = age_s
        inner = [locals_of(frame) for frame in stack.frames[:at]]
        data = next((names["agent_data"] for names in inner if "agent_data" in names), None)
        turns = attributes_of(data).get("assistant_turns")
        if type(turns) is int:
            sample["turn"] = turns + (sample["state"] == "generating")
        called, where = next(
            (tools[id(names["self"])] for names in inner if id(names.get("self")) in tools), ({}, stack)
        )
        if called:
            sample["tool"] = _text(attributes_of(called.get("tool_call")).get("name", "?"))
        if url := url_of(where.frames):
            sample["url"] = url
        yield sample


def _samples_of_buffer(stacks: Sequence[_Stack]) -> Iterator[OpenSample]:
    """Yield the samples that the trainer waits for: verl 0.9 trainer/ppo/v1/replay_buffer.py, 0.8 main_ppo_sync.py."""
    for stack in stacks:
        for frame in stack.frames:
            local = locals_of(frame) if frame.f_code.co_qualname.startswith("ReplayBuffer") else {}
            if "partition_id" not in local:
                continue
            buffer, partition = attributes_of(local.get("self")), local["partition_id"]
            for state in ("running", "pending"):
                for key in _copied(_get(buffer.get(f"{state}_keys"), partition)):
                    yield {"uid": _text(key), "state": state}
            tags = {} if "running_keys" in buffer else _get(buffer.get("partitions"), partition)  # 0.8 has tags only
            for key in _copied(tags):
                if _get(_get(tags, key), "status") == "running":
                    yield {"uid": _text(key), "state": "running"}
            return


# Rewards, requests, synchronisation of weights


def _rewards(stacks: Sequence[_Stack]) -> TrainingWords:
    found: list[OpenReward] = []
    for stack in stacks:
        managers = [n for n, one in enumerate(stack.frames) if REWARD_FILES.search(one.f_code.co_filename)]
        inside = [frame for frame in stack.frames[: min(managers, default=0)] if is_users(frame)]
        source = None
        if inside:
            at, frame = managers[0], inside[-1]
            local = [locals_of(stack.frames[number]) for number in managers]
            given = (names.get("data_source", _get(names.get("kwargs"), "data_source")) for names in local)
            source = next((value for value in given if value is not None), None)
        elif (openrlhf := _at(stack, "/openrlhf/", *OPENRLHF_REWARDS)) is not None:
            at, frame = openrlhf, stack.frames[openrlhf]
        else:
            continue
        reward: OpenReward = {"function": f"{frame.f_code.co_qualname} in {frame.f_code.co_filename}"[:MAX_NAME]}
        if source is not None:
            reward["data_source"] = _text(source)
        if url := url_of(stack.frames[: at + 1]):
            reward["url"] = url
        if (age_s := call_age_s(frame)) is not None:
            reward["age_s"] = age_s
        found.append(reward)
    return {"rewards": _oldest(found)} if found else {}


def _requests(stacks: Sequence[_Stack]) -> TrainingWords:
    found: list[OpenRequest] = []
    for stack in stacks:
        if (at := _at(stack, "/vllm/v1/engine/async_llm.py", "generate")) is None:
            continue
        local = locals_of(stack.frames[at])
        request: OpenRequest = {"id": _text(local.get("request_id"))}
        began = [span.began_s for span in stack.spans if span.name.endswith(OF_REQUESTS)]
        age_s = _since(began[-1]) if began else call_age_s(stack.frames[at])
        if age_s is not None:
            request["age_s"] = age_s
        client, own_id = local.get("self"), _path(local.get("q"), "request_id")
        state = _get(_path(client, "output_processor", "request_states"), own_id)
        made = _path(state, "detokenizer", "token_ids")
        if type(made) is list:
            request["tokens"] = len(made)
        engines = _path(client, "engine_core", "resources", "engine_manager", "processes")
        if type(engines) is list and len(engines) == 1 and type(pid := _path(engines[0], "_popen", "pid")) is int:
            request["engine"] = pid
        found.append(request)
    return {"requests": _oldest(found)} if found else {}


def _sync(stacks: Sequence[_Stack]) -> TrainingWords:
    for stack in stacks:
        for frame in stack.frames:
            for file, function, side in SYNC:
                code = frame.f_code
                if re.search(file, code.co_filename) and re.search(function, code.co_qualname):
                    age_s = call_age_s(frame)
                    return {"sync": {"side": side} if age_s is None else {"side": side, "age_s": age_s}}
    return {}


# Values


def _get(mapping: Any, key: Any) -> Any:
    """Return what a plain dictionary, or a subclass of it, has under a key, without calling the subclass."""
    return dict.get(mapping, key) if isinstance(mapping, dict) else None


def _copied(keys: Any) -> list[Any]:
    return [*keys] if type(keys) in (set, list, dict) else []


def _path(value: Any, *names: str) -> Any:
    for name in names:
        value = attributes_of(value).get(name)
    return value


def _text(value: Any) -> str:
    """Return a plain value as text; that of an object of numpy's or the user's, only its type."""
    is_numpys = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
    plain = value.item() if is_numpys else value
    return scrubbed(str(plain))[:MAX_NAME] if type(plain) in (str, int, float) else type(plain).__name__


def url_of(frames: Sequence[FrameType]) -> str | None:
    """Return the URL that a stack waits for, without its query and user; None if no known function has one."""
    for frame in frames:
        for file, function, name in URLS:
            if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
                return _plain_url(locals_of(frame).get(name))
    for frame in frames:  # between two tries nothing is open
        if is_users(frame):
            local = locals_of(frame)
            found = (_plain_url(local[name]) for name in USERS_URLS if name in local)
            if url := next((candidate for candidate in found if candidate), None):
                return url
    return None


def _plain_url(value: Any) -> str | None:
    kind = type(value)
    if kind.__module__.startswith("yarl") or kind.__module__ == "httpx._urls":
        value = str(value)
    elif kind.__module__.startswith(("httpx", "urllib.request")):
        return _plain_url(getattr(value, "full_url", None) or getattr(value, "url", None))
    if type(value) is not str or not value.startswith(("http://", "https://")):
        return None
    parts = urlsplit(value)
    return scrubbed(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")[:MAX_URL]
