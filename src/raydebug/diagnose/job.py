"""The diagnosis of a job that `run` has followed: a few lines at its end."""

from __future__ import annotations

from raydebug.cluster.dashboard import Dashboard
from raydebug.diagnose.cause import EXACT, FAILURE, diagnose
from raydebug.diagnose.inputs import open_job, read_logs
from raydebug.errors import RaydebugError


def explain_failure(dashboard: Dashboard, submission_id: str) -> list[str]:
    """Return cause and fix of a job that failed, as lines for its user; none where no rule is sure of it."""
    try:
        answer = diagnose(read_logs(open_job(dashboard, submission_id)).lines)
    except RaydebugError:
        return []
    first = answer.diagnoses[0] if answer.status == FAILURE else None
    if first is None or first.confidence != EXACT:
        return []
    return [
        f"diagnosis: {first.title} ({first.name}); {first.cause}",
        f"fix: {first.fix}",
        f"next: raydebug diagnose {submission_id}",
    ]
