"""Whether a job makes progress. Pure: the caller takes the looks, and passes the time.

Progress of a training is a step that ended, or before the first step a phase of the start; of other programs a call
that returned, a child process that has computed and ended, files that grow, or new log output. Lines that move in a
process are no progress: a reward function may compute for ever. While a step goes on, samples and phases that end,
tokens that are made, and processes that compute where nothing is asked of user code, put a report off, up to
MOST_LIMITS limits; so does native code that computes, in any program.
"""

from __future__ import annotations

from raydebug.stacks.movement import Look, any_computes, any_moves, ends_in_new_call, has_worked
from raydebug.stacks.verdict import Words, judge
from raydebug.stacks.wait_kinds import KINDS, Job

SAMPLES_PER_LIMIT, APART_AT_LEAST_S = 10, 5.0
MAX_SAMPLES, LEAST_SAMPLES = 12, 6  # fewer could all fall into the gaps between short calls
MOST_LIMITS = 4


class Progress:
    """Decides when a job hangs.

    Args:
        after_s: the limit; the caller changes it as steps become known.
        by_steps: a trainer is recognised.
    """

    def __init__(self, after_s: float, now: float, *, by_steps: bool) -> None:
        self.after_s = after_s
        self._by_steps = by_steps
        self.since = self._sampled = self._worked = now  # `since`: when the job made progress for the last time
        self._seen: object = None
        self._work: tuple[int | None, dict[str, tuple[int, int]]] = None, {}  # step; samples that ended, and tokens
        self.samples: list[Look] = []  # since the last progress, oldest first
        self._reports = 0

    def note(self, seen: object, now: float, *, paused: bool) -> None:
        """Note the state of the job: a change since the last call is progress."""
        if paused or seen != self._seen:
            self._seen = seen
            self._note_progress(now)

    def wants_sample(self, now: float) -> bool:
        """Return whether to take stacks now: rarely, not in the first half of the limit, and when a report is due."""
        apart_s = max(APART_AT_LEAST_S, self.after_s * 2**self._reports / SAMPLES_PER_LIMIT)
        if now >= self._due_at and (self._sampled < self._due_at or len(self.samples) < LEAST_SAMPLES):
            return True
        return (not self.samples or now - self._sampled >= apart_s) and now - self.since >= self.after_s / 2

    def take(self, sample: Look, words: Words, now: float) -> bool:
        """Take stacks of the job and its own words; return whether to report a hang.

        It is reported again after twice the time, and so on, until there is progress.
        """
        before, apart_s = self.samples[-1] if self.samples else [], now - self._sampled
        self._sampled, self.samples = now, [*self.samples, sample][-MAX_SAMPLES:]
        moves = any_moves(before, sample, in_calls=self._by_steps)
        verdict = judge(self.samples)
        if KINDS[verdict["kind"]].job >= Job.PAUSED:
            self._note_progress(now)
        elif self._by_steps:
            self._take_words(words, now, moves=moves)
        elif moves or has_worked(before, sample, apart_s) or (before and ends_in_new_call(verdict, apart_s)):
            self._note_progress(now)
        elif any_computes(self.samples):
            self._worked = now
        hangs = len(self.samples) >= LEAST_SAMPLES and now >= self._due_at
        self._reports += hangs
        return hangs

    @property
    def _due_at(self) -> float:
        """When a report is due: after one limit, then 2 limits later, 4 limits later, ..."""
        put_off_to = min(self._worked, self.since + (MOST_LIMITS - 1) * self.after_s)
        return put_off_to + self.after_s * float(2 ** (self._reports + 1) - 1)

    def _take_words(self, words: Words, now: float, *, moves: bool) -> None:
        before_step, before = self._work
        step = max((own["step"] for own in words.values() if "step" in own), default=before_step)
        work = {
            instance: (own.get("ended", 0), sum(request.get("tokens", 0) for request in own.get("requests", [])))
            for instance, own in words.items()
        }
        # A process may miss a look: what it said before counts.
        goes_on = any(before.get(instance, done) != done for instance, done in work.items())
        self._work = step, {**before, **work}
        starts = any(own.get("starting") for own in words.values())
        in_users_code = any(own.get("rewards") or own.get("samples") for own in words.values())
        works = moves and not in_users_code
        if before_step not in (None, step) or (starts and works):
            self._note_progress(now)
        elif goes_on or works:
            self._worked = now

    def _note_progress(self, now: float) -> None:
        self.since = self._worked = now
        self.samples, self._reports, self._work = [], 0, (None, {})
