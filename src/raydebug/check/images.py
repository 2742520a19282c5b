"""The rules about images: rows, placeholders and the model's processor fit each other, and what rollouts see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.findings import Finding, finding
from raydebug.trainers.config import TrainingConfig

MAKE_ONE = "`raydebug tiny dataset DIR --images` makes one that is right, to compare with"
# Images stay out of view in a log: only the rollout's and the actor's probabilities differ.
UNSEEN = "rollouts do not see the images, without an error: training/rollout_actor_probs_pearson_corr is 0.87, not 0.99"


def judge_rows(config: TrainingConfig, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings about images in the data. Pure."""
    key, column = config.keys["image_column"], found["column"]
    if found["placeholders"] and not found["in_data"]:
        other = next(iter(found["others"]), None)
        yield finding(
            "data.image-column",
            placeholders=found["placeholders"],
            column=column,
            key=key,
            fix=f"{key}={other}" if other else f"add it: a list of {{bytes, path}} in each row; {MAKE_ONE}",
            overrides={key: other} if other else {},
        )
        return
    if found["images"] and found["vision"] is False:
        yield finding("data.image-model", column=column, key=key)
        return
    if "differs" in found:
        row = found["differs"]
        case = "few" if row["placeholders"] > row["images"] else "many"
        yield finding(f"data.image-count.{case}", row=row)
    if "broken" in found:
        image = found["broken"]
        yield finding("data.image-broken", image=image)


def judge_processor(facts: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about the processor of a model with a vision tower. Pure."""
    found, path = facts["processor"], facts["path"]
    if found.get("no_torchvision"):
        if fitting := found.get("fitting"):
            yield finding("model.torchvision.known", fitting=fitting)
        else:
            yield finding("model.torchvision.unknown")
    elif "failed" in found:
        said = found["failed"]
        files = ", ".join(found["files"]) or "none"
        yield finding(
            "model.processor.broken",
            path=path,
            type=said["type"],
            reason=said["message"].partition(chr(10))[0],
            files=files,
        )
    elif not found.get("template") and "skipped" not in found:
        yield finding("model.processor.template")
    if found.get("loses_normalization"):
        yield finding("model.load-format", keys=keys, overrides={keys["load_format"]: "safetensors"})
    if found.get("breaks_equal_lengths"):
        is_alone = found["sequences"] == 1
        yield finding(
            "model.equal-lengths",
            severity="error" if is_alone else "warning",
            verl=found["verl"],
            more=", and one sequence is such a batch" if is_alone else "",
            variables={"RAYDEBUG_PATCHES": "position-ids-of-equal-lengths"},
        )
