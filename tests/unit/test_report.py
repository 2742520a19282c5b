"""The run report: the content of its page, its plots, and its escaping; `raydebug report` writes it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import stat
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest

import run_documents
import runs
import trace_files
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster
from raydebug.jobs.recorder import Recorder
from raydebug.protocol.variables import PROFILE
from raydebug.render import duration
from raydebug.report import run as report_run
from raydebug.report import units
from raydebug.report.compare import Difference, compare, find_differences
from raydebug.report.curves import memory_rows, memory_sum
from raydebug.report.metrics import metric_names
from raydebug.report.page import DARK, LIGHT, SERIES
from raydebug.report.plot import Axis, ceiling, density, downsample, gaps, merge, stack
from raydebug.report.waterfall import draw_spans, is_dense, phase_rows
from raydebug.report.write import write_report
from raydebug.runs.folder import RunFolder, read_run
from raydebug.runs.record import NODE, read_document
from raydebug.runs.timeline import read_recorded


def run_page(document: dict[str, Any]) -> str:
    return report_run.run_page(read_document(document))


PAGES = {
    "failed": lambda: run_page(run_documents.failed_run()),
    "hostile": lambda: run_page(run_documents.hostile_run()),
    "empty": lambda: run_page({}),
}


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text without style and programs."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"style": [], "script": []}
        self.text = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.inline:
            self.inline[self._inside].append(data)
        else:
            self.text += data


@pytest.fixture(params=sorted(PAGES))
def page(request: pytest.FixtureRequest) -> str:
    return PAGES[request.param]()


def test_nothing_is_fetched(page: str) -> None:
    """A page refers only to the job's log beside it, and to parts of itself."""
    for tag, attributes in Parsed(page).elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "audio", "video", "image"), tag
        for name, value in attributes.items():
            assert name not in ("src", "srcset", "style", "action", "background", "data", "poster", "ping"), (tag, name)
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "xlink:href"):
                assert value in ("job.log", "#bands"), value
    assert set(re.findall(r"url\(([^)]*)\)|@import", page)) <= {"#stripes", "#net", "#going-on"}


def test_policy_allows_the_pages_own_parts_only(page: str) -> None:
    """The policy names the hashes of the one style and the one program that the page has, and forbids all else."""
    parsed = Parsed(page)
    policy = next(a["content"] for t, a in parsed.elements if t == "meta" and "http-equiv" in a) or ""
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    program = [text for text in parsed.inline["script"] if not text.startswith("{")]
    for rule, parts in (("style-src", parsed.inline["style"]), ("script-src", program)):
        for part in parts:
            digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
            assert rules[rule] == f"'sha256-{digest}'"
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'none'", "'none'", "'none'")
    assert not re.search("unsafe|eval|http", policy)


def test_text_of_a_job_stays_text() -> None:
    """Markup, terminal escapes and bidirectional text become visible text; other values than numbers are left out."""
    page = PAGES["hostile"]()
    parsed = Parsed(page)
    assert {tag for tag, _ in parsed.elements} & {"img", "script"} == {"script"}
    assert sum(tag == "script" for tag, _ in parsed.elements) == 2
    assert "<script>document.title" in parsed.text
    assert "\\x1b[31mred\\u202egnp.exe\\x00" in parsed.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)
    assert "hunter2" not in page
    assert "</script>" not in parsed.inline["script"][0]


def test_secrets_in_the_record_of_somebody_else() -> None:
    """What another raydebug, or none, has left in a record is hidden when it is shown: in each text, but an id."""
    hidden = "hf_" + "aB3" * 12
    document = json.loads(json.dumps(run_documents.failed_run()))

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: put(one) for name, one in value.items()}
        return [put(one) for one in value] if isinstance(value, list) else hidden if isinstance(value, str) else value

    assert hidden not in run_page({**put(document), "kind": "run", "status": "failed"})


WRONG: list[Any] = [None, 3, -1.0, math.nan, "x", True, [], {}, [None], [[]], [{}], {"x": None}, [[1, 2, 3, 4]]]


