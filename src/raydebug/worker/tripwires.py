"""`run --stop-when`: pause the trainer's process at the end of the step whose metrics trip a condition."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from raydebug import worker
from raydebug.protocol import variables
from raydebug.protocol.records import TripwireRecord
from raydebug.protocol.tripwires import MEMORY, Condition, parse
from raydebug.worker import pause
from raydebug.worker.memory_in_use import memory_in_use

HISTORY_STEPS = 20  # of each metric, in the record of a pause
VALIDATION = "val"  # verl 0.9.1 logs the metrics of a validation by themselves: val-core/..., val-aux/..., val/loss


class Tripwires:
    """The conditions of this job, with the history of their metrics in this process."""

    def __init__(self, conditions: list[Condition]) -> None:
        self._held = dict.fromkeys(conditions, 0)  # for how many steps in a row
        self._history = {name: deque[tuple[int, float]](maxlen=HISTORY_STEPS) for c in conditions for name in c.names}
        self._said = False

    def take(self, step: int, metrics: Mapping[str, Any]) -> tuple[str, TripwireRecord] | None:
        """Return the conditions that trip with this step's metrics, and the record for the pause; None if none trips.

        A condition trips when it begins to hold, and again only after a step in which it did not hold.
        """
        values = {name: value for name in self._history if (value := _value(name, metrics)) is not None}
        if not self._said and step > 0 and not all(name.startswith(VALIDATION) for name in metrics):
            self._said = True
            self._say_unknown(step, metrics, values)
        for name, value in values.items():
            self._history[name].append((step, value))
        tripped = [condition for condition in self._held if self._trips(condition, values)]
        if not tripped:
            return None
        names = dict.fromkeys(name for condition in tripped for name in condition.names)
        now = ", ".join(f"{name} is {_text(values[name])}" for name in names)
        record: TripwireRecord = {"text": f"{now} at step {step}", "history": []}
        for name in names:
            steps, past = zip(*self._history[name], strict=True)
            record["history"].append({"metric": name, "steps": [*steps], "values": [_text(value) for value in past]})
        return "; ".join(condition.text for condition in tripped), record

    def _trips(self, condition: Condition, values: Mapping[str, float]) -> bool:
        if not all(name in values for name in condition.names):
            return False
        self._held[condition] = self._held[condition] + 1 if condition.holds(values) else 0
        return self._held[condition] == condition.steps

    def _say_unknown(self, step: int, metrics: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Log the metrics that a condition lacks, and those that the step has, the most similar ones first."""
        import difflib

        for condition in self._held:
            for name in condition.names:
                if name not in values:
                    near = difflib.get_close_matches(name, metrics, n=5, cutoff=0.5)
                    listed = ", ".join((*near, *sorted(metrics.keys() - near), MEMORY))
                    worker.log(
                        f"--stop-when '{condition.text}': step {step} has no metric '{name}', so it trips only if a "
                        f"later step has one; its metrics, the most similar first: {listed}"
                    )


def _value(name: str, metrics: Mapping[str, Any]) -> float | None:
    """Return a metric as a number; None if it is missing or no number."""
    try:
        return memory_in_use() if name == MEMORY and name not in metrics else float(metrics[name])
    except Exception:  # noqa: BLE001 - a text or a table among the metrics, or an array
        return None


def _text(value: float) -> str:
    return f"{value:.6g}"


# The end of a step


def watch(module: ModuleType, function: str) -> None:
    """Evaluate the conditions whenever the trainer logs the metrics of a step, and pause in its frame if one trips.

    The function that logs them has the names of its parameters for the step and the metrics: `Tracking.log(step,data)`.
    """
    name, _, parameters = function.rstrip(")").partition("(")
    class_name, _, method = name.partition(".")
    owner = getattr(module, class_name, None)
    original = getattr(owner, method, None)
    step_name, metrics_name = parameters.split(",")
    if original is None or not {step_name, metrics_name} <= inspect.signature(original).parameters.keys():
        worker.log(f"--stop-when does not work with this trainer: {module.__name__} has no {function}")
        return
    setattr(owner, method, _watched(original, step_name, metrics_name))


def _watched(original: Callable[..., Any], step_name: str, metrics_name: str) -> Callable[..., Any]:
    signature = inspect.signature(original)
    tripwires: Tripwires | None = Tripwires([parse(text) for text in json.loads(os.environ[variables.STOP_WHEN])])

    @functools.wraps(original)
    def log_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal tripwires
        result = original(*args, **kwargs)  # the log shows the step before the pause
        tripped = None
        try:
            if tripwires is not None:
                given = signature.bind(*args, **kwargs).arguments
                tripped = tripwires.take(int(given[step_name]), given[metrics_name])
        except Exception as error:  # noqa: BLE001 - a failure of the debugger must not harm the job
            worker.log(f"--stop-when is turned off: {type(error).__name__}: {error}")
            tripwires = None
        if tripped is not None and worker.debugger_is_ours():
            pause.pause_at(sys._getframe(1), kind="tripwire", where=tripped[0], tripwire=tripped[1])
        return result

    return log_step
