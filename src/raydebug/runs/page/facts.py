"""The head and the foot of a run's page: how it ended, what failed, what was found, what ran. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from raydebug.runs.page import words
from raydebug.runs.page.document import Change, Run
from raydebug.runs.page.markup import Markup, tag

SIGNS = {"succeeded": "\N{CHECK MARK}", "failed": "\N{MULTIPLICATION X}", "stopped": "\N{BLACK SQUARE}",
         "running": "\N{BLACK RIGHT-POINTING TRIANGLE}"}  # fmt: skip
_SEVERITIES = ("error", "warning", "note")
_SHORT = 8  # words of a command that stand at the head; all of them are at the foot
_WIDE = 100  # characters of a command that stand on one line
_OPTION = re.compile(r"--\w|[\w.+~@/-]+=")
# One file beside the document: a path from a document leads nowhere else, and no scheme can stand in it.
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def outcome(run: Run) -> str:
    """Return in one sentence how a run ended."""
    took = run.took_s
    after = "" if took is None else f" after {words.seconds(took)}"
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    if run.status == "running":
        return f"{run.kind.capitalize()} had not ended; known up to {words.seconds(run.length_s)}"
    return f"{run.kind.capitalize()} {run.status}{after}{code}"


def log_link(run: Run, folder: str, said: str = "") -> Markup | None:
    """Return a link to the job's log, relative to the page.

    Args:
        run: whose log.
        folder: the run's folder as seen from the page, with a slash at its end; empty where the page lies in it.
        said: what the link says; the file's name when empty.
    """
    if not _FILE.fullmatch(run.log):
        return None
    return tag("a", said or run.log, href=quote(folder) + run.log)


def head(run: Run, folder: str) -> Markup:
    """Return the page's head: which run, how it ended, what failed first."""
    sign = tag("span", SIGNS.get(run.status, "?"), class_=f"sign {run.status}", aria_hidden="true")
    about = [
        tag("span", f"raydebug {run.kind} ", tag("code", run.id)),
        tag("span", words.between(run.started, run.ended)),
    ]
    link = log_link(run, folder)
    command = shlex.join(run.command[:_SHORT]) + (" \N{HORIZONTAL ELLIPSIS}" if run.command[_SHORT:] else "")
    return tag(
        "header",
        tag("p", about, tag("span", link) if link else None, class_="kicker"),
        tag("h1", sign, outcome(run)),
        tag("p", tag("code", command), class_="command"),
        first_error(run, folder),
    )


def first_error(run: Run, folder: str) -> Markup | None:
    """Return what failed first, or where to look when nobody knows; None for a run that did not fail."""
    link = log_link(run, folder, f"read {run.log}")
    if run.first_error is None:
        if run.status != "failed":
            return None
        words_ = "No error was found in what its processes wrote."
        return tag("section", tag("h2", "First error"), tag("p", words_, " ", link), class_="error")
    error = run.first_error
    title = tag("p", tag("b", error.get("kind", "")), f": {error['text']}" if error.get("text") else "", class_="title")
    by = f"raised by {error['who']}" if error.get("who") else ""
    at = [", at " if by else "at ", tag("code", error["place"])] if error.get("place") else None
    return tag("section", tag("h2", "First error"), title, tag("p", by, at, class_="note"),
               tag("p", link) if link else None, class_="error", aria_label="first error")  # fmt: skip


def findings_section(run: Run) -> Markup | None:
    """Return the findings, the worst first; None where there is none."""
    if not run.findings:
        return None
    order = {severity: index for index, severity in enumerate(_SEVERITIES)}
    ordered = sorted(run.findings, key=lambda finding: order.get(finding.get("severity", ""), len(order)))
    counts = [f"{count} {word}{'' if count == 1 else 's'}" for word in _SEVERITIES
              if (count := sum(finding.get("severity") == word for finding in ordered))]  # fmt: skip
    items = [_finding(finding) for finding in ordered]
    return tag("section", tag("h2", "Findings", id="findings"), tag("p", ", ".join(counts), class_="note"),
               tag("ul", items, class_="findings"))  # fmt: skip


def _finding(finding: Mapping[str, str]) -> Markup:
    severity = finding.get("severity", "note")
    stage = finding.get("stage", "")
    mark = tag(
        "p",
        tag("span", severity, class_=f"severity {severity}"),
        tag("span", f"stage {stage}") if stage else None,
        tag("code", finding.get("code", "")),
        class_="mark",
    )
    parts = [tag("div", tag("dt", word), tag("dd", finding[word])) for word in ("why", "fix") if finding.get(word)]
    body = tag("div", tag("p", finding.get("what", ""), class_="title"), tag("dl", parts) if parts else None)
    return tag("li", mark, body)


def changes_section(changes: Sequence[Change], profile: str) -> Markup | None:
    """Return what the profile changed; None where there was none."""
    if not changes and not profile:
        return None
    items = [
        tag("li", tag("code", change.key, class_="key"), tag("span", tag("del", change.old), " \N{RIGHTWARDS ARROW} ",
            tag("ins", change.new), class_="move"), tag("span", change.why, class_="why"))
        for change in changes
    ]  # fmt: skip
    said = f"The profile {profile} " if profile else "A profile "
    said += f"changed {words.counted(len(changes), 'setting')} of the command below." if changes else "changed nothing."
    return tag("section", tag("h2", "Changes of the profile", id="changes"), tag("p", said, class_="note"),
               tag("ul", items, class_="changes") if items else None)  # fmt: skip


def environment_section(run: Run) -> Markup:
    """Return what ran, and in what: command, cluster, lock and variables."""
    cluster = {"name": "cluster", "kind": "where", "flavour": "flavour", "debugger": "debugger"}
    facts = [(word, run.cluster[key]) for key, word in cluster.items() if run.cluster.get(key)]
    if run.lock.get("sha256"):
        facts.append(("lock", f"{run.lock.get('flavour', '')} sha256:{run.lock['sha256']}".strip()))
    rows = [tag("div", tag("dt", word), tag("dd", tag("code", value))) for word, value in facts]
    variables = [tag("div", tag("dt", tag("code", name)), tag("dd", tag("code", value)))
                 for name, value in sorted(run.variables.items())]  # fmt: skip
    command = tag("pre", tag("code", " \\\n  ".join(command_lines(run.command))))
    return tag(
        "section",
        tag("h2", "What ran", id="environment"),
        tag("dl", rows, class_="facts") if rows else None,
        [tag("h3", "Command"), command] if run.command else None,
        [tag("h3", "Variables"), tag("dl", variables, class_="facts variables")] if variables else None,
    )


def command_lines(command: Sequence[str]) -> list[str]:
    """Return a command as a shell reads it, a long one with an option or an override on each line."""
    whole = shlex.join(command)
    if len(whole) <= _WIDE:
        return [whole]
    lines: list[str] = []
    for word in command:
        if not lines or _OPTION.match(word):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines
