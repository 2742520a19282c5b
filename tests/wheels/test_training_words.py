"""What the worker reads of a running training, against each release of verl: its timers, functions and their locals."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raydebug.worker import spans
from raydebug.worker.import_hooks import SPANS_IN
from raydebug.worker.training import REWARD_FILES, STATE_IN, STATE_OF, SYNC
from wheels.conftest import RELEASES

Release = Callable[[str], Path]
pytestmark = pytest.mark.timeout(600)
AGENTS_SINCE, V1_SINCE = (0, 5), (0, 8)


class Timer:
    """As much of codetiming's Timer as verl uses: the wheels are unpacked without what they need."""

    def __init__(self, **_: Any) -> None:
        self.last = 0.0

    def __enter__(self) -> Timer:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.last = time.perf_counter() - self._began


def version_of(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def functions(root: Path, files: str) -> Iterator[tuple[str, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield path, qualified name and node of each function in files whose path matches."""
    for path in sorted(root.rglob("*.py")):
        name = f"/{path.relative_to(root)}"
        if re.search(files, name) is None:
            continue
        tree = ast.parse(path.read_text())
        classes = [(f"{node.name}.", node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for prefix, owner in [("", tree), *classes]:
            for node in owner.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield name, f"{prefix}{node.name}", node


def names_in(node: ast.AST) -> set[str]:
    """Return the parameters and other locals of a function."""
    found = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    return found | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


@pytest.mark.parametrize("version", RELEASES)
def test_timers(version: str, release: Release) -> None:
    """One of the watched modules has the one timer through which all others run; the trainer's step is one of them."""
    root = release(version)
    timers = []
    for module in SPANS_IN:
        path = root / f"{module.replace('.', '/')}.py"
        for _, name, node in functions(root, re.escape(f"/{path.relative_to(root)}") + "$") if path.exists() else ():
            if name == "_timer":
                timers.append(module)
                assert [one.arg for one in node.args.args] == ["name", "timing_raw"]
    assert len(timers) == 1
    texts = "".join(path.read_text() for path in (root / "verl").rglob("*.py"))
    used = {found[1] for found in re.finditer(r"_timer\(\s*[\"']([\w]+)[\"']", texts)}
    assert {"step", "gen", "update_actor"} <= used
    if version_of(version) >= AGENTS_SINCE:
        assert {"generate_sequences", "tool_calls"} <= used
    if version_of(version) >= V1_SINCE:
        assert STATE_OF.keys() <= used


@pytest.mark.parametrize("version", [one for one in RELEASES if version_of(one) >= (0, 9)])
def test_states(version: str, release: Release) -> None:
    """verl 0.9 names the states of its ranks and engines by a context manager that is called in any case."""
    found = {name: node for _, name, node in functions(release(version), r"/verl/utils/tracking\.py$")}
    assert "state_name" in names_in(found["RLInsightLogger.trace_state"])


@pytest.mark.parametrize("version", [one for one in RELEASES if version_of(one) >= AGENTS_SINCE])
def test_samples(version: str, release: Release) -> None:
    """A sample is a call of `_run_agent_loop`, a tool one of `_call_tool`, with the locals that are read."""
    found: dict[str, set[str]] = {}
    for _, name, node in functions(release(version), "/agent_loop"):
        found.setdefault(name.rpartition(".")[2], set()).update(names_in(node))
    assert "trajectory" in found["_run_agent_loop"]
    assert {"self", "tool_call"} <= found["_call_tool"]
    if version_of(version) >= (0, 7, 1):
        assert STATE_IN.keys() <= found.keys()


@pytest.mark.parametrize("version", [one for one in RELEASES if version_of(one) >= V1_SINCE])
def test_replay_buffer(version: str, release: Release) -> None:
    """The trainer's replay buffer has the states of samples by partition, and a local with the partition's name."""
    found = {name: node for _, name, node in functions(release(version), r"/(replay_buffer|main_ppo_sync)\.py$")}
    assert "partition_id" in names_in(found["ReplayBuffer.sample"])
    attributes = {one.attr for one in ast.walk(found["ReplayBuffer.__init__"]) if isinstance(one, ast.Attribute)}
    expected = {"partitions"} if version_of(version) < (0, 9) else {"partitions", "running_keys", "pending_keys"}
    assert expected <= attributes


@pytest.mark.parametrize("version", RELEASES)
def test_rewards(version: str, release: Release) -> None:
    """The functions that call a reward function have its data source as a local, in the files that are looked for."""
    root = release(version)
    callers = [node for _, _, node in functions(root, REWARD_FILES.pattern) if "data_source" in names_in(node)]
    assert callers


@pytest.mark.parametrize("version", RELEASES)
def test_weight_sync(version: str, release: Release) -> None:
    """Each release has a function on the trainer's side of a weight sync, or one in a process that is both sides."""
    sides = {
        side
        for file, function, side in SYNC
        for _, name, _ in functions(release(version), file)
        if re.search(function, name)
    }
    assert sides & {"trainer", "both"}
    if version_of(version) >= (0, 7, 1):
        assert sides >= {"trainer", "rollout"}


@pytest.mark.parametrize("version", RELEASES)
def test_trainer(version: str, release: Release) -> None:
    """The trainer's process is in `run` of a module main_ppo."""
    assert any(name.endswith(".run") for _, name, _ in functions(release(version), "/trainer/main_ppo"))


@pytest.mark.parametrize("version", RELEASES)
def test_the_hook_on_the_timers(version: str, release: Release) -> None:
    """Each release's own timers run under the hook: each is a span in the ring, and verl measures it as before."""
    made = ModuleType("timers")
    exec("from contextlib import contextmanager\nfrom typing import Any, Dict, Optional", made.__dict__)
    made.__dict__["Timer"] = Timer
    found = []
    for module in SPANS_IN:
        path = release(version) / f"{module.replace('.', '/')}.py"
        for node in ast.parse(path.read_text()).body if path.exists() else ():
            if isinstance(node, ast.FunctionDef) and node.name in ("_timer", "simple_timer", "marked_timer"):
                exec(compile(ast.Module([node], []), str(path), "exec"), made.__dict__)
                found.append(node.name)
    assert "_timer" in found
    spans.watch(made)
    spans._forget()
    spans.keep_phases()
    timers = [name for name in found if name != "_timer"] or found
    try:
        for name in timers:
            raw: dict[str, float] = {}
            with getattr(made, name)("gen", raw):
                pass
            assert raw.keys() == {"gen"}
        assert [one["name"] for one in spans.spans_since({})["spans"]] == ["gen"] * len(timers)
    finally:
        spans._forget()
        spans.recorders.clear()
        spans.begun.clear()
