"""`run --stop-when`: the language of its conditions, their evaluation at each step, the pause in a trainer's frame."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any

import pytest

from gateway_under_test import open_gateway, visit
from paused_programs import PausedProgram
from raydebug.client.gateway_client import name_reason
from raydebug.commands.trainings import read_command
from raydebug.console.view import heading
from raydebug.errors import RaydebugError
from raydebug.jobs.stop_options import tripwire_variables
from raydebug.protocol import variables
from raydebug.protocol.tripwires import EXPECTED, MAX_CHARACTERS, BadCondition, history_lines, parse
from raydebug.render import Paint
from raydebug.worker import import_hooks, memory_in_use, tripwires
from raydebug.worker.tripwires import Tripwires

NAN = math.nan
JOINED = f"{EXPECTED}, joined by `and` and `or`"


def trips(text: str, *values: object, name: str = "a") -> list[int]:
    """Give a condition the values of a metric step by step, and return the steps that trip it."""
    wires = Tripwires([parse(text)])
    return [step for step, value in enumerate(values, 1) if wires.take(step, {name: value}) is not None]


@pytest.mark.parametrize(
    ("text", "holds", "does_not"),
    [
        ("a > 100", [100.5], [100, NAN]),
        ("a >= -1e-3", [-0.001, 0], [-1]),
        ("a < .5", [0.4], [0.5]),
        ("a == 0", [0, -0.0], [1, NAN]),
        ("a != 0", [1, NAN], [0]),
        ("nan(a)", [NAN], [math.inf, 3]),
        ("inf(a)", [math.inf, -math.inf], [NAN, 3]),
        ("a > 1 and a < 3 or a == 7", [2, 7], [1, 3]),
        ("a > 1 and (a < 3 or a == 7)", [2, 7], [0]),
        ("nan(a)or inf(a)", [NAN, math.inf], [0]),
        (" or ".join(["(a > 1)"] * 30), [2], [1]),
        (" a\n> 1 ", [2], [1]),
    ],
)
def test_tests(text: str, holds: list[float], does_not: list[float]) -> None:
    """Each operator and function works as in Python; no comparison but != holds for NaN."""
    condition = parse(text)
    assert (condition.names, condition.steps) == (("a",), 1)
    assert all(condition.holds({"a": value}) for value in holds)
    assert not any(condition.holds({"a": value}) for value in does_not)


@pytest.mark.parametrize(
    "name", ["critic/rewards/mean", "val-core/gsm8k/acc/mean@1", "'train/total_tokens(B)'", '"a b"', "_x.y"]
)
def test_names(name: str) -> None:
    """The metric names of verl and OpenRLHF need no quotes, others do."""
    assert parse(f"{name} > 0").names == (name.strip("'\""),)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", f"it is no condition at its end; {JOINED}"),
        ("actor/grad_norm", f"{EXPECTED}; found 'actor/grad_norm'"),
        ("actor/grad_norm >", f"it is no condition at its end; {JOINED}"),
        ("100 < a", f"{EXPECTED}; found '100 < a'"),
        ("1 < a < 3", f"{EXPECTED}; found '1 < a < 3'"),
        ("not (a > 3)", f"{EXPECTED}; found 'not (a > 3)'"),
        ("a > b", "expected a number; found 'b'"),
        ("a > nan", "expected a number; write nan(METRIC); found 'nan'"),
        ("a > 'text'", "expected a number; found \"'text'\""),
        ("a = 3", f"it is no condition at character 3; {JOINED}"),
        ("a > 3 && b > 3", f"it is no condition at character 8; {JOINED}"),
        ("memory > 95%", f"it is no condition at its end; {JOINED}"),
        ("a > 3 4", f"it is no condition at character 7; {JOINED}"),
        ("(a > 3", f"it is no condition at character 1; {JOINED}"),
        ("nan(3)", f"{EXPECTED}; found 'nan(3)'"),
        ("a > 3 for 0 steps", "expected a whole number from 1 on after `for`; found '0'"),
        ("a > 3 for 00 steps", "expected a whole number from 1 on after `for`; found '00'"),
        ("a > 3 for 5", f"it is no condition at character 7; {JOINED}"),
        ("a\x00", f"it is no condition with this character; {JOINED}"),
        ("__import__('os')", f"{EXPECTED}; found \"__import__('os')\""),
        ("os.system('rm') == 0", f"{EXPECTED}; found \"os.system('rm') == 0\""),
        ("[x for x in y]", f"it is no condition at character 4; {JOINED}"),
        ("(" * 200 + "a > 3", f"it is no condition at character 200; {JOINED}"),
        ("a" * 501, f"it has 501 characters; {MAX_CHARACTERS} are the limit"),
    ],
)  # fmt: skip
def test_bad_conditions(text: str, cause: str, tmp_path: Path) -> None:
    """A condition with a syntax error, or with code in it, is refused with the reason."""
    with pytest.raises(BadCondition) as refused:
        parse(text)
    assert str(refused.value) == cause
    with pytest.raises(RaydebugError) as shown:
        variables_of([text], tmp_path)
    assert (shown.value.what, shown.value.cause) == (f"--stop-when {text!r} cannot be read", cause)
    assert (shown.value.code, shown.value.exit_code) == ("run.tripwire", 2)


# Evaluation, step by step


@pytest.mark.parametrize(
    ("text", "values", "steps"),
    [
        ("a > 1", [0, 2, 2, 0, 2], [2, 5]),
        ("a == 0 for 3 steps", [0, 0, 1, 0, 0, 0, 0, 1, 0], [6]),
        ("a > 1 for 1 step", [2], [1]),
        ("nan(a)", ["text", None, [1, 2], NAN], [4]),
    ],
)
def test_when_it_trips(text: str, values: list[object], steps: list[int]) -> None:
    """A condition trips when it begins to hold, `for N steps` at the N-th step in a row, and again after a gap."""
    assert trips(text, *values) == steps


def test_steps_without_the_metric_do_not_count() -> None:
    """A metric that only some steps have, such as one of a validation, is evaluated in those steps."""
    wires = Tripwires([parse("val/loss > 1 for 2 steps"), parse("a > 1")])
    steps = [{"a": 0}, {"a": 0, "val/loss": 2}, {"a": 0}, {"a": 0, "val/loss": 2}]
    assert [wires.take(number, metrics) is not None for number, metrics in enumerate(steps, 1)] == [0, 0, 0, 1]


def test_history(capsys: pytest.CaptureFixture[str]) -> None:
    """A pause has the conditions that tripped, the values, and the last 20 values of each of their metrics."""
    wires = Tripwires([parse("a > 40"), parse("nan(b)"), parse("c > 1")])
    for step in range(1, 41):
        assert wires.take(step, {"a": step, "b": step / 3, "c": 0}) is None
    found = wires.take(41, {"a": 41, "b": NAN, "c": 0})
    assert found is not None
    assert (found[0], found[1]["text"]) == ("a > 40; nan(b)", "a is 41, b is nan at step 41")
    assert [(len(one["steps"]), one["steps"][-1]) for one in found[1]["history"]] == [(20, 41), (20, 41)]
    assert history_lines(found[1])[1].startswith("b of steps 22-41: 7.33333, 7.66667, 8, ")
    assert history_lines(found[1])[1].endswith(", 13.3333, nan")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("steps", "line"), [([1], "a of step 1: 0"), ([5, 10], "a of step 5, 10: 0, 0"), ([2, 3], "a of steps 2-3: 0, 0")]
)
def test_history_lines(steps: list[int], line: str) -> None:
    """The steps of a history are listed in short form."""
    history = {"metric": "a", "steps": steps, "values": ["0"] * len(steps)}
    assert history_lines({"history": [history]}) == [line]  # type: ignore[list-item]
    assert history_lines(None) == []


def test_the_debugger_shows_it() -> None:
    """The prompt shows condition, values and history above the place, with control characters escaped."""
    history = [{"metric": "a\x1b", "steps": [1, 2], "values": ["1", "nan"]}]
    pause = {"kind": "tripwire", "where": "nan(a)", "tripwire": {"text": "a is nan at step 2", "history": history}}
    shown = heading(pause, function="Trainer.fit", place="train.py:9", paint=Paint(False)).splitlines()
    assert shown == [
        "tripwire in Trainer.fit", "  nan(a): a is nan at step 2", r"  a\x1b of steps 1-2: 1, nan", "  train.py:9"
    ]  # fmt: skip
    assert name_reason(pause) == "nan(a): a is nan at step 2"  # type: ignore[arg-type]


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`memory` is the fraction in use of the host, the container or a GPU."""
    assert 0 < memory_in_use.memory_in_use() < 1
    monkeypatch.setattr(tripwires, "memory_in_use", lambda: 0.96)
    found = Tripwires([parse("memory > 0.95")]).take(3, {})
    assert found is not None
    assert found[1]["text"] == "memory is 0.96 at step 3"