@pytest.mark.parametrize("key", sorted(run_documents.failed_run()))
def test_broken_documents(key: str) -> None:
    """A document in which any part is missing, or of any wrong type, still makes a page and a comparison."""
    document = run_documents.failed_run()
    for one in (*document["memory"], *document["gpus"]):
        del one["samples"][8:]
    del document["steps"][2:], document["phases"][5:]
    broken = [{k: v for k, v in document.items() if k != key}, *({**document, key: wrong} for wrong in WRONG)]
    inner = document[key][0] if isinstance(document[key], list) and isinstance(document[key][0], dict) else {}
    broken += [{**document, key: [{**inner, name: wrong}]} for name in inner for wrong in WRONG]
    for number, one in enumerate(broken):
        assert number >= len(WRONG) or "<h1>" in run_page(one)
        assert compare(read_document(one), read_document({}))


def test_measurements_that_cannot_be() -> None:
    """A moment ten thousand years away is left out, and a very long text is cut."""
    late = {"name": "x", "start_s": 1e300, "end_s": 1e301}
    early = {"name": "y", "start_s": -0.2, "end_s": 1}  # by another machine's clock
    document = {"phases": [late, early], "first_error": {"text": "ab" * 10_000}}
    run = read_document(document)
    assert ([(phase.name, phase.start_s) for phase in run.phases], run.length_s) == ([("y", 0.0)], 1.0)
    assert run.first_error["text"].endswith("ab ... and 10,000 more characters")


def test_what_the_head_says() -> None:
    """The head says how the run ended and what failed first, with a link to the log."""
    text = Parsed(PAGES["failed"]()).text
    assert text.index("Run failed after 5m24s, exit code 1") < text.index("First error") < text.index("Findings")
    assert "FloatingPointError: loss is nan at step 9 (grad_norm=inf)" in text
    assert "raised by WorkerDict.update_actor, pid 7141, at /workspace/verl/actor/dp_actor.py:418" in text
    running = {**run_documents.failed_run(), "status": "running", "ended": None, "exit_code": None, "first_error": None}
    assert "Run had not ended; known up to 5m24s" in Parsed(run_page(running)).text
    unknown = {**run_documents.failed_run(), "first_error": None}
    assert "No error was found in the output of its processes. read job.log" in Parsed(run_page(unknown)).text


def test_what_the_sections_say() -> None:
    """Findings are ordered by severity; changes, pauses, the command and its variables are there, secrets are not."""
    text = Parsed(PAGES["failed"]()).text
    assert text.index("the loss is NaN from step 8 on") < text.index("gpu_memory_utilization=0.6 leaves")
    assert "trainer.total_training_stepsnull \N{RIGHTWARDS ARROW} 2the second step" in text
    assert "14.0 s, not resumed" in text
    assert "  'trainer.project_name=gsm8k grpo' \\\n" in text
    assert "WANDB_API_KEY(hidden)" in text
    assert "NaN at step 8 and 1 more" in text
    assert "inf at step 9" in text


@pytest.mark.parametrize("log", ["javascript:x()", "//host/x", "../x", "a b", "", "x" * 200, ".hidden", "a?b", "a#b"])
def test_a_log_that_is_no_plain_name_is_no_link(log: str) -> None:
    """Only a plain file name becomes a link."""
    page = run_page({**run_documents.failed_run(), "log": log, "pauses": [], "phases": []})
    assert "href" not in page.replace('href="#bands"', "")


def test_waterfall() -> None:
    """Phases of one name are one row with their sum; an open phase is marked; time outside all phases has a row."""
    run = read_document(run_documents.failed_run())
    rows = [re.sub("<[^>]*>", "|", row) for row in phase_rows(run, Axis(run.length_s))]
    said = [[part for part in row.split("|") if part] for row in rows]
    assert [row[0] for row in said] == [
        *("start", "model load", "engine start", "rollout", "reward", "update", "checkpoint", "in no phase"),
    ]  # fmt: skip
    assert said[0] == ["start", "start: 8.40 s, from 0 s to 8.40 s", "8.40 s", "3 %"]
    assert said[3][1] == " \N{MULTIPLICATION SIGN}9"
    assert "checkpoint: 3.00 s, from 5m21s to 5m24s, not ended" in said[6]


