"""The diagnosis of a job on a cluster: what the logs of its processes say."""

from __future__ import annotations

import io

from raydebug.cluster.dashboard import Dashboard
from raydebug.diagnose.cause import EXACT, FAILURE, Answer, diagnose
from raydebug.diagnose.rules import marks, prefilter
from raydebug.diagnose.scan import Kept, read_log
from raydebug.errors import RaydebugError
from raydebug.jobs.logs import find_sources


def read_job(dashboard: Dashboard, submission_id: str, kept: Kept) -> None:
    """Read the logs of all processes of a job.

    Raises:
        RaydebugError: the dashboard does not answer, or there is no such job.
    """
    for source in find_sources(dashboard, dashboard.job(submission_id)):
        text = dashboard.log_text(source.node_id, source.name)
        read_log(io.BytesIO(text.encode("utf-8", "replace")), source.title, prefilter(), kept, marks())


def explain_failure(dashboard: Dashboard, submission_id: str) -> list[str]:
    """Return cause and fix of a job that failed, as lines for its user; none where no rule is sure of it."""
    kept = Kept()
    try:
        read_job(dashboard, submission_id, kept)
    except RaydebugError:
        return []
    return _lines(diagnose(kept.lines), submission_id)


def _lines(answer: Answer, submission_id: str) -> list[str]:
    first = answer.diagnoses[0] if answer.status == FAILURE else None
    if first is None or first.confidence != EXACT:
        return []
    return [
        f"diagnosis: {first.title} ({first.name}); {first.cause}",
        f"fix: {first.fix}",
        f"next: raydebug diagnose {submission_id}",
    ]
