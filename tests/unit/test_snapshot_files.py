"""Reading snapshots: files that are refused, hostile files, expressions, and the snapshots of a run."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydebug.errors import Exit, RaydebugError
from raydebug.protocol.snapshot import MAX_BYTES, SUFFIX, SavedValue
from raydebug.render import Paint
from raydebug.runs.folder import DOCUMENT
from raydebug.snapshot.console import SavedDebugger
from raydebug.snapshot.load import (
    MOST_FRAMES,
    MOST_PARTS,
    READ_BYTES,
    choose_snapshot,
    find_snapshots,
    group_same,
    name_processes,
    read_document,
)
from raydebug.snapshot.session import SnapshotSession
from raydebug.snapshot.values import REFUSED, NotThere, Values, tensor_facts
from snapshot_files import Document, Saved, crashed_reward, write

GOOD = crashed_reward()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose four ranks crashed in the same way, and another rank later in another way."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "state" / "raydebug" / "runs" / "raydebug-0629"
    for rank in (2, 0, 3, 1):
        write(folder / "snapshots", crashed_reward(id=f"z{rank}", rank=rank, at=100.0 + rank), f"z{rank}")
    late = crashed_reward(id="k7", rank=7, at=200.0, exception="KeyError", same="k", function="look_up", line=3)
    write(folder / "snapshots", late, "k7")
    (folder / DOCUMENT).write_text(json.dumps({"version": 1, "id": folder.name, "status": "failed"}))
    return folder


def packed(text: str | bytes) -> bytes:
    return gzip.compress(text if isinstance(text, bytes) else text.encode())


WHOLE = packed(json.dumps(GOOD))
OURS = "this file is not a snapshot of raydebug"
COPY = "copy it again from where it was written; `raydebug open --list RUN` lists the others"


@pytest.mark.parametrize(
    ("content", "what", "cause"),
    [
        (b"", OURS, "it is empty"),
        (b"PK\x03\x04", OURS, "it does not begin like a file of gzip"),
        (packed("no JSON"), OURS, "it holds no JSON: Expecting value: line 1 column 1 (char 0)"),
        (packed("[" * 100_000), OURS, "it holds no JSON: maximum recursion depth exceeded"),
        (packed("9" * 5_000), OURS, "it holds no JSON: Exceeds the limit"),
        (packed(b"\xff\xfe"), OURS, "it holds no JSON: "),
        (packed("[]"), OURS, "its format is not 'raydebug-snapshot'"),
        (packed('{"format": "pickle"}'), OURS, "its format is not 'raydebug-snapshot'"),
        (WHOLE[:-200], "the snapshot is damaged", "its end is missing"),
        (WHOLE[:500] + b"\0\0\0\0" + WHOLE[504:], "the snapshot is damaged", "it cannot be decompressed: "),
        (packed(b" " * (READ_BYTES + 1)), "the snapshot is damaged", f"it holds more than {READ_BYTES:,} bytes"),
        (packed(json.dumps({**GOOD, "version": 2})), "the snapshot is of a newer raydebug", "version 2, this raydebug"),
        (packed(json.dumps({**GOOD, "version": "\x1b[2J"})), "the snapshot is of a newer raydebug", "version "),
    ],
    ids=["empty", "zip", "no-json", "deep", "digits", "bytes", "list", "other", "cut", "bits", "large", "newer",
         "escape"],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, content: bytes, what: str, cause: str) -> None:
    """A file that is empty, of another kind, truncated, damaged, too large or newer is refused in three lines."""
    path = tmp_path / f"x{SUFFIX}"
    path.write_bytes(content)
    with pytest.raises(RaydebugError) as failure:
        find_snapshots(str(path))
    assert (failure.value.what, failure.value.exit_code) == (what, Exit.USAGE)
    assert failure.value.cause.startswith(f"{path}: {cause}")
    assert failure.value.fix == COPY if "damaged" in what else failure.value.fix


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    """A missing file, a folder, a pipe and a device are refused without waiting for them."""
    path = tmp_path / f"x{SUFFIX}"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(RaydebugError, match="the snapshot cannot be read"):
        find_snapshots("/dev/zero" if kind == "device" else str(path))


def broken(change: Callable[[Document], object]) -> Document:
    document = copy.deepcopy(GOOD)
    change(document)
    return document


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda d: d.pop("values"), "'values' is missing"),
        (lambda d: d.update(values=5), "'values' is invalid"),
        (lambda d: d["frames"][0].update(line="45"), "'line' is invalid"),
        (lambda d: d["frames"][0].update(line=True), "'line' is invalid"),
        (lambda d: d["frames"][0].update(line=-1), "'line' is out of range"),
        (lambda d: d["frames"][0].update(source_from=10**12), "'line' is out of range"),
        (lambda d: d["frames"][0].update(line=2**64), "'line' is invalid"),
        (lambda d: d["frames"][0].update(source=[1]), "'source' is invalid"),
        (lambda d: d["frames"][0]["locals"].update(x=10**6), "'locals' is out of range"),
        (lambda d: d["values"][1].update(items=[-1]), "'items' is out of range"),
        (lambda d: d["values"][1].update(pairs=[[0]]), "'pairs' is invalid"),
        (lambda d: d["values"][1].update(pairs=[[0, 10**6]]), "'pairs' is out of range"),
        (lambda d: d["values"][1].update(attributes={"x": 10**6}), "'attributes' is out of range"),
        (lambda d: d["values"][1].update(tensor={"shape": [2**62] * 1000}), "'shape' is out of range"),
        (lambda d: d["values"][1].update(tensor={"first": [{}]}), "'first' is invalid"),
        (lambda d: d["exceptions"][0].update(frames=[99]), "'frames' is out of range"),
        (lambda d: d["exceptions"][0].update(parent=99), "'parent' is out of range"),
        (lambda d: d["summary"].update(rank="0"), "'rank' is invalid"),
        (lambda d: d.update(summary=[]), "'summary' is invalid"),
    ],
)
def test_documents_that_break_the_contract(tmp_path: Path, change: Callable[[Document], object], cause: str) -> None:
    """A document with a field of a wrong type, or an index out of range, is refused, and the error names the field."""
    path = write(tmp_path, broken(change))
    with pytest.raises(RaydebugError) as failure:
        read_document(path)
    assert (failure.value.what, failure.value.cause) == ("the snapshot is damaged", f"{path}: {cause}")


def test_what_later_versions_add_is_dropped(tmp_path: Path) -> None:
    """Unknown fields are dropped, and null means that a field is missing."""
    path = write(tmp_path, {**GOOD, "more": 1, "step": None, "summary": {**GOOD["summary"], "rank": None, "x": 1}})
    document = read_document(path)
    assert "more" not in document
    assert "step" not in document
    assert document["summary"].keys() == GOOD["summary"].keys() - {"rank"}


@pytest.mark.parametrize("part", ["items", "pairs", "attributes"])
def test_limits_of_a_document(tmp_path: Path, part: str) -> None:
    """A value with more parts, and exceptions with more frames, than raydebug would write are refused."""
    parts: dict[str, object] = {"items": [0] * MOST_PARTS, "pairs": [[0, 0]] * MOST_PARTS}
    parts["attributes"] = {f"a{at}": 0 for at in range(MOST_PARTS)}
    wide = {**GOOD, "values": [{"type": "X", part: parts[part]}], "frames": [], "exceptions": []}
    with pytest.raises(RaydebugError, match=f"'{part}' is out of range"):
        read_document(write(tmp_path, wide))
    deep = {**GOOD, "exceptions": [{"type": "E", "frames": [0] * (MOST_FRAMES // 2)}] * 2}
    with pytest.raises(RaydebugError, match="'frames' is out of range"):
        read_document(write(tmp_path, deep))


def test_a_stack_far_down_in_huge_files_costs_little(tmp_path: Path) -> None:
    """`w` of 1,000 frames makes no blank lines for those before; each file is read once, if it is small."""
    huge = tmp_path / "huge.py"
    huge.write_bytes(b"x")
    os.truncate(huge, 2**40)  # sparse
    os.mkfifo(tmp_path / "fifo.py")
    small = tmp_path / "small.py"
    small.write_text("x = 1\n" * 100_000)
    names = [huge, tmp_path / "fifo.py", tmp_path, "/dev/zero", small]
    frames = [{"file": str(names[at % 5]), "line": 99_999, "function": "f", "source_from": 99_999, "source": ["x = 1"]}
              for at in range(1_000)]  # fmt: skip
    document = {**GOOD, "frames": frames, "exceptions": [{"type": "E", "text": "", "frames": [*range(1_000)]}]}
    found = read_document(write(tmp_path, document))
    tracemalloc.start()
    debugger = SavedDebugger(found, Paint(), interactive=False)
    assert asyncio.run(debugger.run("w")).count("x = 1") == 1_000
    session = SnapshotSession(found)
    stack = session.answer({"command": "stackTrace", "arguments": {"threadId": 1}})[0]["body"]["stackFrames"]
    assert [at for at, frame in enumerate(stack) if "origin" not in frame["source"]] == [*range(4, 1_000, 5)]
    assert tracemalloc.get_traced_memory()[1] < 60e6
    tracemalloc.stop()


class CountedValues(Values):
    looked_up = 0

    def __getitem__(self, index: int) -> SavedValue:
        self.looked_up += 1
        return super().__getitem__(index)


def test_a_hostile_file_costs_little(tmp_path: Path) -> None:
    """Values that contain each other without end, and 2 MB of the smallest ones, need few look-ups and 200 MB."""
    saved = Saved()
    leaf = saved.of("x" * 300)
    for _ in range(500):  # each list has the one before it 16 times: 16**500 texts
        leaf = saved.add(type="list", length=16, items=[leaf] * 16)
    chain = saved.add(type="list", items=[0], length=2**62)
    for _ in range(20_000):
        chain = saved.add(type="A", attributes={"a" * 40: chain})
    ring = saved.add(type="dict")
    saved.values[ring]["pairs"] = [[ring, ring]] * 3
    document = {**GOOD, "values": saved.values, "frames": [{"locals": {"wide": leaf, "deep": chain, "ring": ring}}]}
    document["exceptions"] = []
    assert len(json.dumps(document)) < MAX_BYTES
    path = write(tmp_path, document)
    tracemalloc.start()
    found = read_document(path)
    values = CountedValues(found["values"])
    names = found["frames"][0]["locals"]
    texts = {name: values.text(index, 4_000) for name, index in names.items()}
    assert values.looked_up < 3 * 4_000  # of each text no more than it has characters
    assert values.tensors(names) == {}
    assert values.looked_up < 3 * 4_000 + 1_000
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()
    assert texts["wide"].startswith("[" * 31 + "..., ")
    assert texts["wide"].endswith(" ... cut at 4,000 characters")
    assert texts["ring"] == "{...: ..., ...: ..., ...: ...}"
    assert max(map(len, texts.values())) < 4_100
    for expression in ("deep" + ".a" * 10**5, "(" * 10**5, "deep" + ".a" * 240, "(" * 400, "-" * 499):
        with pytest.raises(NotThere):
            values.evaluate(names, expression)


# Expressions


@pytest.fixture(scope="module")
def values() -> Values:
    return Values(GOOD["values"])


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("score", "0.5"),
        ("scores", "[0.5, 1.5]"),
        ("scores[0]", "0.5"),
        ("scores[-1]", "1.5"),
        ("len(scores)", "2"),
        ("batch.name", "'gsm8k'"),
        ("len(batch.name)", "5"),
        ("batch.weights.shape", "torch.Size([4, 8])"),
        ("batch.weights.shape[0]", "4"),
        ("len(batch.weights.shape)", "2"),
        ("len(batch.weights)", "4"),
        ("batch.weights.dtype", "torch.float32"),
        ("batch.weights.requires_grad", "True"),
        ("batch.weights.nan", "3"),
        ("batch.weights.first[0]", "'nan'"),
        ("config", "{'lr': 1e-06, 'actor': {'clip': 0.2}}"),
        ("config.actor.clip", "0.2"),
        ("config['actor']['clip']", "0.2"),
        (" total ", "0.0"),
        ("weights", "<torch.Tensor  [4x8]  float32  cpu  min -1.5  max 2  mean 0.25  NaN 3>"),
    ],
)
def test_expressions(values: Values, expression: str, text: str) -> None:
    """Names, attributes, items and len() are looked up; for a tensor, everything that its summary has."""
    assert values.text(values.evaluate(GOOD["frames"][0]["locals"], expression), 1_000) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("rows.shape", "(64, 31)"),
        ("rows.dtype", "float32"),
        ("rows.device", "'cpu'"),
        ("rows.shape, len(rows)", "((64, 31), 64)"),
    ],
)
def test_arrays_of_numpy(expression: str, text: str) -> None:
    """The facts about an array are numpy's, not torch's; several values are shown with commas between them."""
    about: Any = {"shape": [64, 31], "dtype": "float32", "device": "cpu", "storage": "numpy 0x1"}
    array = Values([{"type": "numpy.ndarray", "tensor": about}])
    assert array.text(array.evaluate({"rows": 0}, expression), 1_000) == text


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        *((code, REFUSED) for code in (
            "1", "score + 1", "reward()", "__import__('os')", "scores[score]", "[1]", "f'{score}'", "len(score, score)",
            "len()", "scores[0:1]", "lambda: 0", "scores[~0]", "-score", "str(score)", "scores.append(1)", "(x := 1)",
            "score if score else 0", "score == score", "[x for x in scores]", "await score",
        )),
        ("nope", "NameError: 'nope' is not a local of this frame; globals are not in a snapshot"),
        ("batch.", "SyntaxError: invalid syntax"),
        ("x = 1", "SyntaxError: invalid syntax"),
        ("", "SyntaxError: invalid syntax"),
        ("score\0", "SyntaxError: "),
        ("batch.loss", "verl.protocol.Batch has no attribute 'loss' in the snapshot; what code computes is not saved"),
        ("batch.weights.grad", "torch.Tensor has no attribute 'grad' in the snapshot; what code computes is not saved"),
        ("weights[0]", "a snapshot has the summary of a tensor, not its elements: `tensor EXPR`"),
        ("scores[7]", "list has no item 7 in the snapshot; 2 items are saved"),
        ("scores[-3]", "list has no item -3 in the snapshot; 2 items are saved"),
        ("scores['a']", "list has no item 'a' in the snapshot; 2 items are saved"),
        ("config.missing", "dict has no key 'missing' in the snapshot; 2 items are saved"),
        ("len(score)", "float has no length in the snapshot"),
    ],
)  # fmt: skip
def test_expressions_that_are_refused(values: Values, expression: str, why: str) -> None:
    """Code is refused with the reason; an error about a missing part says which parts exist."""
    with pytest.raises(NotThere, match=re.escape(why)):
        values.evaluate(GOOD["frames"][0]["locals"], expression)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("numpy_str", "'gsm8k'"),
        ("data", "b'ab'"),
        ("many", "[0, 1, 2, ... 997 more]"),
        ("long", f"{'a' * 100!r} ... of 5,000,000 characters"),
        ("token", "<redacted>"),
        ("shown", r"'\x1b]0;owned\x07\u202egnp.exe'"),
        ("cycle", "{'self': ..., 'deep': <list of 3, cut: depth>}"),
        ("gpu", "<torch.Tensor  [4x8]  float32  cuda:0>"),
        ("how", "<function reward>"),
    ],
)
def test_texts_of_values(values: Values, expression: str, text: str) -> None:
    """Values look as Python writes them; cut, redacted and unprintable parts are marked."""
    assert values.text(values.evaluate(GOOD["frames"][1]["locals"], expression), 1_000) == text


def test_missing_parts_say_why(values: Values) -> None:
    """The error for a missing part says whether it was cut, redacted, or never saved."""
    for expression, why in {
        "many[500]": "3 of its 1,000 items",
        "token.x": "redacted",
        "cycle['deep'][0]": "0 of its 3",
    }.items():
        with pytest.raises(NotThere, match=why):
            values.evaluate(GOOD["frames"][1]["locals"], expression)


@pytest.mark.parametrize("text", ["(1,)", "()", "{'a': (1, 2), 'b': {3}}", "[None, True, 'x']"])
def test_plain_values_read_as_written(text: str) -> None:
    """A saved list, tuple, set or dict has the same text as in Python."""
    saved = Saved()
    index = saved.of(eval(text))
    assert Values(saved.values).text(index, 100) == text  # type: ignore[arg-type]


def test_tensors_that_share_memory() -> None:
    """The summary says how large the sample is, and which other names share the memory."""
    value: Any = {
        "type": "torch.Tensor",
        "tensor": {"shape": [100, 100], "sampled": 4096, "nan": 0, "unread": "sparse"},
    }
    facts = tensor_facts(value, ["view"])
    assert facts["note"] == "of 4,096 sampled elements of 10,000\n  shares memory with view\n  no values: sparse"
    assert (facts["numel"], facts["finite"], facts["inf"]) == (10_000, 4096, 0)


# Runs


@pytest.mark.parametrize("target", ["raydebug-0629", "raydebug-06", "last", "FOLDER", "FOLDER/snapshots"])
def test_snapshots_of_a_run(run: Path, target: str) -> None:
    """A run is named by its id, the beginning of it, `last` or its folder; the first crash comes first."""
    found = find_snapshots(target.replace("FOLDER", str(run)))
    assert [one.id for one in found] == ["z0", "z1", "z2", "z3", "k7"]


def test_equal_crashes_are_grouped(run: Path) -> None:
    """Equal crashes are one group with their ranks in short form; one is picked by its id or its group's number."""
    found = find_snapshots()
    assert [(len(same), name_processes(same)) for same in group_same(found)] == [
        (4, "Judge ranks 0-3"),
        (1, "Judge rank 7"),
    ]
    assert [choose_snapshot(found, "last", pick).id for pick in (None, "1", "2", "z3")] == ["z0", "z0", "k7", "z3"]
    with pytest.raises(RaydebugError) as failure:
        choose_snapshot(found, "last", "9")
    assert str(failure.value) == (
        "error: 'last' has no snapshot '9'\ncause: it has 1 to 2; the first is z0\n"
        "fix: `raydebug open --list last` shows them"
    )