def test_dense_spans_are_drawn_by_their_share() -> None:
    """Dense spans are drawn as columns as high as the time that they cover, not as one full bar."""
    half = [(float(i), i + 0.5) for i in range(10_000)]
    assert is_dense(half, 10_000.0)
    assert density(half, 10_000.0) == pytest.approx([0.5] * 400)
    (drawn,) = draw_spans(half, Axis(10_000.0), lambda _: ("", "phase"))
    assert "<rect" not in drawn
    assert set(re.findall(r"V([\d.]+)H", drawn)) == {"50"}
    few = [(0.0, 1.0), (50.0, 60.0)]
    assert not is_dense(few, 100.0)
    assert [bar.count("<rect") for bar in draw_spans(few, Axis(100.0), lambda _: ("", "phase"))] == [1, 1]


def test_intervals() -> None:
    """Overlapping intervals are merged; the time between them is a gap; a column has its covered share."""
    assert merge([(5, 6), (0, 2), (1, 3)]) == [(0, 3), (5, 6)]
    assert merge([(0, 1), (1.5, 2)], 0.6) == [(0, 2)]
    assert gaps([(1, 3), (2, 4)], 5.0) == [(0.0, 1), (4, 5.0)]
    assert density([(0, 1), (2.5, 4)], 4.0, 4) == [1.0, 0.0, 0.5, 1.0]


def test_a_thinned_curve_keeps_its_peaks_and_gaps() -> None:
    """Of many points each column keeps lowest, highest and mean, also of huge values; a column of NaN is a gap."""
    points = [(float(i), 50.0 if i == 6173 else math.nan if 2000 <= i < 3000 else float(i % 2)) for i in range(10_000)]
    reduced = downsample(points, 100)
    assert len(reduced.middle) == len(reduced.low) == len(reduced.high) == 100
    assert max(y for _, y in reduced.high if y == y) == 50.0
    assert [math.isnan(y) for _, y in reduced.middle].count(True) == 10
    assert reduced.middle[0][1] == 0.5
    few = downsample(points[:200], 100)
    assert (few.middle, few.low, few.high) == (points[:200], [], [])
    huge = downsample([(float(at), 1e308) for at in range(100)], 10)
    assert [round(y / 1e308, 9) for _, y in huge.middle] == [1.0] * 10


def many_steps(count: int, **more: object) -> dict[str, Any]:
    """Return a run of many steps, with a peak of the loss at 777, odd values at 3,001 and 3,002, and a slow step."""
    odd = {777: 50.0, 3_001: "NaN", 3_002: "Infinity"}
    steps = [
        {"step": at, "end_s": 2.0 * at, "seconds": 90.0 if at == 1_234 else 2.0,
         "metrics": {"actor/loss": odd.get(at, 1.0 + at % 2), "critic/score": at % 7}}
        for at in range(1, count + 1)
    ]  # fmt: skip
    return {"id": "r", "kind": "run", "command": ["python", "a.py"], "status": "succeeded", "steps": steps, **more}


def test_very_many_steps_are_thinned() -> None:
    """Of 5,000 steps no peak, no slow step and no NaN is lost, and neither is the number of steps."""
    page = run_page(many_steps(5_000))
    assert len(page) < 300_000
    for said in (
        "The last 12 of 5,000 steps", "5,000 values are drawn as 120 means", "1 to 50</span>",
        "NaN at step 3,001 and 1 more", "2.00 s to 1m30s", "duration of 5,000 steps: median 2.00 s",
    ):  # fmt: skip
        assert said in page, said


def test_a_record_that_has_not_all_steps() -> None:
    """Of a long run that was thinned out while it was recorded, the page says how many steps the record has."""
    page = run_page(many_steps(500, step_count=86_400))
    assert "The record of this long run has 500 of its 86,400 steps. 500 values are drawn as" in page
    assert "The last 12 of 86,400 steps" in page
    assert read_document(many_steps(500, step_count="x")).step_count == 500


def test_memory_adds_up_moments_not_peaks() -> None:
    """Two processes that hold 10 one after the other are 10 together, also where one column has both."""
    first = [(0.0, 10.0), (1.0, 10.0), (2.0, 0.0), (3.0, 0.0)]
    second = [(0.0, 0.0), (1.0, 0.0), (2.0, 10.0), (3.0, 10.0)]
    assert [values for _, values in stack([first, second], [0, 0], 4.0, 1)] == [[10.0]]
    assert stack([[(1.0, 5.0)]], [0], 4.0, 4) == [(0.5, [0.0]), (1.5, [5.0]), (2.5, [0.0]), (3.5, [0.0])]