def test_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache of a container does not count, and a container without a limit has the fraction 0."""
    monkeypatch.setattr(memory_in_use, "CGROUP", str(tmp_path))
    assert memory_in_use._container() == 0.0
    for name, text in (("max", "1000\n"), ("current", "900\n"), ("stat", "anon 500\ninactive_file 300\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory_in_use._container() == 0.6
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_in_use._container() == 0.0


def test_unknown_metric(capsys: pytest.CaptureFixture[str]) -> None:
    """At the first training step, not at a validation before it, the log lists the metrics, similar ones first."""
    wires = Tripwires([parse("nan(actor/gradnorm)")])
    for step, metrics in ((0, {"val/loss": 1}), (1, {"val/loss": 1}), (1, {"timing_s/step": 3, "actor/grad_norm": 1})):
        assert wires.take(step, metrics) is None
    said = capsys.readouterr().err
    assert said == (
        "raydebug: --stop-when 'nan(actor/gradnorm)': step 1 has no metric 'actor/gradnorm', so it trips only if a "
        "later step has one; its metrics, the most similar first: actor/grad_norm, timing_s/step, memory\n"
    )
    wires.take(2, {"actor/grad_norm": 1})
    assert capsys.readouterr().err == "", "said once"


# Before the job starts

VERL = ["python", "-m", "verl.trainer.main_ppo", "x=1"]


def variables_of(stop_when: list[str], folder: Path, command: list[str] = VERL, **options: Any) -> tuple[Any, Any]:
    given = {"stop_on": None, "mode": "breakpoint", **options}
    return tripwire_variables(stop_when, reading=read_command(command, {}, folder), **given)


def test_variables(tmp_path: Path) -> None:
    """The job gets the conditions, and the place where the trainer of its command or script logs metrics."""
    assert variables_of([], tmp_path) == ({}, [])
    assert variables_of([], tmp_path, ["python", "x.py"], stop_on="nonfinite")[0] == {variables.STOP_ON: "nonfinite"}
    found, notes = variables_of(["nan(actor/pg_loss)", "memory > 1"], tmp_path)
    logger = "verl.utils.tracking:Tracking.log(step,data)"
    assert found == {
        variables.STOP_WHEN: '["nan(actor/pg_loss)", "memory > 1"]', variables.STEP_LOGGERS: logger,
    }  # fmt: skip
    assert notes == []
    (tmp_path / "train.sh").write_text("python3 -m verl_arpo.trainer.main_ppo data.x=1\n")
    found, _ = variables_of(["a > 1"], tmp_path, ["bash", "train.sh"])
    assert found[variables.STEP_LOGGERS] == f"verl_arpo.utils.tracking:Tracking.log(step,data) {logger}"
    found, _ = variables_of(["reward > 1"], tmp_path, ["python", "-m", "openrlhf.cli.train_ppo_ray"])
    assert found[variables.STEP_LOGGERS].startswith("openrlhf.trainer.ppo_trainer:BasePPOTrainer.save_logs")


def test_a_misspelt_metric_is_noted_at_once(tmp_path: Path) -> None:
    """A metric that looks misspelt gets a note before the job starts, others get none."""
    texts = ["nan(actor/gradnorm) or grad_norm > 3", "critic/rewards/max > 1 and my/own > 3", "timing_s/adv > 3"]
    assert variables_of(texts, tmp_path)[1] == [
        "note: metric 'actor/gradnorm' is unknown; similar: actor/grad_norm; step 1 logs all names",
        "note: metric 'grad_norm' is unknown; similar: actor/grad_norm; step 1 logs all names",
    ]


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (["python", "train.py"], "python train.py runs none; metrics are read from verl.trainer.NAME"),
        (["python", "-m", "verl.trainer.main_generation"], "python -m verl.trainer.main_generation runs none; metr"),
        (["bash", "x.sh"], "x.sh:1: "),
    ],
    ids=["own", "no training", "unreadable script"],
)
def test_no_training(command: list[str], cause: str, tmp_path: Path) -> None:
    """A command without a known trainer is refused, with the reason."""
    (tmp_path / "x.sh").write_text("echo 'open\n")
    with pytest.raises(RaydebugError) as refused:
        variables_of(["a > 1"], tmp_path, command)
    assert refused.value.what == "--stop-when needs a training that raydebug knows"
    assert cause in refused.value.cause
    assert refused.value.fix.endswith("in other programs: --break 'train.py:120,if=loss > 100'")


@pytest.mark.parametrize("mode", ["off", "legacy", "legacy-post-mortem"])
def test_modes_that_pause_nothing(mode: str, tmp_path: Path) -> None:
    """In a debugger mode without pauses at the gateway, a tripwire is refused."""
    for options, word in (((["a > 1"], None), "--stop-when"), (([], "nonfinite"), "--stop-on")):
        with pytest.raises(RaydebugError) as refused:
            variables_of(options[0], tmp_path, stop_on=options[1], mode=mode)
        assert refused.value.what == f"{word} cannot stop with the debugger '{mode}'"


def test_stop_on_something_else(tmp_path: Path) -> None:
    """--stop-on accepts only `nonfinite`."""
    with pytest.raises(RaydebugError, match="--stop-on zero is unknown"):
        variables_of([], tmp_path, stop_on="zero")


# In the trainer's process

TRACKING = """class Tracking:
    def log(self, data, step, backend=None):
        print(f"step:{step}", flush=True)
        return "logged"
