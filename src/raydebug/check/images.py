"""The rules about images: rows, placeholders and the model's processor fit each other, and what rollouts see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.findings import Finding, finding
from raydebug.trainers.config import TrainingConfig


def judge_rows(config: TrainingConfig, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings about images in the data. Pure."""
    key, column = config.keys["image_column"], found["column"]
    if found["placeholders"] and not found["in_data"]:
        other = next(iter(found["others"]), None)
        overrides = {key: other} if other else {}
        count, case = found["placeholders"], "other" if other else "none"
        yield finding(f"data.image-column.{case}", placeholders=count, column=column, key=key, overrides=overrides)
        return
    if found["images"] and found["vision"] is False:
        yield finding("data.image-model", column=column, key=key)
        return
    if "differs" in found:
        row = found["differs"]
        case = "few" if row["placeholders"] > row["images"] else "many"
        yield finding(f"data.image-count.{case}", row=row)
    if "broken" in found:
        yield finding("data.image-broken", image=found["broken"])


def judge_processor(facts: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about the processor of a model with a vision tower. Pure."""
    found, path = facts["processor"], facts["path"]
    if found.get("no_torchvision"):
        if fitting := found.get("fitting"):
            yield finding("model.torchvision.known", fitting=fitting)
        else:
            yield finding("model.torchvision.unknown")
    elif "failed" in found:
        failed = found["failed"]
        reason = failed["message"].partition("\n")[0]
        yield finding("model.processor.broken", path=path, failed=failed, reason=reason, files=found["files"])
    elif not found.get("template") and "skipped" not in found:
        yield finding("model.processor.template")
    if found.get("loses_normalization"):
        yield finding("model.load-format", keys=keys, overrides={keys["load_format"]: "safetensors"})
    if found.get("breaks_equal_lengths"):
        case, repair = "one" if found["sequences"] == 1 else "some", "position-ids-of-equal-lengths"
        yield finding(f"model.equal-lengths.{case}", verl=found["verl"], variables={"RAYDEBUG_PATCHES": repair})