def test_memory_of_a_node() -> None:
    """The memory of all processes of a node is a line, and not part of the stack of the run's own processes."""
    samples = [[t, 1000.0] for t in range(10)]
    whole = [[t, 5000.0] for t in range(10)]
    memory = [{"process": name, "node": "n", "samples": samples} for name in ("a", "b")]
    run = read_document({"memory": [*memory, {"process": NODE, "node": "n", "samples": whole}]})
    assert max(y for _, y in memory_sum(run, Axis(run.length_s))) == 2000.0
    (row,) = memory_rows(run, Axis(run.length_s))
    assert "memory of 2 processes: at most 1.95 GiB at once; all of the node 4.88 GiB" in row
    assert row.count('class="area') == 2
    assert row.count('class="curve whole"') == 1


def test_memory_of_a_small_job() -> None:
    """Beside a node with far more memory the scale is that of the run's processes; the node is said in words."""
    sizes = {"a": 90, NODE: 9000}
    memory = [{"process": name, "node": "n", "samples": [[0, mib], [9, mib]]} for name, mib in sizes.items()]
    run = read_document({"memory": memory})
    (row,) = memory_rows(run, Axis(run.length_s))
    assert "100 MiB" in row
    assert "all of the node 8.79 GiB" in row
    assert "whole node 8.79 GiB" in row
    assert "curve whole" not in row


def test_page_of_a_plain_program(tmp_path: Path) -> None:
    """A run without steps has a row for each of Ray's functions; its error is said once, its lock as it is."""
    first = {"kind": "ValueError", "text": "no rows", "class": "user-code", "confidence": "likely",
             "title": "ValueError in the program at a.py:3 f", "cause": "ValueError: no rows"}  # fmt: skip
    document = {"status": "failed", "first_error": first, "lock": {"flavour": "core", "sha256": "sha256:9f2c"}}
    folder = trace_files.run_folder(tmp_path / "r", [], document)
    columns = ["task_id", "name", "worker_pid", "node_id", "start_time_ms", "end_time_ms"]
    rows = [["t1", "weigh", 7, "n", 1_001_000, 1_041_000], ["t2", "weigh", 8, "n", 1_021_000, 1_061_000],
            ["t3", "load", 8, "n", 1_000_500, 1_000_900]]  # fmt: skip
    (folder / "tasks.json").write_text(json.dumps({"version": 1, "cut": False, "columns": columns, "rows": rows}))
    run = read_run(folder)
    page = write_report(run, recorded=read_recorded(run)).read_text()
    text = Parsed(page).text
    assert "weigh: from 1.00 s to 1m01s" in page
    assert "1m00s60 %" in text
    assert text.index("weigh") < text.index("load")
    assert (text.count("ValueError"), text.count("no rows")) == (1, 1)
    assert "core sha256:9f2c" in text


def test_more_than_rows_and_colours() -> None:
    """Of many names the longest have a row each, of processes the largest a band; the others share one, labelled so."""
    phases = [{"name": f"p{i}", "start_s": i, "end_s": i + 1 + i / 100} for i in range(100)]
    rows = phase_rows(read_document({"phases": phases}), Axis(101.0))
    assert len(rows) == 40
    assert "61 others, shorter" in rows[-1]
    memory = [{"process": f"p{i}", "node": "n", "samples": [[0, 100 + i], [1, 100 + i]]} for i in range(50)]
    (row,) = memory_rows(read_document({"memory": memory}), Axis(1.0))
    assert row.count('class="area') == SERIES
    assert "45 others" in row
    assert "p49" in row


def test_metrics_that_people_look_at_first() -> None:
    """Reward, loss, KL, entropy, gradient norm and length come first, the means of them; the rest keeps its order."""
    names = metric_names(read_document(run_documents.failed_run()).steps)
    assert names[:7] == [
        *("critic/rewards/mean", "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm"),
        *("response_length/mean", "actor/lr"),
    ]  # fmt: skip
    assert names[7:9] == ["critic/rewards/max", "perf/throughput"]


