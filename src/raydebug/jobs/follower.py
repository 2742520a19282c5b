"""Read a job as it runs: its log, its pauses, its resource requests, its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field

from raydebug import render
from raydebug.client.gateway_client import fetch_pauses, forget_job
from raydebug.cluster.dashboard import ENDED, Dashboard, JobInfo
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError
from raydebug.jobs import resource_requests
from raydebug.jobs.logs import DRIVER, Source, find_sources
from raydebug.jobs.pace import Pace
from raydebug.jobs.patience import Patience
from raydebug.process import shell_code
from raydebug.protocol.listings import ListedPause
from raydebug.render import command

PAUSE_POLL_S = 0.3
STATUS_POLL_S = 0.3
RETRY_S = 1.0
LAST_LINES_S = 0.5
FAILED_WITHOUT_CODE = 1
DEMAND_POLL_S, DEMAND_AT_MOST_S = 2.5, 60.0
SIZED_BY_US = ("local", "compose")  # kinds of clusters whose nodes nobody else adds
DEMAND_LOOKS = 3  # polls in a row: by then a program would have withdrawn its request, or a node would have started


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    submission_id: str
    status: str
    exit_code: int
    message: str
    pauses: int


def exit_code_of(info: JobInfo) -> int:
    """Return the exit code of a job that has ended, as a shell would report it."""
    code = info.get("driver_exit_code")
    if code is None:
        return 0 if info["status"] == "SUCCEEDED" else FAILED_WITHOUT_CODE
    return shell_code(code)


@dataclass(eq=False)
class Follower:
    """Follows one job until it ends.

    Args:
        on_log: called with each piece of the log.
        on_pause: called with each new pause of the job.
        on_pauses: called with all pauses of the job, at each poll.
    """

    cluster: Cluster
    submission_id: str
    _: KW_ONLY
    on_log: Callable[[str], None]
    on_pause: Callable[[ListedPause], None]
    on_pauses: Callable[[list[ListedPause]], None] = lambda pauses: None
    _seen: set[str] = field(default_factory=set, init=False)
    _written: int = field(default=0, init=False)  # characters of the log that were passed on
    _paused: bool = field(default=False, init=False)  # whether a task of the job is paused now
    _has_skipped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._dashboard = Dashboard(self.cluster)

    async def follow(self) -> Outcome:
        """Pass on log and pauses until the job has ended; if this is cancelled, the job continues.

        Raises:
            Unsatisfiable: the job waits for resources that the cluster can never give. The job still runs.
        """
        watching = asyncio.ensure_future(self._watch_pauses())
        reading = asyncio.ensure_future(self._read_log())
        demanding = asyncio.ensure_future(self._watch_demands())
        ending = asyncio.ensure_future(self._wait_for_end())
        try:
            await asyncio.wait({ending, demanding}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                raise demanding.result()
            info = ending.result()
            # Ray ends the stream some seconds after the job: the rest is requested.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading), timeout=LAST_LINES_S)
            await self._read_rest(reading)
            with contextlib.suppress(RaydebugError):
                await asyncio.to_thread(forget_job, self.cluster, self.submission_id)
        finally:
            for task in (watching, reading, demanding, ending):
                task.cancel()
            await asyncio.gather(watching, reading, demanding, ending, return_exceptions=True)
        return Outcome(
            self.submission_id, info["status"], exit_code_of(info), info.get("message") or "", len(self._seen)
        )

    async def _read_rest(self, reading: asyncio.Future[None]) -> None:
        """Ask for the whole log and write what the stream has not brought.

        Ray's stream may end without the last lines (seen with ray 2.41.0, 1 of 3 runs of a job that prints as it ends).
        """
        reading.cancel()

        def read() -> str:
            try:
                return self._dashboard.job_logs(self.submission_id)
            except RaydebugError:  # ray 2.60.0 answers 500 for a byte that is not UTF-8
                file = self._driver_file()
                return self._dashboard.log_text(file.node_id, file.name)

        with contextlib.suppress(RaydebugError, asyncio.CancelledError):
            self._write(await asyncio.to_thread(read), self._written)

    async def _wait_for_end(self) -> JobInfo:
        pace = Pace(self.cluster, STATUS_POLL_S)
        again = command("raydebug", "job", "logs", "-f", self.submission_id)
        patience = Patience(self.cluster, "Ray's dashboard", f"the job goes on; follow it again: {again}")
        while True:
            try:
                info = await asyncio.to_thread(self._dashboard.job, self.submission_id)
                patience.answered()
                if info["status"] in ENDED:
                    return info
            except RaydebugError as error:
                patience.failed(error)
            await pace.wait()

    async def _watch_demands(self) -> resource_requests.Unsatisfiable:
        """Return the error for the first request of the job that can never be satisfied; elsewhere a note says it.

        A job with a paused task is left alone: it is being debugged.
        """
        seen = deque[tuple[str, str] | None]([None], maxlen=DEMAND_LOOKS)
        said: tuple[str, str] | None = None
        job_id: str | None = None
        # The GCS reads all its tasks for it: 17 ms for 2,288 (ray 2.60.0, measured).
        pace = Pace(self.cluster, DEMAND_POLL_S, DEMAND_AT_MOST_S, age_divisor=10)
        while True:
            await (pace.wait() if seen[-1] is None else asyncio.sleep(DEMAND_POLL_S))
            found = None
            with self._skipping():
                job_id = job_id or (await asyncio.to_thread(self._dashboard.job, self.submission_id)).get("job_id")
                if job_id and not self._paused:
                    found = await asyncio.to_thread(resource_requests.find_unsatisfiable, self._dashboard, job_id)
            seen.append(found)
            if found is not None and [*seen] == [found] * DEMAND_LOOKS:
                if self.cluster.kind in SIZED_BY_US:
                    return resource_requests.unsatisfiable(self.cluster, *found)
                if found != said:  # an autoscaler may start a node for just this request
                    wanted, there = found
                    render.say(f"note: the job waits for {wanted}, which no node has now: {there}")
                said = found

    async def _read_log(self) -> None:
        """Stream the log; reconnect a broken stream and continue where it broke.

        Ray ends its stream of a job's log at a byte that is not UTF-8 (ray 2.60.0): the driver's file has the rest.
        """
        pieces = self._dashboard.follow_logs(self.submission_id)
        while True:
            skip = self._written
            try:
                async for piece in pieces:
                    skip = self._write(piece, skip)
                if (await asyncio.to_thread(self._dashboard.job, self.submission_id))["status"] in ENDED:
                    return
            except asyncio.CancelledError:
                raise
            except Exception:  # noqa: BLE001 - websockets' and sockets' many ways to break; the status loop knows
                pass
            await asyncio.sleep(RETRY_S)
            pieces = self._dashboard.follow_logs(self.submission_id)
            with self._skipping():
                file = await asyncio.to_thread(self._driver_file)
                pieces = self._dashboard.follow_file(file.node_id, file.name)

    def _driver_file(self) -> Source:
        sources = find_sources(self._dashboard, self._dashboard.job(self.submission_id))
        return next(source for source in sources if source.role == DRIVER)

    @contextlib.contextmanager
    def _skipping(self) -> Iterator[None]:
        """Skip a missing or an odd answer, and say the first odd one: a watch goes on while its job does."""
        try:
            yield
        except RaydebugError:  # the status loop says it
            pass
        except Exception as error:  # noqa: BLE001 - of Ray's tables, or of a gateway of another version
            if not self._has_skipped:
                render.say(f"note: an odd answer is skipped: {type(error).__name__}: {error}")
            self._has_skipped = True

    def _write(self, piece: str, skip: int) -> int:
        """Pass on the new part of a piece; return how many characters are still to be skipped."""
        fresh = piece[skip:]
        if fresh:
            self._written += len(fresh)
            self.on_log(fresh)
        return max(0, skip - len(piece))

    async def _watch_pauses(self) -> None:
        pace = Pace(self.cluster, PAUSE_POLL_S)
        while True:
            with self._skipping():
                listed = await asyncio.to_thread(fetch_pauses, self.cluster)
                mine = [pause for pause in listed if pause.get("job") in (self.submission_id, None)]
                for pause in mine:
                    if pause["id"] not in self._seen:
                        self._seen.add(pause["id"])
                        self.on_pause(pause)
                self._paused = bool(mine)
                self.on_pauses(mine)
            await pace.wait()
