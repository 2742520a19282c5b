"""`check` where the trainer's packages are missing: what can be looked at is, and the rest is said to be not run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from raydebug.check.probes.images import has_vision
from raydebug.check.stages import FAILED, PASSED, Outcome, choose_stages, run_stages
from raydebug.check.target import find_target
from raydebug.errors import RaydebugError
from raydebug.settings.files import environment_dir
from raydebug.settings.flavours import install
from raydebug.trainers.config import TrainingConfig, first_missing
from raydebug.trainers.hub import cached_folder, hub_cache, model_folder
from raydebug.trainers.verl.checks import _OWN_CLASS, targets_of
from verl_fork import make_fork

pytestmark = pytest.mark.skipif(first_missing("hydra", "torch") is None, reason="the packages are here")
SIZES = {"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
COMMAND = ("python", "-m", "verl.trainer.main_ppo", "trainer.n_gpus_per_node=2", "trainer.logger=[console]",
           "data.train_files=rows.parquet", "data.val_files=rows.parquet",
           "actor_rollout_ref.model.path=m")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a verl of its own, a data file and a model."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    here = tmp_path / "here"
    here.mkdir()
    make_fork(here, version="0.9.1")
    (here / "rows.parquet").write_bytes(b"PAR1")
    (here / "m").mkdir()
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SIZES}
    (here / "m" / "config.json").write_text(json.dumps(config))
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [10, 4], "data_offsets": [0, 160]}})
    weights = struct.pack("<Q", len(header)) + header.encode() + bytes(160)
    (here / "m" / "model.safetensors").write_bytes(weights)
    monkeypatch.chdir(here)
    return here


def check(stages: list[str], *command: str) -> dict[str, Outcome]:
    """Run stages over a command."""
    target = find_target(list(command), Path.cwd(), "default", None)
    outcomes = run_stages(target, choose_stages(stages), keep_going=True)
    return {outcome.stage: outcome for outcome in outcomes}


def said_by(outcome: Outcome) -> list[tuple[str, str]]:
    """Return code and text of each finding, without the machine's own."""
    return [(one.code, one.what) for one in outcome.findings if one.code != "command.gpus"]


def test_what_is_looked_at_without_them(folder: Path) -> None:
    """The config, files, sizes and weights are looked at; the rest is not run, with the lock that has the package."""
    found = check(["data", "model", "engine"], *COMMAND)
    assert {code for code, _ in said_by(found["data"])} == {"command.batch", "check.not-run"}
    not_run = [one for one in found["data"].findings if one.code == "check.not-run"]
    assert [one.what for one in not_run] == [
        "not run: omegaconf is missing (the trainer's own verdict on the config)",
        "not run: pyarrow is missing (what is in rows.parquet)",
    ]
    lock = Path(not_run[0].fix.split(" -r ")[1])
    assert lock.is_file()
    assert lock.parent == environment_dir()
    assert said_by(found["model"]) == [
        ("check.not-run", "not run: transformers is missing (the class of the model and its config, the tokenizer)")
    ]
    assert found["model"].status == PASSED
    assert said_by(found["engine"]) == [("engine.import", "not run: vllm is missing")]
    assert found["engine"].status == FAILED


def test_a_weight_file_that_is_cut_off(folder: Path) -> None:
    """The headers of the weights need no package."""
    file = folder / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert [code for code, _ in said_by(check(["model"], *COMMAND)["model"])] == ["model.shard", "check.not-run"]


def test_the_sizes_of_a_model(folder: Path) -> None:
    """Sizes are read from config.json: heads that the engine cannot split are found without transformers."""
    found = check(
        ["model"], *COMMAND, "trainer.n_gpus_per_node=4", "actor_rollout_ref.rollout.tensor_model_parallel_size=4"
    )
    assert "model.heads" in {code for code, _ in said_by(found["model"])}


@pytest.mark.parametrize("kind", ["an empty folder", "no folder", "an empty name", "a file", "broken", "a list"])
def test_a_model_that_is_none(kind: str, folder: Path) -> None:
    """A folder that holds no model is one error, with what it holds."""
    name, model = "other", folder / "other"
    if kind == "an empty name":
        name = ""
    elif kind == "a file":
        model.touch()
    elif kind != "no folder":
        model.mkdir()
        text = {"broken": "{", "a list": "[]"}.get(kind)
        if text:
            (model / "config.json").write_text(text)
    found = check(["model"], *COMMAND, f"actor_rollout_ref.model.path={name}")["model"]
    errors = [one for one in found.findings if one.severity == "error"]
    assert [one.code for one in errors] == [
        "model.path" if "name" in kind or kind in ("no folder", "a file") else "model.config"
    ]