def test_time_spans() -> None:
    """A time span has three significant digits and a unit; tables of pauses and jobs show whole seconds."""
    assert [duration(value) for value in (None, 0, 0.0123, 3.214, 59.96, 192, 3599.6, 3840, -2.5, 200_000)] == [
        *("?", "0 s", "12.3 ms", "3.21 s", "1m00s", "3m12s", "1h00m", "1h04m", "\N{MINUS SIGN}2.50 s", "2d07h"),
    ]  # fmt: skip
    shown = [duration(value, whole=True) for value in (0.0, 0.4, 3.7, 59.6, 75.2, 3900.0, None)]
    assert shown == ["0 s", "0 s", "4 s", "1m00s", "1m15s", "1h05m", "?"]


def test_other_words() -> None:
    """Sizes, metrics, moments and differences read as people write them."""
    assert [units.mebibytes(v) for v in (None, 0, 0.00488, 3.14159, 999, 10_240, 204_800)] == [
        *("?", "0 MiB", "5 KiB", "3.14 MiB", "999 MiB", "10.0 GiB", "200 GiB"),
    ]  # fmt: skip
    assert [units.figure(v) for v in (math.nan, -math.inf, 1e-6, -0.03088, 12345, 1.0)] == [
        *("NaN", "\N{MINUS SIGN}inf", "1e-06", "\N{MINUS SIGN}0.03088", "12,345", "1"),
    ]  # fmt: skip
    assert [units.change(10, b) for b in (12, 8, 10.01, 250)] == [
        *("+20 %", "\N{MINUS SIGN}20 %", "\N{PLUS-MINUS SIGN}0 %", "\N{MULTIPLICATION SIGN}25"),
    ]  # fmt: skip
    assert units.between(0, 60) == "1970-01-01 00:00:00 to 00:01:00 UTC"
    assert (units.between(1e300, None), units.since_start(86_001)) == ("", "23h53m21s")
    assert [Axis(length).ticks()[0] for length in (0.3, 7, 100, 324, 86_000, 1e7)] == [0.05, 1, 15, 60, 10800, 1296000]
    assert [ceiling(v) for v in (0, 0.7, 81, 1000)] == [1, 0.8, 100, 1000]


def test_differences() -> None:
    """Settings of a command are compared by name, at any position; the rest word by word."""
    first = {"command": ["python", "a.py", "x=1", "y=2"], "variables": {"A": "1"}, "lock": {"sha256": "1"}}
    second = {"command": ["python", "b.py", "y=2", "x=3", "z="], "variables": {"A": "1", "B": ""}, "profile": "debug"}
    assert find_differences(read_document(first), read_document(second)) == [
        Difference("command", "", "a.py", "b.py"),
        Difference("command", "x", "1", "3"),
        Difference("command", "z", None, ""),
        Difference("profile", "profile", "none", "debug"),
        Difference("lock", "sha256", "1", None),
        Difference("variables", "B", None, ""),
    ]


def test_comparison() -> None:
    """Two runs as a table: how they ended, durations with their change, what differs; what is the same is left out."""
    rows = compare(read_document(run_documents.failed_run()), read_document(run_documents.quick_run()))
    assert {tuple(row) for row in rows} >= {
        ("status", "failed", "succeeded", ""),
        ("phase engine start", "32.2 s", "21.9 s", "\N{MINUS SIGN}32 %"),
        ("phase checkpoint", "3.00 s", "-", ""),
        ("command actor_rollout_ref.rollout.gpu_memory_utilization", "0.6", "0.5", ""),
    }
    assert not [row for row in rows if row[0].startswith(("cluster", "profile", "lock"))]
    assert [row[0] for row in compare(*[read_document(run_documents.quick_run())] * 2)] == ["status"]


