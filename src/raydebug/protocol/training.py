"""What a training says of itself when it is asked: its step and phase, and what it has not finished.

Each process of a training knows a part: the trainer its step, an agent worker its samples, an engine its requests. A
process sends the fields that it knows, and leaves the others out.
"""

from __future__ import annotations

from typing import TypedDict

from raydebug.protocol.records import Name, Text


class OpenSample(TypedDict, total=False):
    """A sample that is not finished."""

    uid: Name
    state: Name  # in the trainer's own words: running, pending, generating, ...
    turn: int  # of the conversation, from 1
    tool: Name  # that it has called
    url: Text  # that it waits for
    age_s: float


class OpenReward(TypedDict, total=False):
    """A call of a reward function that has not returned."""

    data_source: Name
    function: Name
    url: Text  # of the judge or model that it asks
    age_s: float


class OpenRequest(TypedDict, total=False):
    """A request to an engine that has no answer."""

    id: Name
    engine: int  # process id of the engine; left out where it is unknown, or there are several
    tokens: int  # made so far
    age_s: float


class WeightSync(TypedDict, total=False):
    """A synchronisation of weights that has begun and not ended."""

    side: Name  # of this process: trainer, rollout, or both
    missing: Name  # the side that has not joined, as far as this process knows
    age_s: float


class TrainingWords(TypedDict, total=False):
    """What a process of a training knows of its work; lists have the oldest ones first."""

    step: int
    phase: Name  # in the trainer's own words: gen, reward, update_actor, ...
    phase_age_s: float
    starting: bool  # no step has begun
    ended: int  # counts the phases, samples and parts of samples that have ended
    samples: list[OpenSample]
    samples_total: int  # more than `samples` has, where there are too many
    rewards: list[OpenReward]
    requests: list[OpenRequest]
    sync: WeightSync
