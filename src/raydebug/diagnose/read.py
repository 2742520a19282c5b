"""Read logs as lines of processes: colours, prefixes of Ray, vLLM and torch, and progress bars are taken off.

Sources of the prefixes: ray 2.60.0 _private/worker.py `print_worker_logs` (name, pid, ip, `[repeated 3x across
cluster]`), ray's C++ logs (`[2026-01-02 10:20:30,123 E 12 34] file.cc:56: `), vllm 0.24-0.28
logging_utils/formatter.py (`ERROR 01-02 10:20:30 [core.py:12] `; until 0.8 `core.py:12] `), torch 2.13 elastic
(`[rank3]: `) and c10 (`[W102 10:20:30.1 file.cpp:12] `), glog, NCCL 2.28 debug.cc (`host:12:34 [0] NCCL INFO `),
`srun --label` of Slurm 24 (` 3: `), `kubectl logs --prefix`, stern 1.30, journald.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_LINE_CHARS = 4_000  # a longer line is cut: what explains a failure is at its beginning
LEVELS = {
    "E": "ERROR",
    "F": "FATAL",
    "C": "FATAL",
    "CRITICAL": "FATAL",
    "W": "WARNING",
    "WARN": "WARNING",
    "I": "INFO",
    "D": "DEBUG",
}
ECHO = "TRACE"  # level of a line that repeats what it was given, such as a command: never a failure

# ECMA-48: colours, and what progress bars write: erased lines, cursor up, a hidden cursor. The rest stays, to be shown.
_ANSI = re.compile(r"\x1b\[(?:[0-9;:]*[mKA]|\?25[hl])")
_LEVEL = r"(?P<level>CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG|TRACE)"
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\((?P<who>(?:[\w.:\-<>\[\]]+ )*?(?:rank=\d+ )?pid=\d+)(?:, ip=[\w.:]+)?\) ?",
        r"\((?P<who>raylet|gcs_server|autoscaler|dashboard|monitor)(?: \+[\w.]+| pid=\d+)?(?:, ip=[\w.:]+)?\) ?",
        r"\[(?P<who>rank ?\d+)\]:? ?",
        r"\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+) (?P<level>[EWIFDC]) \d+ \d+\] ?(?:\((?P<who>\w+)\) ?)?",
        r"(?P<level>[EWIF])(?P<at>\d{4} \d\d:\d\d:\d\d\.\d+) +\d+ ",
        r"\[(?P<level>[EWIF])(?P<at>\d{3,4} \d\d:\d\d:\d\d\.\d+) (?=[\w.]+:\d+\])",
        _LEVEL + r" (?P<at>\d\d-\d\d \d\d:\d\d:\d\d)?(?:\.\d+)? ?(?:\[[\w.]+:\d+\]|\w+\.py:\d+\]) ?",
        r"(?:[\w.]{1,80} - )?" + _LEVEL + r" - ",
        r"\[[\w.]{1,80}\]\[" + _LEVEL + r"\] - ",
        r'(?:time="(?P<at>[^"]+)" )?level=(?P<level>fatal|error|warning|info|debug) msg=',
        r"\[?(?P<at>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?\]?(?:[ ,:|\t-]+"
        + _LEVEL
        + r"\b)?(?: [:|-]+ |[:|\t]+ ?| )?",  # what is behind it may be indented
        r"\[" + _LEVEL + r"\][ :|-]*",
        _LEVEL + r":(?:[\w.]+:)? ?",
        r"(?P<level>CRITICAL|FATAL|ERROR|WARNING) +(?=\S)",
        r"\S+:\d+:\d+ \[\d+\] (?:[\d.]+ )?(?:\w+:\d+ )?NCCL (?P<level>INFO|TRACE) ",
        r"\[(?P<echo>state-dump)\] ?",  # ray: counters of the raylet
        r"\[ *\d+\.\d{6}\] ",
        r"[\w.\-]+-\d+ +\| ",
        r"std(?:out|err) [FP] ",  # logs of Kubernetes
        r"std(?:out|err) \| ",  # loguru
        r" *(?P<task>\d{1,5}): ",  # srun --label
        r"\[pod/(?P<who>[\w.-]+/[\w.-]+)\] ",  # kubectl logs --prefix
        # stern: a pod ends with its number or a hash; its container is told from a word of a sentence by a hyphen
        r"(?P<who>[a-z][a-z0-9.-]{0,200}-(?:\d{1,5}|[a-z0-9]{5})) (?:[a-z0-9]{1,50}-[a-z0-9-]{1,50}|main|pytorch) ",
        # journald
        r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?[\w.-]{1,100} (?P<who>[\w./@-]{1,100}\[\d+\]|kernel): ",
        r"(?P<echo>Error executing job with) overrides",  # hydra shows the command again
        r"(?P<echo>Running entrypoint for job) \S+: ",  # ray 2.60.0 dashboard/modules/job/job_supervisor.py
        r"(?P<echo>\+)\+* (?=\S)",  # a command, as `set -x` of the shell shows it
        r"> (?=\S)",
    )
)
# One of them at once: most lines have none, or no further one.
_ANY_PREFIX = re.compile("|".join(re.sub(r"\?P<\w+>", "?:", prefix.pattern) for prefix in _PREFIXES))
# A line of a configuration as pprint writes it; a dictionary of metrics, `{'loss': nan, ...}`, is none.
_SETTING = re.compile(r"\s*'[\w./@-]+': |\{'[\w./@-]+': \{")
# Keys of Docker's json-file, Python's JSON formatters, Ray, structlog, zap, loguru (serialize).
_JSON_TEXTS = ("log", "message", "msg", "event", "text", "exc_text", "exc_info", "exception", "stack_trace")
_JSON_LEVELS = ("levelname", "level", "severity")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")


@dataclass(slots=True)
class Line:
    """One line of a log, without its prefixes."""

    source: str
    number: int  # in the file, from 1
    text: str
    process: str  # its name in the prefix, else the source
    level: str = ""  # of its logger; empty if unknown
    at: str = ""  # as written; empty if unknown
    is_repeated: bool = False  # Ray has held it back, as another process had said it: it may be late


def read_lines(lines: Iterable[str], source: str = "-", first: int = 1) -> Iterator[Line]:
    """Yield the lines of one log; progress bars that rewrite their line are reduced to its last state."""
    for number, raw in enumerate(lines, start=first):
        text = raw.rstrip("\r\n")
        if "\r" in text:
            text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
        yield from read_line(text[:MAX_LINE_CHARS], source, number)


def read_line(text: str, source: str, number: int) -> list[Line]:
    """Return a line, or those that it holds as JSON."""
    return [_clean(part[:MAX_LINE_CHARS], source, number) for part in texts_of_json(text) or (text,)]


def texts_of_json(text: str) -> list[str]:
    """Return the lines that a line of JSON holds, as loggers and Docker write them; none if it is no such line."""
    if not (text.startswith('{"') and text.rstrip().endswith("}")):
        return []
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return []
    texts = [record[key] for key in _JSON_TEXTS if isinstance(record.get(key), str) and record[key].strip()]
    level = next((record[key] for key in _JSON_LEVELS if isinstance(record.get(key), str)), "").upper()
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    if lines and re.fullmatch(_LEVEL, level):
        lines[0] = f"{level}:{lines[0]}"
    return lines


def last_words(log: str) -> str:
    """Return the last line of a log that is not blank."""
    texts = [line.text.strip() for line in read_lines(log.splitlines()[-200:])]
    return next((text for text in reversed(texts) if text), "(it printed nothing)")[:300]


def _clean(text: str, source: str, number: int) -> Line:
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    line = Line(source, number, text, source)
    for _ in range(5):
        if _ANY_PREFIX.match(line.text) is None:
            break
        prefix = next(match for pattern in _PREFIXES if (match := pattern.match(line.text)))
        if prefix.end() == 0:
            break
        parts = prefix.groupdict()
        line.process = parts.get("who") or (f"task {parts['task']}" if parts.get("task") else line.process)
        level = ECHO if parts.get("echo") else (parts.get("level") or "").upper()
        line.level = LEVELS.get(level, level) or line.level
        line.at = parts.get("at") or line.at
        line.text = line.text[prefix.end() :]
    if _SETTING.match(line.text):
        line.level = ECHO
    if "across cluster]" in line.text:
        line.text, count = _REPEATED.subn("", line.text)
        line.is_repeated = count > 0
    return line