def luminance(colour: str) -> float:
    """Source: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(over: str, under: str, share: float) -> str:
    pairs = ((int(over[i : i + 2], 16), int(under[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in pairs)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(colours: dict[str, str]) -> None:
    """Text has 4.5:1 on each of its backgrounds; bars and curves have 3:1, also over the band of a pause (WCAG AA)."""
    series = [f"s{i + 1}" for i in range(SERIES)]
    text = [(word, "paper") for word in ("ink", "quiet", "link", "bad", "warn", "good")]
    text += [(word, "bad-paper") for word in ("ink", "quiet", "link", "bad")]
    text += [("ink", "plot"), ("quiet", "plot"), *(("on-series", name) for name in series)]
    assert {pair: c for pair in text if (c := contrast(colours[pair[0]], colours[pair[1]])) < 4.5} == {}
    drawn = ["phase", "pause", "quiet", "ink", *series]
    under = {"paper": colours["paper"], "plot": colours["plot"]}
    under["band"] = mixed(colours["pause"], colours["plot"], 0.13)
    low = {(a, b): c for a in drawn for b, colour in under.items() if (c := contrast(colours[a], colour)) < 3}
    assert low == {}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of this test, with two recorded runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for number, document in enumerate((run_documents.failed_run(), run_documents.quick_run())):
        made = RunFolder(document["id"])
        made.write(read_document(document))
        os.utime(made.path / "run.json", (number, number))
    return tmp_path / "state"


def report(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return runs.raydebug("report", *arguments, env={**os.environ, **variables})


def test_report_of_a_run(state: Path) -> None:
    """`report RUN` writes one file for its owner only into the run's folder, and prints where; it may be run again."""
    for _ in range(2):
        done = report("raydebug-0629")
        assert done.returncode == 0, done.stderr
    path = Path(done.stdout.rstrip("\n"))
    assert path == state / "raydebug" / "runs" / "raydebug-062956-f43ea0" / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(one.name for one in path.parent.iterdir()) == ["report.html", "run.json"]
    assert "Run failed after 5m24s" in path.read_text(encoding="utf-8")
    assert json.loads(report("--json").stdout)["id"] == "raydebug-071204-0b17d4"  # is the last one still


def test_report_elsewhere(state: Path, tmp_path: Path) -> None:
    """`--output` writes elsewhere, with a link that leads from there to the log."""
    place = tmp_path / "odd: place"
    place.mkdir()
    done = report("raydebug-0629", "--output", str(place / "a.html"))
    assert done.stdout == f"{place / 'a.html'}\n"
    links = [a["href"] for t, a in Parsed((place / "a.html").read_text(encoding="utf-8")).elements if t == "a"]
    assert set(links) == {"../state/raydebug/runs/raydebug-062956-f43ea0/job.log"}


