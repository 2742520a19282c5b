"""Leaves a check in a folder of its own, as a run leaves one: `raydebug report` shows both."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence
from datetime import datetime

from raydebug.check.finding import Finding
from raydebug.check.ladder import FAILED, SKIPPED, Outcome
from raydebug.check.subject import Subject
from raydebug.runs.folder import CHECK, RunFolder, remove_oldest
from raydebug.settings.locks import digest_of
from raydebug.settings.secrets import without_secret_arguments


def record(subject: Subject, outcomes: Sequence[Outcome], started: float) -> None:
    """Write down what was checked, how long each stage took, and what was found; a full disk is no reason to fail.

    Args:
        subject: what was checked.
        outcomes: of its stages.
        started: when, in seconds since the epoch.
    """
    cluster = subject.cluster
    failed = next((outcome for outcome in outcomes if outcome.status == FAILED), None)
    flavour = cluster.flavour if cluster else ""
    moment = datetime.fromtimestamp(started).strftime("%H%M%S")  # noqa: DTZ006 - as the user's clock has it
    document = {
        "kind": CHECK,
        "id": f"{CHECK}-{moment}-{secrets.token_hex(3)}",
        "command": without_secret_arguments(subject.command),
        "cluster": {name: getattr(cluster, name) for name in ("name", "kind", "flavour", "debugger")}
        if cluster
        else {},
        "profile": subject.profile,
        "changes": [],
        "variables": {},
        "lock": {"flavour": flavour, "sha256": digest_of(flavour)} if flavour else {},
        "started": started,
        "ended": time.time(),
        "status": "failed" if failed else "succeeded",
        "exit_code": 1 if failed else 0,
        "first_error": _first_error(failed) if failed else None,
        "phases": _phases(outcomes),
        "steps": [],
        "memory": [],
        "gpus": [],
        "pauses": [],
        "findings": [{**one.as_json(), "stage": outcome.stage} for outcome in outcomes for one in outcome.findings],
        "log": "",
    }
    with contextlib.suppress(OSError):
        RunFolder(str(document["id"])).write(document)
        remove_oldest(CHECK)


def _first_error(failed: Outcome) -> dict[str, str]:
    first: Finding = next(finding for finding in failed.findings if finding.severity == "error")
    return {"kind": first.code, "text": first.what, "who": f"stage {failed.stage}", "place": ""}


def _phases(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Return the stages that were checked, one after the other."""
    spans, before_s = [], 0.0
    for outcome in outcomes:
        if outcome.status != SKIPPED:
            after_s = before_s + outcome.seconds
            spans.append({"name": f"stage {outcome.stage}", "start_s": round(before_s, 3), "end_s": round(after_s, 3)})
            before_s = after_s
    return spans
