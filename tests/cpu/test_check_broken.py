"""Broken set-ups, each made by a few lines: the right stage names it with its cause, and the fix makes it pass."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checked import Broken, Setup, prove, set_up
from raydebug.check.stages import NAMES, PASSED
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model

pytestmark = pytest.mark.timeout(600)  # each asks three processes that import torch; machines are shared


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model and data, built once."""
    folder = tmp_path_factory.mktemp("tiny")
    build_model(folder / "model")
    build_dataset(folder / "data")
    return folder


@pytest.fixture
def setup(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    """A set-up that passes."""
    with set_up(tiny, tmp_path, monkeypatch) as made:
        yield made


def pretend_installed(setup: Setup, name: str, version: str) -> None:
    """Put the metadata of another version before the installed one, as a second copy on the path would."""
    info = setup.folder / "other" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")
    setup.environment.setenv("PYTHONPATH", str(info.parent))


def listen(setup: Setup) -> None:
    """Hold a port, and let MASTER_PORT name it."""
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    setup.sockets.append(one)
    setup.environment.setenv("MASTER_PORT", str(one.getsockname()[1]))


def rewrite(setup: Setup, change: Callable[[dict[str, object]], object], name: str = "train") -> None:
    """Write a data file anew with each row changed."""
    import pyarrow
    from pyarrow import parquet

    file = setup.folder / "data" / f"{name}.parquet"
    rows = parquet.read_table(file).to_pylist()
    for row in rows:
        change(row)
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def edit_json(setup: Setup, name: str, **values: object) -> None:
    """Change values of a JSON file of the model."""
    file = setup.folder / "model" / name
    said = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({k: v for k, v in said.items() if v is not ...}))


