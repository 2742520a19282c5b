"""`python -m bench.tripwires`: what tripwires cost each training step.

`--stop-when`: a trainer's call that logs the 90 metrics of a step, with four conditions, less the same call without.
`--stop-on nonfinite` (flavour cpu): a step of the tiny model, forward, backward and AdamW, with the checks of every
module and without, on one thread; programs with and without take turns, and of each the quickest step counts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import measuring
from bench.doors import Side
from bench.figures import RAYDEBUG, STOCK, Samples

TRACKING = """\
class Tracking:
    def log(self, data, step, backend=None):
        pass
"""
LOGS = """\
import time
from bench_trainer import Tracking

metrics = {f"timing_s/{number}": 0.5 + number for number in range(90)}
metrics |= {"actor/grad_norm": 0.5, "actor/pg_loss": 0.1, "critic/rewards/mean": 0.2}
tracking, spans = Tracking(), []
for step in range(1, 2001):
    start = time.perf_counter()
    tracking.log(data=metrics, step=step)
    spans.append(time.perf_counter() - start)
print(sorted(spans)[len(spans) // 2] * 1000)
"""
CONDITIONS = (
    *("actor/grad_norm > 100", "nan(actor/pg_loss) or inf(actor/pg_loss)"),
    *("critic/rewards/mean == 0 for 5 steps", "memory > 0.999"),
)
MODEL = """\
import sys
from pathlib import Path
from raydebug.tiny.model import build_model

build_model(Path(sys.argv[1]))
print(0)
"""
STEPS = """\
import sys, time, torch
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
tokens, spans = torch.randint(0, 256, (8, 80)), []
for _ in range(60):
    start = time.perf_counter()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    spans.append(time.perf_counter() - start)
print(min(spans) * 1000)  # anything else on the machine only adds
"""


async def measure(_sides: list[Side], repetitions: int) -> Samples:
    """Measure a step's metrics, and a step of the tiny model where torch is installed."""
    samples = measuring.Collected()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bench_trainer.py").write_text(TRACKING, encoding="utf-8")
        conditions = {
            "RAYDEBUG_STOP_WHEN": json.dumps(CONDITIONS),
            "RAYDEBUG_STEP_LOGGERS": "bench_trainer:Tracking.log(step,data)",
        }
        has_torch = importlib.util.find_spec("torch") is not None
        if has_torch:
            _run_ms(MODEL, folder, {})
        for _ in range(repetitions):
            samples.add("stop_when", RAYDEBUG, _run_ms(LOGS, folder, conditions) - _run_ms(LOGS, folder, {}))
            if has_torch:
                with_checks = _run_ms(STEPS, folder, {"RAYDEBUG_STOP_ON": "nonfinite"})
                without = _run_ms(STEPS, folder, {})
                samples.add("nonfinite_step", RAYDEBUG, with_checks)
                samples.add("nonfinite_step", STOCK, without)
                samples.add("nonfinite_ratio", RAYDEBUG, with_checks / without)
    return samples.samples


def _run_ms(program: str, folder: Path, tripwires: dict[str, str]) -> float:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    environment |= {"RAYDEBUG_GATEWAY": "127.0.0.1:9", **tripwires}  # only dialled at a pause
    done = subprocess.run(
        [sys.executable, "-c", program, "model"],
        env=environment,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    measuring.run_alone(measure, needs_heads=False)
