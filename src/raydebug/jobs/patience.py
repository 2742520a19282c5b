"""Patience with a dashboard or a gateway that does not answer for a moment: by the clock, with a line on the screen."""

from __future__ import annotations

import contextlib
import time

from raydebug import render
from raydebug.cluster.kinds import kind_of
from raydebug.cluster.state import Cluster
from raydebug.errors import Exit, RaydebugError

SAID_AFTER_S, GIVEN_UP_AFTER_S = 3.0, 300.0  # a VPN that reconnects, a head that is restarted
REFUSALS = ("gateway.refused", "auth.wrong-token", "ray.unknown", "cluster.port-of-another")  # which no patience helps


class Patience:
    """Bears with a server while it is away.

    Args:
        cluster: where it is; one that is known to have ended is not waited for.
        who: what is asked, as the beginning of a sentence.
        goes_on: what goes on meanwhile, and how to wait for it again; for the error that gives up.
    """

    def __init__(self, cluster: Cluster, who: str, goes_on: str) -> None:
        self._cluster, self._who, self._goes_on = cluster, who, goes_on
        self._away_since: float | None = None
        self._is_said = False

    def answered(self) -> None:
        """Note an answer."""
        if self._is_said:
            render.say(f"{self._who} answers again")
        self._away_since, self._is_said = None, False

    def failed(self, error: RaydebugError) -> None:
        """Note that there was no answer.

        Raises:
            RaydebugError: it is a refusal, the cluster has ended, or there has been no answer for GIVEN_UP_AFTER_S.
        """
        if error.code in REFUSALS:
            raise error
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        away_s = now - self._away_since
        if away_s > GIVEN_UP_AFTER_S:
            raise RaydebugError(
                f"{self._who} has not answered for {GIVEN_UP_AFTER_S:.0f} s", cause=error.cause,
                fix=self._goes_on, code="cluster.away", exit_code=Exit.SESSION_LOST,
            ) from error  # fmt: skip
        if away_s > SAID_AFTER_S:
            why = None
            with contextlib.suppress(RaydebugError):  # who keeps it may be away as well
                why = kind_of(self._cluster).why_ended()
            if why is not None:
                raise RaydebugError(
                    f"cluster '{self._cluster.name}' has ended", cause=why, fix="see `raydebug ps`; its jobs are lost",
                    code="cluster.ended", exit_code=Exit.SESSION_LOST,
                ) from error  # fmt: skip
            if not self._is_said:
                self._is_said = True
                render.say(f"{self._who} does not answer; waiting for it (Ctrl-C leaves)")
