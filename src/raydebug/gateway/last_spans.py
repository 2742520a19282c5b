"""The spans that processes have said as they ended, until the recorder of their run fetches them."""

from __future__ import annotations

from collections import deque

from raydebug.gateway.channel import ControlChannel
from raydebug.protocol.listings import ListedAnswer
from raydebug.protocol.messages import ANSWERED
from raydebug.protocol.spans import SpansRecord

MOST_PROCESSES, MOST_JOBS = 200, 10  # nobody fetches those of a run that is not recorded


class LastSpans:
    """By job."""

    def __init__(self) -> None:
        self._by_job: dict[str, deque[ListedAnswer[SpansRecord]]] = {}

    def keep(self, channel: ControlChannel, said: SpansRecord) -> None:
        """Keep what a process has said; of too many the oldest are dropped."""
        job = channel.about.get("job") or ""
        if job not in self._by_job and len(self._by_job) >= MOST_JOBS:
            del self._by_job[next(iter(self._by_job))]
        self._by_job.setdefault(job, deque(maxlen=MOST_PROCESSES)).append({
            "process": channel.describe(), "instance": channel.instance, "state": ANSWERED, "answer": said, "cause": "",
        })  # fmt: skip

    def take(self, job: str) -> list[ListedAnswer[SpansRecord]]:
        """Return what the ended processes of a job have said, once."""
        return [*self._by_job.pop(job, ())]
