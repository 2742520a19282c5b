"""`raydebug tiny`: what it builds, byte for byte, and what it leaves behind when it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydebug.errors import RaydebugError
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run_tiny(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from raydebug.cli import main; main()", "tiny", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    """Two processes with other hash seeds build the same bytes in every file; another seed gives other weights."""
    for name, seed, hash_seed in (("a", "7", "1"), ("b", "7", "2"), ("c", "8", "1")):
        done = run_tiny("model", str(tmp_path / name), "--seed", seed, "--json", PYTHONHASHSEED=hash_seed)
        assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["architecture"] == "Qwen2ForCausalLM"
    assert 80_000 < document["parameters"] < 150_000
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert [name for name in a if a[name] != c[name]] == ["model.safetensors"]
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


def test_model_speaks(tmp_path: Path) -> None:
    """The model loads as any model does, in bfloat16, follows its chat template and generates."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_model(tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert str(model.dtype) == "torch.bfloat16"
    talk = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 1 plus 2? é中"}], add_generation_prompt=True, tokenize=False
    )
    assert talk == "<|im_start|>user\nWhat is 1 plus 2? é中<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(talk, return_tensors="pt")
    assert tokenizer.decode(ids["input_ids"][0]) == talk
    assert model.generate(**ids, max_new_tokens=4).shape[1] > ids["input_ids"].shape[1]