def test_a_config_that_calls_something(folder: Path) -> None:
    """Neither `_target_` nor a resolver of a config is ever called."""
    config = folder / "verl" / "trainer" / "config" / "own.yaml"
    bad = "own: {_target_: os.system, command: touch made, x: '${os.system:touch made}', y: '${oc.decode:z}'}\n"
    config.write_text(config.read_text() + bad)
    found = check(["data", "model"], *COMMAND)
    assert "check.failed" not in {code for one in found.values() for code, _ in said_by(one)}
    assert not (folder / "made").exists()
    allowed = [name for name in ("verl.workers.config.ActorConfig", "os.system", "verl.utils.hdfs_io._run_cmd")
               if _OWN_CLASS.fullmatch(name)]  # fmt: skip
    assert allowed == ["verl.workers.config.ActorConfig"]
    assert list(targets_of({"a": [{"_target_": "x"}], "b": {"_target_": "y"}})) == ["x", "y"]


def test_a_config_of_ten_megabytes(folder: Path) -> None:
    """A config that is too large is not read; what the command itself says is looked at."""
    config = folder / "verl" / "trainer" / "config" / "own.yaml"
    config.write_text(config.read_text() + "#" * 10_000_000)
    found = check(["data"], *COMMAND)["data"]
    (unread,) = (one for one in found.findings if "was not read" in one.what)
    assert "more than the 1048576 that a config may have" in unread.why
    assert not [one for one in found.findings if one.code == "check.failed"]


@pytest.mark.parametrize("said", ["--config-path=none", "--config-name=none"])
def test_a_config_that_is_missing(said: str, folder: Path) -> None:
    """A config folder or file that is not there is one error of each stage, with what was looked for."""
    for outcome in check(["data", "model"], *COMMAND, said).values():
        (finding,) = outcome.findings
        assert (finding.code, "there is no" in finding.why) == ("command.override", True)


def test_a_trainer_that_is_not_here(folder: Path) -> None:
    """Where the program's files are missing, files and models of the command are looked at all the same."""
    for file in sorted((folder / "verl").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (folder / "verl").rmdir()
    found = check(["data", "model"], *COMMAND, "data.train_files=none.parquet")
    assert next(code for code, _ in said_by(found["data"])) == "data.file-missing"
    assert any("was not read" in what for _, what in said_by(found["model"]))


def test_an_old_fork(folder: Path) -> None:
    """A fork that lacks keys gets no finding about them, and no rule fails."""
    config = folder / "verl" / "trainer" / "config" / "own.yaml"
    config.write_text("data: {train_files: null, val_files: null}\nactor_rollout_ref: {model: {path: null}}\n"
                      "trainer: {n_gpus_per_node: 8, logger: []}\n")  # fmt: skip
    (folder / "verl" / "version" / "version").write_text("0.1")
    found = check(["data", "model"], *COMMAND)
    assert {code for one in found.values() for code, _ in said_by(one)} == {"check.not-run"}


def test_a_folder_that_a_script_goes_to(folder: Path) -> None:
    """A script that changes to a folder which is not there is refused, with the folder."""
    (folder / "run.sh").write_text(f"cd /no/such/folder\n{' '.join(COMMAND)}\n")
    with pytest.raises(RaydebugError) as refused:
        check(["data"], "bash", "run.sh")
    assert (refused.value.code, refused.value.what) == ("check.no-folder", "there is no folder /no/such/folder")


def test_the_engine_that_a_command_names(folder: Path) -> None:
    """A training with sglang does not need vLLM."""
    missing = "vllm is not installed in the cluster's Python"
    for engine, needs in (("vllm", True), ("sglang", False)):
        found = check(["env"], *COMMAND, f"actor_rollout_ref.rollout.name={engine}")["env"]
        assert (missing in {one.what for one in found.findings}) is needs


def test_what_installs_a_package() -> None:
    """A package of a lock is installed by the lock, another one alone."""
    lock = environment_dir() / "cpu.lock"
    for package in ("vllm", "hydra", "tokenizers"):
        assert install(package, "cpu") == f"pip install --no-deps --require-hashes -r {lock}"
    assert install("own_package", "cpu") == "pip install own-package"


def test_a_model_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main revision of a model is found in the cache by its folders; one that leads out of it is not followed."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    model = hub_cache() / "models--a--b"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    assert cached_folder("a/b") is None
    (snapshot / "config.json").write_text('{"vision_config": {}}')
    assert cached_folder("a/b") == model_folder("a/b") == snapshot
    assert [has_vision(TrainingConfig({"model": name}, {"model": "model"})) for name in ("a/b", "a/c")] == [True, None]
    (model / "refs" / "main").write_text("../../..")
    assert cached_folder("a/b") is None
    assert cached_folder("a/c") is None
