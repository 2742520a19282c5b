"""Whether a job makes progress. Pure: the caller takes the looks, and passes the time.

Progress of a training is a step that ended, or before the first step a phase of the start; of other programs a call
that returned, a child process that has computed and ended, files that grow, or new log output. Lines that move in a
process are no progress: a reward function may compute for ever. While a step goes on, samples and phases that end,
tokens that are made, and processes that compute where nothing is asked of user code, put a report off, up to
MOST_LIMITS limits; so does native code that computes, in any program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.training import TrainingWords
from raydebug.stacks.groups import active_thread
from raydebug.stacks.verdict import COMPUTES_S, judge
from raydebug.stacks.waits import Verdict, VerdictKind, wait_of

TICK_S = 1.0  # the time is passed about so often
SAMPLES_PER_LIMIT, APART_AT_LEAST_S = 10, 5.0
MAX_SAMPLES, LEAST_SAMPLES = 12, 6  # fewer could all fall into the gaps between short calls
MOST_LIMITS = 4
DATA_BYTES = 2**20  # written or read between two samples: more than a program says of itself
NO_HANG: tuple[VerdictKind, ...] = ("paused", "none")
_OF_ENGINE = "/vllm/"  # its processes look for new work all the time
Words = Mapping[str, TrainingWords]
Look = Sequence[ListedStacks]


class Progress:
    """Decides when a job hangs.

    Args:
        after_s: the limit; the caller changes it as steps become known.
        by_steps: a trainer is recognised.
    """

    def __init__(self, after_s: float, now: float, *, by_steps: bool) -> None:
        self.after_s = after_s
        self._by_steps = by_steps
        self._since = self._sampled = self._worked = now
        self._seen: object = None
        self._work: tuple[int | None, dict[str, tuple[int, int]]] = None, {}  # step; samples that ended, and tokens
        self._samples: list[Look] = []
        self._reports = 0

    @property
    def samples(self) -> Sequence[Look]:
        """The stacks since the last progress, oldest first."""
        return self._samples

    @property
    def since(self) -> float:
        """When the job made progress for the last time."""
        return self._since

    def note(self, seen: object, now: float, *, paused: bool) -> None:
        """Note the state of the job: a change since the last call is progress."""
        if paused or seen != self._seen:
            self._seen = seen
            self._note_progress(now)

    def wants_sample(self, now: float) -> bool:
        """Return whether to take stacks now: rarely, not in the first half of the limit, and when a report is due."""
        apart_s = max(APART_AT_LEAST_S, self.after_s * 2**self._reports / SAMPLES_PER_LIMIT)
        if now >= self._due_at and (self._sampled < self._due_at or len(self._samples) < LEAST_SAMPLES):
            return True
        return (not self._samples or now - self._sampled >= apart_s) and now - self._since >= self.after_s / 2

    def take(self, sample: Look, words: Words, now: float) -> bool:
        """Take stacks of the job and its own words; return whether to report a hang.

        It is reported again after twice the time, and so on, until there is progress.
        """
        before, apart_s = self._samples[-1] if self._samples else [], now - self._sampled
        self._sampled, self._samples = now, [*self._samples, sample][-MAX_SAMPLES:]
        moves = _moves(before, sample, in_calls=self._by_steps)
        verdict = judge(self._samples)
        if verdict["kind"] in NO_HANG:
            self._note_progress(now)
        elif self._by_steps:
            self._take_words(words, now, moves=moves)
        elif moves or _has_worked(before, sample, apart_s) or (before and _ends_in_new_call(verdict, apart_s)):
            self._note_progress(now)
        elif _computes(self._samples):
            self._worked = now
        hangs = len(self._samples) >= LEAST_SAMPLES and now >= self._due_at
        self._reports += hangs
        return hangs

    @property
    def _due_at(self) -> float:
        """When a report is due: after one limit, then 2 limits later, 4 limits later, ..."""
        put_off_to = min(self._worked, self._since + (MOST_LIMITS - 1) * self.after_s)
        return put_off_to + self.after_s * float(2 ** (self._reports + 1) - 1)

    def _take_words(self, words: Words, now: float, *, moves: bool) -> None:
        before_step, before = self._work
        step = max((said["step"] for said in words.values() if "step" in said), default=before_step)
        work = {
            instance: (said.get("ended", 0), sum(request.get("tokens", 0) for request in said.get("requests", [])))
            for instance, said in words.items()
        }
        # A process may miss a look: what it said before counts.
        goes_on = any(before.get(instance, done) != done for instance, done in work.items())
        self._work = step, {**before, **work}
        starts = any(said.get("starting") for said in words.values())
        in_users_code = any(said.get("rewards") or said.get("samples") for said in words.values())
        works = moves and not in_users_code
        if before_step not in (None, step) or (starts and works):
            self._note_progress(now)
        elif goes_on or works:
            self._worked = now

    def _note_progress(self, now: float) -> None:
        self._since = self._worked = now
        self._samples, self._reports, self._work = [], 0, (None, {})


def _pairs(before: Look, after: Look) -> Iterator[tuple[ListedStacks, ListedStacks]]:
    """Yield the processes of two looks, each as it was and as it is, that were seen in the same way."""
    then = {process["instance"]: process for process in before if process["threads"]}
    for now in after:
        was = then.get(now["instance"])
        if was is not None and was["state"] == now["state"] and now["threads"]:
            yield was, now


def _moves(before: Look, after: Look, *, in_calls: bool) -> bool:
    """Return whether a process that waits for nothing is at another line than before, or computes.

    Args:
        before: the look before.
        after: the last look.
        in_calls: whether lines inside of one call count, in other processes than the driver.
    """
    return any(
        _is_at_work(was, now) and (_cpu_s(now) - _cpu_s(was) > COMPUTES_S or not _is_at_one_line(was, now))
        for was, now in _pairs(before, after)
        if in_calls or now["is_driver"] or (now["state"] == messages.ANSWERED and not now.get("calls"))
    )


def _computes(samples: Sequence[Look]) -> bool:
    """Return whether a process computes at the same line in all looks: in native code, or in the garbage collector."""
    *looks, last = samples
    moved = {now["instance"] for look in looks for was, now in _pairs(look, last) if not _is_at_one_line(was, now)}
    return any(
        _is_at_work(was, now) and _cpu_s(now) - _cpu_s(was) > COMPUTES_S
        for look in looks[-1:]
        for was, now in _pairs(look, last)
        if now["instance"] not in moved
    )


def _is_at_work(was: ListedStacks, now: ListedStacks) -> bool:
    is_engine = any(_OF_ENGINE in frame.get("file", "") for frame in active_thread(now).get("frames", [])[:1])
    return wait_of(now).kind == wait_of(was).kind == "unknown" and not is_engine


def _is_at_one_line(was: ListedStacks, now: ListedStacks) -> bool:
    return active_thread(was).get("frames") == active_thread(now).get("frames")


def _cpu_s(process: ListedStacks) -> float:
    return active_thread(process).get("cpu_s", process.get("cpu_s", 0.0))


def _has_worked(before: Look, after: Look, apart_s: float) -> bool:
    """Return whether a process has begun another call of the user's code, has moved data, or its children computed."""
    return any(
        now.get("children_cpu_s", 0.0) - was.get("children_cpu_s", 0.0) > COMPUTES_S
        or now.get("io_bytes", 0) - was.get("io_bytes", 0) > DATA_BYTES
        or _has_new_call(was, now, apart_s)
        for was, now in _pairs(before, after)
        if now["state"] == messages.ANSWERED
    )


def _has_new_call(was: ListedStacks, now: ListedStacks, apart_s: float) -> bool:
    """Return whether a process is in a call that nobody saw before the last look: its age begins with the first one."""
    active = now["threads"][0]["name"]
    ages_s = {call["thread"]: call["age_s"] for call in was.get("calls", [])}
    return any(
        call["age_s"] <= ages_s.get(call["thread"], 0.0) or call["age_s"] < apart_s - TICK_S
        for call in now.get("calls", [])
        if call["thread"] == active
    )


def _ends_in_new_call(verdict: Verdict, apart_s: float) -> bool:
    """Return whether the thread that all wait for, the active one of its process or not, is in such a call."""
    age_s = verdict["call_age_s"]
    return verdict["kind"] == "moving" and age_s is not None and age_s <= max(0.0, apart_s - TICK_S)
