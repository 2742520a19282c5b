"""The words of a training: what its processes know of it, asked for and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raydebug.client.gateway_client import ask_processes
from raydebug.errors import RaydebugError
from raydebug.protocol.messages import ANSWERED
from raydebug.protocol.names import name_ranks
from raydebug.protocol.questions import TRAINING, Nothing
from raydebug.stacks.graph import OF_BUFFER
from raydebug.stacks.wait_kinds import for_seconds, who

if TYPE_CHECKING:
    from raydebug.cluster.state import Cluster
    from raydebug.protocol.listings import ListedStacks
    from raydebug.protocol.questions import OpenReward, OpenSample, TrainingWords

TIMEOUT_S = 1.0
LOST = "lost, no agent worker has it"


def fetch_words(cluster: Cluster, job: str | None, processes: Sequence[ListedStacks]) -> dict[str, TrainingWords]:
    """Return what the processes of a job know of its training, by instance; those that know nothing are left out.

    Nothing is known where the gateway does not answer, or is of an earlier version.

    Args:
        cluster: where the job runs.
        job: None for all jobs.
        processes: of the job, from the last look.
    """
    try:
        answers = ask_processes(cluster, TRAINING, Nothing(), job=job, timeout_s=TIMEOUT_S)
    except RaydebugError:
        return {}
    words = {answer["instance"]: answer["answer"] for answer in answers if answer["answer"]}
    join(words, processes, all_said=all(answer["state"] == ANSWERED for answer in answers))
    return words


def join(found: Mapping[str, TrainingWords], processes: Sequence[ListedStacks], *, all_said: bool) -> None:
    """Add what only all processes together know: samples that are lost, and who is missing in a weight sync.

    Args:
        found: by instance: two nodes may have the same process id.
        processes: with their ranks and roles.
        all_said: whether every process has answered.
    """
    listed = [sample for words in found.values() for sample in words.get("samples", [])]
    if all_said and sum(words.get("samples_total", 0) for words in found.values()) <= len(listed):
        at_work = {sample["uid"] for sample in listed if sample.get("state") not in OF_BUFFER}
        for sample in listed:
            if sample.get("state") == "running" and sample["uid"] not in at_work:
                sample["state"] = LOST
    syncing = {instance: words["sync"] for instance, words in found.items() if "sync" in words}
    trainers = [
        process for process in processes if syncing.get(process["instance"], {}).get("side") in ("trainer", "both")
    ]
    roles = {process["role"] for process in trainers if process["rank"] is not None}
    outside = {process["rank"] for process in processes if process["role"] in roles and process not in trainers}
    sides = {sync.get("side") for sync in syncing.values()}
    missing = f"trainer's {name_ranks([rank for rank in outside if rank is not None])}" if outside else None
    if missing is None and len(sides) == 1 and "both" not in sides:  # of one process: no other one has to join
        missing = "rollout" if "trainer" in sides else "trainer"
    for sync in syncing.values():
        if missing:
            sync["missing"] = missing


def describe(found: Mapping[str, TrainingWords], processes: Sequence[ListedStacks]) -> str | None:
    """Return in one line what the training has not finished; None if nothing is known of it."""
    names = {process["instance"]: who(process) for process in processes}
    parts = []
    if phases := [words for words in found.values() if "phase" in words]:
        trainer = max(phases, key=lambda one: one.get("phase_age_s", 0.0))
        step = f"step {trainer['step']}, " if "step" in trainer else ""
        parts.append(f"{step}phase {trainer['phase']}{for_seconds(trainer.get('phase_age_s'))}")
    listed = [sample for words in found.values() for sample in words.get("samples", [])]
    unlisted = max(0, sum(words.get("samples_total", 0) for words in found.values()) - len(listed))
    for state in dict.fromkeys(sample.get("state", "?") for sample in listed):
        samples = [sample for sample in listed if sample.get("state") == state]
        if state in OF_BUFFER and len(samples) < len(listed):
            continue  # the agent workers say more of them
        oldest = max(samples, key=lambda one: one.get("age_s", 0.0))
        at = "".join(f", {name} {oldest[name]}" for name in ("turn", "tool") if name in oldest)
        count = len(samples) + (unlisted if len(samples) == len(listed) else 0)
        many = f"{count} samples are" if count > 1 else "one sample is"
        parts.append(f"{many} {state}{for_seconds(oldest.get('age_s'))}: {oldest.get('uid', '?')}{at}{_url(oldest)}")
    if rewards := [reward for words in found.values() for reward in words.get("rewards", [])]:
        reward = max(rewards, key=lambda one: one.get("age_s", 0.0))
        of = f" for data source {reward['data_source']}" if "data_source" in reward else ""
        what = f"the reward {reward.get('function', 'function')}{of}{_url(reward)}"
        more = f", nor {len(rewards) - 1} more" if len(rewards) > 1 else ""
        parts.append(f"{what} has not returned{for_seconds(reward.get('age_s'))}{more}")
    for instance, words in found.items():
        if requests := words.get("requests"):
            first = f"{requests[0].get('id', '?')}{for_seconds(requests[0].get('age_s'))}"
            engine = names.get(instance, "another process")
            parts.append(f"{len(requests)} requests at {engine} have no answer: {first}")
    if syncs := [words["sync"] for words in found.values() if "sync" in words]:
        missing = f", the {syncs[0]['missing']} has not joined" if "missing" in syncs[0] else ""
        parts.append(f"a weight sync has not ended{missing}{for_seconds(max(one.get('age_s', 0.0) for one in syncs))}")
    return "; ".join(parts) or None


def _url(work: OpenSample | OpenReward) -> str:
    return f" at {work['url']}" if "url" in work else ""