def test_processes_without_ranks(tmp_path: Path) -> None:
    """Crashes of processes that have no rank are named by their process ids."""
    for pid in range(1, 8):
        write(tmp_path / "snapshots", crashed_reward(id=f"p{pid}", rank=None, pid=pid), f"p{pid}")
    assert name_processes(find_snapshots(f"{tmp_path}/")) == "Judge pid 1, 2, 3, 4 and 3 more"
    write(tmp_path / "task" / "snapshots", crashed_reward(id="t", rank=None, pid=9, actor=None, task="weigh"), "t")
    assert name_processes(find_snapshots(f"{tmp_path}/task/")) == "weigh pid 9"


def test_a_damaged_one_does_not_hide_the_others(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged snapshot is skipped with a line that names it, and the others are listed."""
    (run / "snapshots" / f"\x1bx{SUFFIX}").write_bytes(b"")
    assert len(find_snapshots()) == 5
    assert capsys.readouterr().err == f"skipped: {run}/snapshots/\\x1bx{SUFFIX}: it is empty\n"


def test_a_run_without_crashes(run: Path) -> None:
    """A run without a snapshot is an error in three lines, with exit code 1."""
    for path in (run / "snapshots").iterdir():
        path.unlink()
    with pytest.raises(RaydebugError) as failure:
        choose_snapshot(find_snapshots(), "last")
    assert failure.value.exit_code == Exit.FAILED
    assert str(failure.value) == (
        "error: 'last' has no snapshot\ncause: none of its processes crashed\n"
        "fix: see the report of the run: raydebug report last"
    )
