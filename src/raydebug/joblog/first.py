"""Reads all files of a job for its first error."""

from __future__ import annotations

from typing import Any

from raydebug.cluster.dashboard import Dashboard
from raydebug.joblog.errors import LoggedError, Verdict, find_errors, judge_errors
from raydebug.joblog.sources import DRIVER, find_sources


def find_first_error(dashboard: Dashboard, job: dict[str, Any]) -> Verdict:
    """Return what went wrong first in a job, and what followed it.

    Args:
        dashboard: the cluster's.
        job: the job, as the dashboard describes it.

    Raises:
        RaydebugError: the dashboard does not answer.
    """
    found: list[LoggedError] = []
    for source in sorted(find_sources(dashboard, job), key=lambda s: s.role == DRIVER):  # the driver hears of it last
        found += find_errors(source.title, dashboard.log_text(source.node_id, source.name).splitlines())
    return judge_errors(found)