def cut(path: Path, keep: float) -> None:
    """Cut a file off."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])


def again(part: str) -> Callable[[Setup], None]:
    """Copy one file of the tiny set-up again, as the fix says."""

    def copy(setup: Setup) -> None:
        folder, _, name = part.partition("/")
        (setup.folder / part).unlink(missing_ok=True)
        fresh = setup.folder / "fresh"
        if folder == "model":
            build_model(fresh)
        else:
            build_dataset(fresh)
        (fresh / name).rename(setup.folder / part)

    return copy


def variable(name: str, value: str) -> Callable[[Setup], None]:
    """Set an environment variable of the checking process."""
    return lambda setup: setup.environment.setenv(name, value)


def override(**values: str) -> Callable[[Setup], None]:
    """Give settings; `__` is written for each dot."""
    return lambda setup: setup.overrides.update({key.replace("__", "."): value for key, value in values.items()})


def reward(text: str) -> Callable[[Setup], object]:
    """Write another reward function."""
    return lambda setup: (setup.folder / "data" / "reward.py").write_text(text)


def add_directory(setup: Setup) -> None:
    """Turn a parquet file into a folder of parquet files, as Spark writes them."""
    file = setup.folder / "data" / "train.parquet"
    part = file.rename(file.with_name("part-0.parquet"))
    file.mkdir()
    part.rename(file / part.name)


def split_in_two(setup: Setup) -> None:
    """Write the weights as one shard with an index that promises a second one."""
    model = setup.folder / "model"
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def one_shard(setup: Setup) -> None:
    """Undo it."""
    model = setup.folder / "model"
    (model / "model-00001-of-00002.safetensors").rename(model / "model.safetensors")
    (model / "model.safetensors.index.json").unlink()


def point_to_lfs(setup: Setup) -> None:
    """Leave the pointer that a clone without git-lfs has."""
    (setup.folder / "model" / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 988097824\n"
    )


def without_template(setup: Setup) -> None:
    """Take the chat template away."""
    (setup.folder / "model" / "chat_template.jinja").unlink()


def own_code(setup: Setup) -> None:
    """Make the model need code of its own, which would be noticed if it ran."""
    edit_json(setup, "config.json", model_type="odd", architectures=["OddForCausalLM"],
              auto_map={"AutoConfig": "odd.OddConfig", "AutoModelForCausalLM": "odd.OddForCausalLM"})  # fmt: skip
    (setup.folder / "model" / "odd.py").write_text("open('ran', 'w').close()\n")


ENV = {
    "a transformers that verl does not take": Broken(
        "env", "env.version-clash", r"transformers 4\.51\.3 is installed.*verl 0\.9\.1 needs",
        "pip install transformers==5",
        lambda s: pretend_installed(s, "transformers", "4.51.3"), lambda s: s.environment.delenv("PYTHONPATH"),
    ),
    "another Ray": Broken(
        "env", "env.version-untested", r"ray 2\.99\.0 is installed; raydebug is tested with 2\.41\.0 to",
        r"pip install 'ray\[default\]>=2\.41\.0,<=",
        lambda s: pretend_installed(s, "ray", "2.99.0"), lambda s: s.environment.delenv("PYTHONPATH"),
    ),
    "an attention backend that vLLM does not know": Broken(
        "env", "env.attention-backend", "XFORMERS is not an attention backend of vLLM", "unset VLLM_ATTENTION_BACKEND",
        variable("VLLM_ATTENTION_BACKEND", "XFORMERS"),
    ),
    "post-mortem misspelt": Broken(
        "env", "env.debugger-flag", "RAY_DEBUG_POSTMORTEM=1 means nothing to Ray", "unset RAY_DEBUG_POSTMORTEM",
        variable("RAY_DEBUG_POSTMORTEM", "1"),
    ),
    "a word that a variable of vLLM does not take": Broken(
        "env", "env.vllm-value", "VLLM_WORKER_MULTIPROC_METHOD=forkserver.*it takes spawn, fork", "unset VLLM_WORKER",
        variable("VLLM_WORKER_MULTIPROC_METHOD", "forkserver"),
    ),
    "a cache size that is not a number": Broken(
        "env", "env.vllm-value", "VLLM_CPU_KVCACHE_SPACE=4GiB is not a number", "give a number",
        variable("VLLM_CPU_KVCACHE_SPACE", "4GiB"),
    ),
    "a misspelt variable of vLLM": Broken(
        "env", "env.vllm-variable", "VLLM_LOGING_LEVEL is not a variable.*VLLM_LOGGING_LEVEL is",
        "write VLLM_LOGGING_LEVEL",
        variable("VLLM_LOGING_LEVEL", "DEBUG"),
    ),
    "an interface that is not there": Broken(
        "env", "env.interface-missing", "GLOO_SOCKET_IFNAME=eth77.*it has .*lo", "unset GLOO_SOCKET_IFNAME",
        variable("GLOO_SOCKET_IFNAME", "eth77"),
    ),
    "a port that is taken": Broken(
        "env", "env.port-taken", "MASTER_PORT=.*a process listens", "unset MASTER_PORT", listen,
    ),
    "a temporary folder too deep for sockets": Broken(
        "env", "env.tmpdir-long", "a path of 1[0-9][0-9] bytes", "export TMPDIR=/tmp",
        lambda s: (deep := s.folder / ("d" * 100), deep.mkdir(), s.environment.setenv("TMPDIR", str(deep))),
    ),
    "a Hugging Face cache below a file": Broken(
        "env", "env.hub-cache", "cannot be made or written", "export HF_HOME=DIR",
        lambda s: ((s.folder / "hf").write_text(""), s.environment.setenv("HF_HOME", str(s.folder / "hf"))),
        lambda s: s.environment.setenv("HF_HOME", str(s.folder)),
    ),
    "no GPU": Broken(
        "env", "env.no-gpu", "there is no GPU here", "VERL_PLATFORM=cpu",
        lambda s: (s.environment.setenv("VERL_PLATFORM", "cuda"), s.environment.setenv("PATH", "/usr/bin:/bin")),
    ),
}  # fmt: skip

DATA = {
    "a column missing": Broken(
        "data", "data.column-missing", "no column 'data_source'.*train.parquet has prompt", "add it",
        lambda s: rewrite(s, lambda row: row.pop("data_source")), again("data/train.parquet"),
    ),
    "the prompt under another name": Broken(
        "data", "data.column-missing", "no column 'prompt'", "data.prompt_key=messages",
        lambda s: [rewrite(s, lambda row: row.update(messages=row.pop("prompt")), name) for name in ("train", "test")],
    ),
    "prompts as text": Broken(
        "data", "data.column-type", "the column 'prompt' is string, not a list of messages", "'role': 'user'",
        lambda s: rewrite(s, lambda row: row.update(prompt=row["prompt"][0]["content"])), again("data/train.parquet"),
    ),
    "a parquet that is a folder": Broken(
        "data", "data.not-a-file", "data/train.parquet is a folder.*it holds 1",
        r"data.train_files=\[data/train.parquet/part-0",
        add_directory,
    ),
    "a parquet cut off": Broken(
        "data", "data.unreadable", "data/test.parquet cannot be read.*bytes", "copy it again",
        lambda s: cut(s.folder / "data" / "test.parquet", 0.9), again("data/test.parquet"),
    ),
    "prompts too long": Broken(
        "data", "data.prompt-too-long", "16 of 16 prompts have more than max_prompt_length=16",
        "data.max_prompt_length=2",
        override(data__max_prompt_length="16"),
    ),
    "a batch that cannot be split": Broken(
        "data", "command.batch",
        "mini batch of 4 x 1 rollouts cannot be spread over 3|4 prompts x 1 rollouts.*over 3 ranks",
        "data.train_batch_size=6",
        override(trainer__n_gpus_per_node="3", actor_rollout_ref__rollout__n="1",
                 actor_rollout_ref__actor__ppo_mini_batch_size="4"),
        override(data__train_batch_size="6", actor_rollout_ref__actor__ppo_mini_batch_size="6",
                 actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu="2",
                 actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu="2"),
    ),
    "a micro batch that does not divide": Broken(
        "data", "command.batch", "ppo_micro_batch_size_per_gpu=3 does not divide the 8 sequences",
        "ppo_micro_batch_size_per_gpu=2",
        override(actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu="3"),
    ),
    "fewer rows than a batch": Broken(
        "data", "data.too-few-rows", "16 rows of training data, and a batch takes 64", "data.train_batch_size=16",
        override(data__train_batch_size="64"),
    ),
    "a reward file that does not import": Broken(
        "data", "data.reward-import", "ModuleNotFoundError: No module named 'math_verify_x'.*reward.py:1",
        "pip install math_verify_x",
        reward("import math_verify_x\n"), again("data/reward.py"),
    ),
    "a reward function that verl cannot call": Broken(
        "data", "data.reward-raises", "unexpected keyword argument 'extra_info'", "take \\*\\*kwargs",
        reward("def compute_score(data_source, solution_str, ground_truth):\n    return 1.0\n"),
        reward("def compute_score(data_source, solution_str, ground_truth, **kwargs):\n    return 1.0\n"),
    ),
    "a reward function that returns nothing": Broken(
        "data", "data.reward-value", "returns None for row 0", "return a float",
        reward("def compute_score(**kwargs):\n    print('scored')\n"),
        reward("def compute_score(**kwargs):\n    return 0.5\n"),
    ),
    "no reward for the data": Broken(
        "data", "data.reward-source", "no reward for data_source 'raydebug/tiny_addition'",
        "custom_reward_function.path=FILE",
        lambda s: s.overrides.pop("reward.custom_reward_function.path"),
        override(reward__custom_reward_function__path="data/reward.py"),
    ),
    "an override with a typo": Broken(
        "data", "command.override", "no setting data.train_batchsize.*not in struct", "data.train_batch_size=4",
        override(data__train_batchsize="4"),
    ),
    "more ranks for a tensor than there are": Broken(
        "data", "command.parallel", "tensor_model_parallel_size=2 does not divide the 1 GPUs",
        "tensor_model_parallel_size=1",
        override(actor_rollout_ref__rollout__tensor_model_parallel_size="2"),
    ),
    "an estimator that verl does not have": Broken(
        "data", "command.refused", "algorithm.adv_estimator.*Unknown advantage estimator simply: grqo",
        "change the setting",
        override(algorithm__adv_estimator="grqo"), override(algorithm__adv_estimator="grpo"),
    ),
    "a module of the user's that is not there": Broken(
        "data", "command.refused", "external_lib: ModuleNotFoundError: No module named 'my_patches'",
        "change the setting",
        override(actor_rollout_ref__model__external_lib="my_patches"),
        lambda s: (s.folder / "my_patches.py").write_text(""),
    ),
    "what only verl's own dataclass knows": Broken(
        "data", "command.refused", "verl refuses actor_rollout_ref.rollout.*no_such_option", "change the setting",
        lambda s: s.overrides.update({"+actor_rollout_ref.rollout.no_such_option": "1"}),
        lambda s: s.overrides.pop("+actor_rollout_ref.rollout.no_such_option"),
    ),
}  # fmt: skip

MODEL = {
    "a shard cut off": Broken(
        "model", "model.shard", "model.safetensors is cut off.*its header promises \\d+ bytes",
        "download that file again",
        lambda s: cut(s.folder / "model" / "model.safetensors", 0.7), again("model/model.safetensors"),
    ),
    "a shard that is not there": Broken(
        "model", "model.shard", "model-00002-of-00002.safetensors is not there.*the index names it",
        "download that file",
        split_in_two, one_shard,
    ),
    "a pointer of git-lfs": Broken(
        "model", "model.shard", "is a pointer of git-lfs", "git lfs pull", point_to_lfs,
        again("model/model.safetensors"),
    ),
    "no chat template": Broken(
        "model", "model.chat-template", "has no chat template", "custom_chat_template",
        without_template, again("model/chat_template.jinja"),
    ),
    "a chat template that forgets the user": Broken(
        "model", "model.chat-template", "leaves out what the user says", "fix chat_template.jinja",
        lambda s: (s.folder / "model" / "chat_template.jinja").write_text("Answer: "),
        again("model/chat_template.jinja"),
    ),
    "an architecture that nobody knows": Broken(
        "model", "model.architecture", "does not know model_type 'qwen9' \\(Qwen9ForCausalLM\\)",
        "transformers release",
        lambda s: edit_json(s, "config.json", model_type="qwen9", architectures=["Qwen9ForCausalLM"]),
        again("model/config.json"),
    ),
    "a model that needs code of its own": Broken(
        "model", "model.remote-code", "needs code of its own: odd.OddConfig.*does not run it", "trust_remote_code=True",
        own_code, again("model/config.json"),
    ),
    "a tokenizer of another model": Broken(
        "model", "model.vocabulary", "ids up to 370, the model's embedding 320 rows", "the tokenizer that belongs",
        lambda s: edit_json(s, "config.json", vocab_size=320), again("model/config.json"),
    ),
    "a config of another model": Broken(
        "model", "model.config-mismatch", "config.json says 4 layers, the weights have 2", "belongs to these weights",
        lambda s: edit_json(s, "config.json", num_hidden_layers=4, layer_types=["full_attention"] * 4),
        again("model/config.json"),
    ),
    "a tokenizer that cannot be read": Broken(
        "model", "model.tokenizer", "the tokenizer of model cannot be loaded", "copy tokenizer.json",
        lambda s: cut(s.folder / "model" / "tokenizer.json", 0.5), again("model/tokenizer.json"),
    ),
    "no config.json": Broken(
        "model", "model.config", "model has no config.json.*it holds .*model.safetensors", "copy the whole folder",
        lambda s: (s.folder / "model" / "config.json").unlink(), again("model/config.json"),
    ),
    "a context longer than the model's": Broken(
        "model", "model.context", "max_model_len=1000000, and the model has", "max_model_len=96",
        override(actor_rollout_ref__rollout__max_model_len="1000000"),
    ),
    "a KV cache that holds no sequence": Broken(
        "model", "model.kv-cache", "one sequence of 50000000 tokens takes .* GiB of KV cache, 1.0 GiB",
        "max_model_len=[0-9]+",
        lambda s: edit_json(s, "config.json", max_position_embeddings=50_000_000),
    ),
    "heads that cannot be split": Broken(
        "model", "model.heads", "tensor_model_parallel_size=4 does not divide the model's 2",
        "tensor_model_parallel_size=2",
        override(actor_rollout_ref__rollout__tensor_model_parallel_size="4", trainer__n_gpus_per_node="4",
                 actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu="2",
                 actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu="2"),
    ),
    "a name of the Hub that nobody fetched": Broken(
        "model", "model.not-cached", "neither a folder here nor in the Hub's cache", "hf download nobody/nothing-7B",
        override(actor_rollout_ref__model__path="nobody/nothing-7B"), override(actor_rollout_ref__model__path="model"),
    ),
}  # fmt: skip


BROKEN = {f"{broken.stage}: {name}": broken for group in (ENV, DATA, MODEL) for name, broken in group.items()}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_broken(setup: Setup, broken: Broken) -> None:
    """The stages below pass, the right one names the fault with its cause, and with the fix it passes."""
    prove(setup, broken, NAMES[: NAMES.index(broken.stage) + 1])


def test_the_whole_set_up_passes(setup: Setup) -> None:
    """What the broken ones are made of passes, without a finding."""
    for outcome in setup.run_stages("env", "data", "model"):
        assert (outcome.status, outcome.findings) == (PASSED, []), outcome


def test_code_of_a_model_does_not_run(setup: Setup) -> None:
    """A model's own code does not run in a check that nobody allowed it to."""
    own_code(setup)
    setup.run_stages("data", "model")
    assert not (setup.folder / "ran").exists()
