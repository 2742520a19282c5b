"""The rules about images: rows, placeholders and the model's processor fit each other, and what rollouts see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.findings import Finding, error, warning
from raydebug.trainers.config import TrainingConfig

MAKE_ONE = "`raydebug tiny dataset DIR --images` makes one that is right, to compare with"
# Images stay out of view in a log: only the rollout's and the actor's probabilities differ.
UNSEEN = "rollouts do not see the images, without an error: training/rollout_actor_probs_pearson_corr is 0.87, not 0.99"


def judge_rows(config: TrainingConfig, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings about images in the data. Pure."""
    key, column = config.keys["image_column"], found["column"]
    if found["placeholders"] and not found["in_data"]:
        other = next(iter(found["others"]), None)
        yield error(
            "data.image-column",
            f"{found['placeholders']} prompts name an image, and there is no column '{column}'",
            why=f"{key} names it; verl leaves the text '<image>' in the prompt, and the model sees no image",
            fix=f"{key}={other}" if other else f"add it: a list of {{bytes, path}} in each row; {MAKE_ONE}",
            overrides={key: other} if other else {},
        )
        return
    if found["images"] and found["vision"] is False:
        yield error(
            "data.image-model",
            f"the data has images in '{column}', and the model takes none",
            why="its config.json has no vision_config; verl ends with 'processor is needed to process multimodal data'",
            fix=f"a vision-language model, or {key}=NONE and prompts without '<image>'",
        )
        return
    if "differs" in found:
        row = found["differs"]
        more = row["placeholders"] > row["images"]
        yield error(
            "data.image-count",
            f"row {row['row']} has {row['placeholders']} '<image>' in its prompt and {row['images']} images",
            why="verl ends with 'image_offset ... >= len(images)'" if more
            else "verl leaves out what no '<image>' names: the model does not see it",
            fix="write as many '<image>' into the prompt as the row has images",
        )  # fmt: skip
    if "broken" in found:
        image = found["broken"]
        yield error(
            "data.image-broken",
            f"image {image['image']} of row {image['row']} cannot be decoded",
            why=f"{image['said']}; a worker ends with it when the row's turn comes",
            fix="write that file again, or leave the row out",
        )


def judge_processor(facts: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about the processor of a model with a vision tower. Pure."""
    found, path = facts["processor"], facts["path"]
    if found.get("no_torchvision"):
        yield error(
            "model.torchvision",
            "torchvision is not installed, and the processor of this model needs it",
            why="verl goes on without a processor and ends with 'processor is needed to process multimodal data'; "
            "vLLM says that the architecture 'failed to be inspected'",
            fix=f"pip install 'torchvision=={found['fitting']}' in the cluster's environment"
            if found.get("fitting") else "install the torchvision of the same release as torch",
        )  # fmt: skip
    elif "failed" in found:
        said = found["failed"]
        files = ", ".join(found["files"]) or "none"
        yield error(
            "model.processor",
            f"{path} has a vision tower, and its processor cannot be loaded",
            why=f"{said['type']}: {said['message'].partition(chr(10))[0][:200]} (its processor files: {files}); verl "
            "goes on without one and ends with 'processor is needed to process multimodal data'",
            fix="copy preprocessor_config.json (processor_config.json) and chat_template of the model again",
        )
    elif not found.get("template") and "skipped" not in found:
        yield error(
            "model.processor",
            "the chat template leaves out the image of a message",
            why="a rendered message with an image has no place for it: fewer image tokens than images",
            fix="the chat_template of the vision model; that of a text model takes no images",
        )
    if found.get("loses_normalization"):
        yield error(
            "model.load-format",
            f"{keys['load_format']}=dummy, and this vLLM then loses the normalization of images",
            why=f"{UNSEEN}. It fills the buffers of the normalization with random values (vLLM PR 50411), and the "
            "trainer sends parameters only",
            fix=f"{keys['load_format']}=safetensors, or RAYDEBUG_PATCHES=image-normalization-kept in the environment",
            overrides={keys["load_format"]: "safetensors"},
        )
    if found.get("breaks_equal_lengths"):
        alone = found["sequences"] == 1
        report = error if alone else warning
        yield report(
            "model.equal-lengths",
            f"verl {found['verl']} fails where the sequences of a rank's batch are all equally long"
            + (", and one sequence is such a batch" if alone else ""),
            why="RuntimeError: split_with_sizes expects split_sizes to sum exactly (verl issue 7899): the position ids "
            "of images are split along the wrong dimension. Short responses that are all cut have equal lengths",
            fix="RAYDEBUG_PATCHES=position-ids-of-equal-lengths in the environment of the command, or a later verl",
            variables={"RAYDEBUG_PATCHES": "position-ids-of-equal-lengths"},
        )
