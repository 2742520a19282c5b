"""Start vLLM with a command's settings and let it generate one token, phase by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from raydebug.check.probes import Facts, doing
from raydebug.check.probes.images import has_vision
from raydebug.check.probes.plan import compose, read_by
from raydebug.findings import describe_exception

PROMPT = "What is 1 plus 2?"
IMAGE_PX = 112


def gather(request: Facts) -> Facts:
    """Return the seconds of each phase and the token, or the phase that failed and its first cause."""
    plan = compose(request)
    config = plan.config
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    facts: Facts = {**plan.as_facts(), "phases": {}}
    assert plan.rules is not None  # the stage is not run
    if not plan.has("the start of the rollout engine", "vllm"):
        return facts
    try:
        _start(plan.rules.engine_options(config), facts, vision=bool(has_vision(config)))
    except BaseException as failure:  # noqa: BLE001 - argument errors of vLLM end the program
        facts["failed"] = describe_exception(failure)
    facts["read"] = read_by(request, config.get("model"))
    return facts


def _start(options: Facts, facts: Facts, *, vision: bool) -> None:
    with _phase(facts, "import"):
        import vllm
        from vllm.engine.arg_utils import EngineArgs
    with _phase(facts, "settings"):
        arguments = EngineArgs(**options)
        arguments.create_engine_config()
    with _phase(facts, "engine"):
        engine = vllm.LLM(**options)
    with _phase(facts, "token"):
        sampling = vllm.SamplingParams(max_tokens=1, temperature=0.0)
        answer = engine.generate([_with_image(str(options["model"])) if vision else PROMPT], sampling, use_tqdm=False)[
            0
        ]
        facts["token"] = answer.outputs[0].text
        facts["tokens"] = len(answer.outputs[0].token_ids)


def _with_image(model: str) -> Facts:
    """Return a prompt with one image, as vLLM takes it."""
    from PIL import Image
    from transformers import AutoProcessor

    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": PROMPT}]}]
    text = AutoProcessor.from_pretrained(model).apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return {"prompt": text, "multi_modal_data": {"image": Image.new("RGB", (IMAGE_PX, IMAGE_PX), "white")}}


@contextmanager
def _phase(facts: Facts, name: str) -> Iterator[None]:
    facts["phase"] = name
    started = time.monotonic()
    try:
        with doing(f"phase '{name}'"):
            yield
    finally:
        facts["phases"][name] = round(time.monotonic() - started, 2)