"""
TRAINER = """import sys
from raydebug_test_trainer.tracking import Tracking

class Trainer:
    def fit(self):
        tracking = Tracking()
        for self.global_steps in range(1, 5):
            metrics = {"actor/pg_loss": 1.0 if self.global_steps < 3 else float("nan"), "note": "text"}
            said = tracking.log(data=metrics, step=self.global_steps)
        print(said, flush=True)

Trainer().fit()
"""
NOT_HERE = "raydebug: --stop-when does not work with this trainer: raydebug_test_trainer.tracking has no"
PLACE = "raydebug_test_trainer.tracking:Tracking.log(step,data)"


def start_trainer(gateway: Any, folder: Path, **environ: str) -> PausedProgram:
    package = folder / "raydebug_test_trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tracking.py").write_text(TRACKING)
    return PausedProgram(gateway, folder, TRAINER, **{variables.STEP_LOGGERS: PLACE, **environ})


def test_a_trainer_stops_in_its_own_frame(tmp_path: Path) -> None:
    """The trainer pauses where it logs the step, with condition and history; when resumed, it continues."""
    with open_gateway(tmp_path) as gateway:
        program = start_trainer(gateway, tmp_path, **{variables.STOP_WHEN: '["nan(actor/pg_loss)"]'})
        try:
            pause = program.pause
            assert (pause["kind"], pause["function"], pause["line"]) == ("tripwire", "Trainer.fit", 9)
            assert (pause["where"], pause["step"], pause["exception"]) == ("nan(actor/pg_loss)", 3, None)
            assert pause["tripwire"] == {
                "text": "actor/pg_loss is nan at step 3",
                "history": [{"metric": "actor/pg_loss", "steps": [1, 2, 3], "values": ["1", "1", "nan"]}],
            }
            assert program.said == "step:1\nstep:2\nstep:3\n", "the step is logged before the pause"

            async def release() -> None:
                session, stopped = await gateway.attach(pause["id"])
                await session.request("continue", {"threadId": stopped["threadId"]})

            visit(gateway, release)
            assert program.process.wait(20) == 0, program.complained
            assert program.said.endswith("step:4\nlogged\n")
            assert "paused (nan(actor/pg_loss): actor/pg_loss is nan at step 3)" in program.complained
        finally:
            program.close()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({variables.STOP_WHEN: '["nan(actor/pg_loss)"]', variables.RAY_DEBUG: "0"}, ""),
        ({variables.STOP_WHEN: '["nan(actor/pg_loss)"]', variables.STEP_LOGGERS: PLACE.replace("log(", "nolog(")},
         f"{NOT_HERE} Tracking.nolog(step,data)\n"),
        ({variables.STOP_WHEN: "no json"}, "raydebug: no tripwires in this process: JSONDecodeError: "),
        ({variables.STOP_WHEN: '["a > 1"]', variables.STEP_LOGGERS: PLACE.replace("data", "metrics")},
         f"{NOT_HERE} Tracking.log(step,metrics)\n"),
        ({variables.STOP_WHEN: '["a > 1"]', variables.STEP_LOGGERS: PLACE.replace("step,data", "data,step")},
         "raydebug: --stop-when is turned off: TypeError: int() argument must be "),
    ],
    ids=["debugger off", "another trainer", "bad variable", "other parameters", "no step"],
)  # fmt: skip
def test_the_training_goes_on(environ: dict[str, str], said: str, tmp_path: Path) -> None:
    """If a tripwire cannot work, the trainer runs to its end, and its log says why, once."""
    with open_gateway(tmp_path) as gateway:
        program = start_trainer(gateway, tmp_path, **environ)
        try:
            assert program.process.wait(20) == 0, program.complained
            assert program.said.endswith("step:4\nlogged\n")
            assert program.complained.startswith(said)
            assert len(program.complained.splitlines()) == bool(said)
        finally:
            program.close()


def test_a_process_to_fork_from_has_the_module_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the trainer was imported before a fork, the module is hooked after the fork."""
    module = types.ModuleType("sys_tracking")
    module.Tracking = type("Tracking", (), {"log": lambda self, data, step: None})  # type: ignore[attr-defined]
    monkeypatch.setitem(import_hooks.sys.modules, "sys_tracking", module)
    monkeypatch.setenv(variables.STEP_LOGGERS, "sys_tracking:Tracking.log(step,data)")
    monkeypatch.setenv(variables.STOP_WHEN, '["a > 1"]')
    monkeypatch.setattr(import_hooks, "_ON_LOAD", {})
    import_hooks.catch_up()
    assert hasattr(module.Tracking.log, "__wrapped__")  # type: ignore[attr-defined]