def test_report_into_what_is_there(state: Path, tmp_path: Path) -> None:
    """The target of a link is replaced, not the link; a device or a pipe is written to."""
    (tmp_path / "page.html").write_text("older")
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    done = report("--output", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert "Run succeeded" in (tmp_path / "page.html").read_text(encoding="utf-8")
    argv = [sys.executable, "-m", "raydebug", "report", "--output", "/dev/stdout"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)  # its stdout is a pipe
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.endswith("</html>\n/dev/stdout\n")


class DriversFile:
    """A dashboard whose head has the file of a profile's changes that the driver of the job wrote."""

    def nodes(self) -> list[dict[str, Any]]:
        return [{"node_id": "h", "is_head_node": True}]

    def log_names(self, node_id: str) -> list[str]:
        return ["raydebug-profile-recorded.json"]

    def log_text(self, node_id: str, name: str) -> str:
        return '[{"key": "trainer.total_training_steps", "old": "null", "new": "2", "why": "two are enough"}]'


def test_report_of_what_was_recorded(state: Path, tmp_path: Path) -> None:
    """What the recorder writes of a run is what the page shows: phases, steps, pauses, changes, memory."""
    cluster = Cluster("c", "", "compose", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0)
    about = {"submission_id": "recorded", "start_time": (time.time() - 60) * 1000}
    about["runtime_env"] = {"env_vars": {PROFILE: "debug", "HF_TOKEN": "hunter2"}}
    made = Recorder(cluster, about, ["python", "-m", "verl.trainer.main_ppo"])
    place = {"file": "/x/train.py", "line": 7, "function": "f", "pid": 9}
    made.take_pauses([{"id": "3", "kind": "breakpoint", "since_s": 20.0, **place}])
    made.read_changes(cast("Dashboard", DriversFile()))
    made.take_log("... Connected to Ray cluster.\n")
    made.take_log("step:1 - actor/pg_loss:nan - timing_s/step:4.5\n")
    made.end("FAILED", 1, {"kind": "ValueError", "text": "x", "who": "driver", "place": ""})
    done = report("recorded")
    text = Parsed(Path(done.stdout.rstrip("\n")).read_text(encoding="utf-8")).text
    for said in ("Run failed after 1m00s, exit code 1", "ValueError: x", "driver: imports, Ray", "/x/train.py:7 f",
                 "paused at breakpoints \N{MULTIPLICATION SIGN}1", "trainer.total_training_stepsnull", "NaN at step 1",
                 "changed 1 setting of the command"):  # fmt: skip
        assert said in text, said
    assert "hunter2" not in text


def test_report_of_two_runs(state: Path) -> None:
    """`report A B` prints a table, and as JSON both records with their differences."""
    lines = [line.split() for line in report("raydebug-0629", "last").stdout.splitlines()]
    assert ["raydebug-062956-f43ea0", "raydebug-071204-0b17d4", "change"] in lines
    assert ["status", "failed", "succeeded"] in lines
    document = json.loads(report("raydebug-0629", "last", "--json").stdout)
    assert [run["id"] for run in document["runs"]] == ["raydebug-062956-f43ea0", "raydebug-071204-0b17d4"]
    assert document["differences"][0]["key"] == "actor_rollout_ref.rollout.gpu_memory_utilization"


def test_report_list_and_json(state: Path, tmp_path: Path) -> None:
    """`--list` names the runs, `--json` prints the last one's document; without any run both print that."""
    lines = report("--list").stdout.splitlines()
    row = re.compile(r"\s*raydebug-071204-0b17d4\s+succeeded\s+09-21 14:53\s+2m48s")
    assert any(map(row.match, lines))
    listed = json.loads(report("--list", "--json").stdout)["runs"]
    assert [run["status"] for run in listed] == ["failed", "succeeded"]
    assert json.loads(report("--json").stdout)["id"] == "raydebug-071204-0b17d4"
    assert (
        report("--list", XDG_STATE_HOME=str(tmp_path)).stderr
        == "no run is recorded: `raydebug run -- COMMAND` records one\n"
    )
    none = report(XDG_STATE_HOME=str(tmp_path))
    assert (none.returncode, none.stderr.splitlines()[0]) == (2, "error: no run is recorded")


def test_report_opens_the_browser(state: Path, tmp_path: Path) -> None:
    """`--open` opens the page in the user's browser, and prints a line if there is none."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    done = report("--open", BROWSER=f"{browser} %s")
    assert (tmp_path / "opened").read_text() == Path(done.stdout.rstrip("\n")).as_uri()
    done = report("--open", BROWSER="/nowhere/browser %s", PATH="/nowhere", DISPLAY="")
    assert done.returncode == 0
    assert done.stderr.endswith("\nno browser could be opened here; the file can be copied to where there is one\n")


@pytest.mark.parametrize(
    ("arguments", "what", "cause"),
    [
        (["a", "b", "c"], "3 runs cannot be compared", "a report is of one run, or of two"),
        (["a", "b", "--open"], "--output and --open are for the page of one run", "a report is of one run, or of two"),
        (["last", "--output", "{}"], "the report cannot be written", "{}: it is a folder"),
        (["last", "--output", "{}/no/x"], "the report cannot be written", "{}/no/x: No such file or directory"),
        (["last", "--output", "/dev/full"], "the report cannot be written", "/dev/full: No space left on device"),
        (["nosuch"], "there is no run 'nosuch'", None),
    ],
)
def test_report_refusals(state: Path, tmp_path: Path, arguments: list[str], what: str, cause: str | None) -> None:
    """A run that cannot be reported is an error of three lines with exit code 2, and no file is left."""
    done = report(*(argument.format(tmp_path) for argument in arguments))
    lines = done.stderr.splitlines()[-3:]
    assert (done.returncode, done.stdout, lines[0]) == (2, "", f"error: {what}")
    assert cause is None or lines[1] == f"cause: {cause.format(tmp_path)}"
    assert lines[2].startswith("fix: ")
    assert list(tmp_path.glob(".*")) == []
    assert Path("/dev/full").is_char_device()
