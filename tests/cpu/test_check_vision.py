"""Broken set-ups of a model that takes images: the right stage names each with its cause, and the fix makes it pass."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from checked import Broken, Setup, prove, set_up
from raydebug.check.stages import FAILED, PASSED, choose_stages, run_stages
from raydebug.check.target import Target
from raydebug.cluster.runner import LocalRunner
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model

pytestmark = pytest.mark.timeout(600)  # each asks two processes that import torch; machines are shared

# Python's own hook at its start: what an environment without the package says.
WITHOUT_TORCHVISION = """\
import sys
from importlib.machinery import PathFinder


class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torchvision" else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny vision model and its data, built once."""
    folder = tmp_path_factory.mktemp("tiny")
    build_model(folder / "model", vision=True)
    build_dataset(folder / "data", images=True)
    return folder


@pytest.fixture
def setup(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    """A set-up that passes."""
    with set_up(tiny, tmp_path, monkeypatch, **{"data.max_prompt_length": "96"}) as made:
        yield made


def rewrite(setup: Setup, change: Callable[[dict[str, object]], object]) -> None:
    """Write both data files anew with each row changed."""
    import pyarrow
    from pyarrow import parquet

    for name in ("train", "test"):
        file = setup.folder / "data" / f"{name}.parquet"
        rows = parquet.read_table(file).to_pylist()
        for row in rows:
            change(row)
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def fresh_data(setup: Setup) -> None:
    """Make the data again."""
    shutil.rmtree(setup.folder / "data")
    build_dataset(setup.folder / "data", images=True)


def fresh_model(setup: Setup) -> None:
    """Make the model again."""
    shutil.rmtree(setup.folder / "model")
    build_model(setup.folder / "model", vision=True)


def text_model(setup: Setup) -> None:
    """Put a model without vision in its place."""
    shutil.rmtree(setup.folder / "model")
    build_model(setup.folder / "model")


def edit_processor(setup: Setup, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Change the processor's file."""
    file = setup.folder / "model" / "processor_config.json"
    said = json.loads(file.read_text())
    change(said)
    file.write_text(json.dumps(said))


def set_image(row: dict[str, object], **values: object) -> None:
    """Give a row another image."""
    row["images"] = [{"bytes": None, "path": None, **values}]


def prompt_of(row: dict[str, list[dict[str, str]]], change: Callable[[str], str]) -> None:
    """Change the prompt of a row."""
    row["prompt"][0]["content"] = change(row["prompt"][0]["content"])


def on_gpu(setup: Setup, **overrides: str) -> None:
    """Check it as for a GPU, where raydebug's plug-in repairs nothing."""
    setup.environment.setenv("VERL_PLATFORM", "cuda")
    setup.overrides.update({key.replace("__", "."): value for key, value in overrides.items()})


DATA = {
    "the images under another name": Broken(
        "data", "data.image-column", "20 prompts|16 prompts name an image, and there is no column 'images'",
        "data.image_key=pictures", lambda s: rewrite(s, lambda row: row.update(pictures=row.pop("images"))),
    ),
    "a misnamed column in the command": Broken(
        "data", "data.image-column", "no column 'picture'.*data.image_key names it", "data.image_key=images",
        lambda s: s.overrides.update({"data.image_key": "picture"}),
    ),
    "no images": Broken(
        "data", "data.image-column", "no column 'images'", "add it: a list of",
        lambda s: rewrite(s, lambda row: row.pop("images")), fresh_data,
    ),
    "a placeholder too many": Broken(
        "data", "data.image-count", "row 0 has 2 '<image>' in its prompt and 1 images.*image_offset",
        "as many '<image>'",
        lambda s: rewrite(s, lambda row: prompt_of(row, lambda text: "<image>" + text)), fresh_data,
    ),
    "an image too many": Broken(
        "data", "data.image-count", "row 0 has 1 '<image>' in its prompt and 2 images.*does not see it",
        "as many '<image>'", lambda s: rewrite(s, lambda row: row.update(images=row["images"] * 2)), fresh_data,
    ),
    "a PNG cut off": Broken(
        "data", "data.image-broken", "image 0 of row 0 cannot be decoded", "write that file again",
        lambda s: rewrite(s, lambda row: set_image(row, bytes=row["images"][0]["bytes"][:60])), fresh_data,
    ),
    "a page in place of an image": Broken(
        "data", "data.image-broken", "UnidentifiedImageError", "write that file again",
        lambda s: rewrite(s, lambda row: set_image(row, bytes=b"<html>404</html>")), fresh_data,
    ),
    "a path that is not there": Broken(
        "data", "data.image-broken", "FileNotFoundError.*pictures/1.png", "write that file again",
        lambda s: rewrite(s, lambda row: set_image(row, path="pictures/1.png")), fresh_data,
    ),
    "a prompt too long by its image": Broken(
        "data", "data.prompt-too-long", "max_prompt_length=24.*the images of one take up to 6 of them",
        "data.max_prompt_length=", lambda s: s.overrides.update({"data.max_prompt_length": "24"}),
    ),
    "a model that takes no images": Broken(
        "data", "data.image-model", "has images in 'images', and the model takes none.*no vision_config",
        "a vision-language model", text_model, fresh_model,
    ),
}  # fmt: skip
MODEL = {
    "no processor": Broken(
        "model", "model.processor", "cannot be loaded.*processor is needed", "copy preprocessor_config.json",
        lambda s: (s.folder / "model" / "processor_config.json").unlink(), fresh_model,
    ),
    "a processor cut off": Broken(
        "model", "model.processor", "its processor cannot be loaded", "copy preprocessor_config.json",
        lambda s: (s.folder / "model" / "processor_config.json").write_text('{"image_processor": {'), fresh_model,
    ),
    "a processor of a later transformers": Broken(
        "model", "model.processor", "its processor cannot be loaded.*Unrecognized image processor", "copy preprocessor",
        lambda s: edit_processor(s, lambda c: c["image_processor"].update(image_processor_type="Qwen9VLProcessor")),
        fresh_model,
    ),
    "the chat template of a text model": Broken(
        "model", "model.processor", "leaves out the image", "the chat_template of the vision model",
        lambda s: (s.folder / "model" / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
            "{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}\n{% endfor %}"
        ), fresh_model,
    ),
    "random weights on a vLLM that loses the normalization": Broken(
        "model", "model.load-format", "load_format=dummy.*rollouts do not see the images", "load_format=safetensors",
        on_gpu,
    ),
    "one sequence for each rank": Broken(
        "model", "model.equal-lengths", "one sequence is such a batch.*issue 7899",
        "RAYDEBUG_PATCHES=position-ids-of-equal-lengths",
        lambda s: on_gpu(
            s,
            data__train_batch_size="1",
            actor_rollout_ref__rollout__n="1",
            actor_rollout_ref__rollout__load_format="safetensors",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA | MODEL)
def test_broken(setup: Setup, name: str) -> None:
    """The stage names the fault and its cause, and with its fix the set-up passes."""
    broken = (DATA | MODEL)[name]
    prove(setup, broken, [broken.stage])


def local_target(setup: Setup) -> Target:
    """What is checked, asked in a Python of its own."""
    return replace(setup.target(), runner=LocalRunner(sys.executable))


def test_without_torchvision(setup: Setup, tmp_path: Path) -> None:
    """Stage `model` names the package that is missing, not what vLLM says of the architecture."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(WITHOUT_TORCHVISION)
    setup.environment.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    (outcome,) = run_stages(local_target(setup), choose_stages(["model"]), cache=None)
    assert outcome.status == FAILED
    (found,) = outcome.findings
    assert found.code == "model.torchvision"
    assert "pip install 'torchvision==0.28.0'" in found.fix
    setup.environment.delenv("PYTHONPATH")
    (outcome,) = run_stages(local_target(setup), choose_stages(["model"]), cache=None)
    assert outcome.status == PASSED, outcome.findings


def test_ladder(setup: Setup) -> None:
    """The set-up itself passes data, model and engine, which sends an image through vLLM."""
    outcomes = setup.run_stages("data", "model", "engine")
    assert [one.status for one in outcomes] == [PASSED] * 3, [one.findings for one in outcomes]


def test_text_data(setup: Setup) -> None:
    """A vision model trained on text alone is no fault."""
    shutil.rmtree(setup.folder / "data")
    build_dataset(setup.folder / "data")
    outcomes = setup.run_stages("data", "model")
    assert [one.status for one in outcomes] == [PASSED] * 2, [one.findings for one in outcomes]