LIKES = {
    "LlamaForCausalLM": {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    "Qwen3MoeForCausalLM": {
        "model_type": "qwen3_moe",
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
}


@pytest.mark.parametrize("architecture", LIKES)
def test_likeness_keeps_architecture_and_special_tokens(architecture: str, tmp_path: Path) -> None:
    """--like keeps architecture, model type, special tokens and chat template, and shrinks all sizes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    large = tmp_path / "large"
    build_model(large)
    tokenizer = AutoTokenizer.from_pretrained(large)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|vision|>"]}, replace_extra_special_tokens=False)
    tokenizer.add_tokens(["<tool_call>"])
    tokenizer.chat_template = "{{ messages[0]['content'] }}!"
    tokenizer.save_pretrained(large)
    config = {
        "architectures": [architecture],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "vocab_size": 151936,
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "bos_token_id": 100_000,
        **LIKES[architecture],
    }
    (large / "config.json").write_text(json.dumps(config))
    built = build_model(tmp_path / "small", like=large)
    assert built.architecture == architecture
    assert built.parameters < 500_000
    small = json.loads((tmp_path / "small" / "config.json").read_text())
    assert small["model_type"] == LIKES[architecture]["model_type"]
    assert small["num_key_value_heads"] == 1
    words = AutoTokenizer.from_pretrained(tmp_path / "small")
    assert set(words.all_special_tokens) == set(tokenizer.all_special_tokens)
    assert words.chat_template == tokenizer.chat_template
    assert words.encode("<tool_call>") == [words.convert_tokens_to_ids("<tool_call>")]
    assert words.convert_ids_to_tokens(small["eos_token_id"]) == "<|im_end|>"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    ids = words("What is 3?", return_tensors="pt")
    assert model(ids["input_ids"]).logits.shape[-1] == small["vocab_size"] >= len(words)


def test_likeness_of_a_likeness_has_the_same_bytes(tmp_path: Path) -> None:
    """--like with the same seed gives the same bytes."""
    build_model(tmp_path / "m")
    for name in "ab":
        build_model(tmp_path / name, like=tmp_path / "m", seed=3)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_dataset_bytes_columns_and_reward(tmp_path: Path) -> None:
    """The same seed gives the same bytes; the columns are verl's; the reward beside it scores digits."""
    from pyarrow import parquet

    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build_dataset(tmp_path / name, rows=8, seed=seed)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert a["train.parquet"] != c["train.parquet"]
    row = parquet.read_table(tmp_path / "a" / "train.parquet").to_pylist()[0]
    assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert row["prompt"][0]["role"] == "user"
    module: dict[str, object] = {}
    exec(a["reward.py"].decode(), module)
    assert module["compute_score"]("x", "a1b2", "3") == {"score": 0.5, "characters": 4.0}  # type: ignore[operator]


def test_dataset_like_another(tmp_path: Path) -> None:
    """--like takes the columns and the first rows of a parquet file, and says which of verl's columns are missing."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"prompt": [[{"role": "user", "content": str(n)}] for n in range(50)], "n": list(range(50))}),
        tmp_path / "big.parquet",
        row_group_size=3,
    )
    built = build_dataset(tmp_path / "d", like=tmp_path / "big.parquet", rows=5)
    assert built.missing == ["data_source", "reward_model"]
    assert parquet.read_table(tmp_path / "d" / "train.parquet")["n"].to_pylist() == [0, 1, 2, 3, 4]
    assert built.rows == {"train": 5, "test": 4}


def test_dataset_like_something_else_is_refused(tmp_path: Path) -> None:
    """A file that is no parquet gives the three lines, and nothing is left behind."""
    (tmp_path / "x.parquet").write_text("no parquet")
    done = run_tiny("dataset", str(tmp_path / "d"), "--like", str(tmp_path / "x.parquet"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-3].startswith(f"error: '{tmp_path / 'x.parquet'}' cannot be read as parquet")
    assert not (tmp_path / "d").exists()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small tmpfs needs root")
def test_disk_full_leaves_nothing(tmp_path: Path) -> None:
    """On a disk that is really full the model is refused in three lines, and not a file of it is left."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        done = run_tiny("model", str(small / "m"))
        assert done.returncode == 1, done.stderr
        error, cause, fix = done.stderr.splitlines()[-3:]
        assert error == f"error: no space left for '{small / 'm'}'"
        assert "No space left on device" in cause
        assert "nothing was left behind" in fix
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_architecture_that_transformers_does_not_know(tmp_path: Path) -> None:
    """A config of an unknown architecture is refused; its own code is never run."""
    like = tmp_path / "odd"
    like.mkdir()
    (like / "config.json").write_text(json.dumps({"model_type": "odd", "auto_map": {"AutoConfig": "odd.Config"}}))
    (like / "odd.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(RaydebugError, match="is not a config that transformers") as failure:
        build_model(tmp_path / "m", like=like)
    assert failure.value.exit_code == 2
    assert not (tmp_path / "m").exists()


VISION_LIKES: dict[str, dict[str, Any]] = {
    "Qwen2VL": {"depth": 32, "embed_dim": 1280, "hidden_size": 2048, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14},
    "Qwen2_5_VL": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
        "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "Qwen3VL": {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
        "patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", VISION_LIKES)
def test_likeness_of_a_vision_model(kind: str, tmp_path: Path) -> None:
    """--like of a model with images keeps its processor, with small images; the likeness sees an image."""
    import torch
    import transformers
    from PIL import Image

    build_model(tmp_path / "tokens", vision=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokens")
    ours = json.loads((tmp_path / "tokens" / "config.json").read_text())
    ids = {name: value for name, value in ours.items() if name.startswith(("image_", "video_", "vision_"))}
    patch = VISION_LIKES[kind]["patch_size"]
    rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
    text = {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 2, "rope_parameters": rope, "head_dim": 128,
    }  # fmt: skip
    original = getattr(transformers, f"{kind}Config")(
        text_config=text, architectures=[f"{kind}ForConditionalGeneration"],
        **{**ids, "vision_config": VISION_LIKES[kind]},
    )  # fmt: skip
    original.save_pretrained(tmp_path / "large")
    videos = transformers.Qwen3VLVideoProcessor if kind == "Qwen3VL" else transformers.Qwen2VLVideoProcessor
    getattr(transformers, f"{kind}Processor")(
        image_processor=transformers.Qwen2VLImageProcessor(patch_size=patch), tokenizer=tokenizer,
        video_processor=videos(patch_size=patch), chat_template=tokenizer.chat_template,
    ).save_pretrained(tmp_path / "large")  # fmt: skip
    built = build_model(tmp_path / "small", like=tmp_path / "large")
    assert (built.architecture, built.parameters < 1_000_000) == (f"{kind}ForConditionalGeneration", True)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "small")
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    said = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[said], images=[Image.new("RGB", (2000, 1000), "red")], return_tensors="pt")
    tokens = int((inputs["input_ids"] == processor.image_token_id).sum())
    assert 4 <= tokens <= 16
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "small")
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()


def test_vision_bytes_and_images(tmp_path: Path) -> None:
    """--vision and --images give the same bytes for a seed; each row has as many images as its prompt names."""
    from pyarrow import parquet

    for name in "ab":
        build_model(tmp_path / f"model-{name}", vision=True, seed=5)
        build_dataset(tmp_path / f"data-{name}", images=True, rows=6, seed=5)
    assert contents(tmp_path / "model-a") == contents(tmp_path / "model-b")
    assert contents(tmp_path / "data-a") == contents(tmp_path / "data-b")
    rows = parquet.read_table(tmp_path / "data-a" / "train.parquet").to_pylist()
    assert all(row["prompt"][0]["content"].count("<image>") == len(row["images"]) == 1 for row in rows)
    assert len({row["images"][0]["bytes"] for row in rows}) > 1
    built = build_dataset(tmp_path / "rows", like=tmp_path / "data-a", rows=3)
    assert built.rows["train"] == 3
    kept = parquet.read_table(tmp_path / "rows" / "train.parquet").to_pylist()
    assert [row["images"] for row in kept] == [row["images"] for row in rows[:3]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("model", "--vision", "--like", "m"),
        ("dataset", "--images", "--like", "d"),
        ("dataset", "--images", "--rows", "0"),
    ],
)
def test_images_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Options that exclude each other, and no rows, are refused with exit code 2; nothing is built."""
    verb, *options = arguments
    done = run_tiny(verb, str(tmp_path / "x"), *options)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()
