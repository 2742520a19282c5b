"""`raydebug tiny`: what it builds, byte for byte, and what it leaves behind when it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
    with pytest.raises(RaydebugError, match="is no config that transformers") as failure:
        build_model(tmp_path / "m", like=like)
    assert failure.value.exit_code == 2
    assert not (tmp_path / "m").exists()
