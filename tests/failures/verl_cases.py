"""Programs that fail in parts of verl, without a training: `python verl_cases.py NAME`; see cases.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from model_cases import DATA, load_tokenizer


def read_data(file):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    return RLHFDataset(str(file), load_tokenizer(), OmegaConf.create({"max_prompt_length": 64}))


def no_data():
    read_data(DATA / "none.parquet")


def no_prompt_column():
    from pyarrow import parquet

    table = parquet.read_table(DATA / "train.parquet")
    names = ["messages" if name == "prompt" else name for name in table.column_names]
    parquet.write_table(table.rename_columns(names), DATA / "renamed.parquet")
    print(read_data(DATA / "renamed.parquet")[0])


def load_reward(path="data/reward.py", name="compute_score"):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn

    return get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": {"path": path, "name": name}}}))


def no_reward_file():
    load_reward("data/my_reward.py")


def no_reward_function():
    load_reward(name="grade")


def reward_imports():
    Path("data/reward.py").write_text("import math_verify_x\n\n\ndef compute_score(**row):\n    return 0.0\n")
    load_reward()


def chunks():
    import torch
    from verl import DataProto

    batch = DataProto.from_dict({"responses": torch.zeros(10, 4)})
    print([len(part) for part in batch.chunk(4)])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
