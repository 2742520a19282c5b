"""The config of a command as plain values, without Hydra: overrides, references, and what is never done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydebug.trainers.config import CannotCompose, TrainingConfig
from raydebug.trainers.registry import recognise
from raydebug.trainers.verl.checks import PpoChecks
from raydebug.trainers.verl.config_files import NotComposed
from raydebug.trainers.verl.plain_config import parsed, resolved, split_unread, with_overrides
from raydebug.trainers.verl.trainer import VERL
from verl_fork import make_fork

VALUES: dict[str, Any] = {
    "8": 8, "-1": -1, "1e-6": 1e-6, "True": True, "null": None, "": "", "a b": "a b", "~/x.parquet": "~/x.parquet",
    "[a,'b c',1]": ["a", "b c", 1], "[]": [], "{a: 1, b: {c: [2]}}": {"a": 1, "b": {"c": [2]}}, "'8'": "8",
    "[${a.b},1]": ["${a.b}", 1], "'it\\'s'": "it's", "[a": "[a", "<path>": "<path>", "a,b": "a,b",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_values_of_overrides(text: str, value: Any) -> None:
    """A value is what Hydra's grammar makes of it; a text that it does not take stays a text."""
    assert parsed(text) == value
    assert type(parsed(text)) is type(value)


def test_overrides() -> None:
    """Set, add, force and delete; options, groups and Hydra's own part are passed over."""
    whole: dict[str, Any] = {"a": {"b": 1, "c": None}, "d": 2, "e": {"f": 1}}
    said = ["a.b=2", "+a.n=3", "+a.c=4", "++x.y=5", "~d", "--config-name=z", "hydra.run.dir=/x", "e={g: 1}", "m@a=b"]
    with_overrides(whole, said)
    assert whole == {"a": {"b": 2, "c": 4, "n": 3}, "e": {"f": 1, "g": 1}, "x": {"y": 5}}


@pytest.mark.parametrize("said", ["a.x=1", "x.y.z=1", "+a.b=2", "~x"])
def test_overrides_that_hydra_refuses(said: str) -> None:
    """A key that is not there cannot be set or deleted, one that has a value not added."""
    with pytest.raises(CannotCompose):
        with_overrides({"a": {"b": 1}}, [said])


def test_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """References are followed, relative ones too; what only a run can tell is left out."""
    monkeypatch.setenv("OWN_MODEL", "/m")
    whole = {
        "a": {"n": 2, "same": "${.n}", "up": "${..b.n}", "all": "${b}"},
        "b": {"n": "${a.n}", "text": "x/${a.n}-${b.n}", "lr": "1e-5"},
        "c": "${oc.select:no.such,8}", "d": "${oc.select:no.such}", "e": "${oc.env:OWN_MODEL}", "f": "${oc.env:NONE,7}",
        "g": "${oc.select:no.such,{}}", "h": "${oc.select:no,${a.n}}",
        "i": "${oc.select:no,${oc.select:b,null}}", "j": "${oc.select:a.n,${no.such}}",
        "lost": "${no.such}", "called": "${os.system:touch x}", "open": "${a.n", "missing": "???", "of": "${missing}",
        "round": "${trip}", "trip": "${round}",
    }  # fmt: skip
    assert resolved(whole) == {
        "a": {"n": 2, "same": 2, "up": 2, "all": {"n": 2, "text": "x/2-2", "lr": 1e-5}},
        "b": {"n": 2, "text": "x/2-2", "lr": 1e-5},
        "c": 8, "d": None, "e": "/m", "f": 7, "g": {}, "h": 2,
        "i": {"n": 2, "text": "x/2-2", "lr": 1e-5}, "j": 2, "open": "${a.n", "missing": "???",
    }  # fmt: skip


def test_references_without_end() -> None:
    """References that would expand to any number of values are refused."""
    whole: dict[str, Any] = {"x0": "y" * 9}
    whole |= {f"x{n}": f"${{x{n - 1}}}" * 9 for n in range(1, 12)}
    with pytest.raises(NotComposed, match="more references than are followed"):
        resolved(whole)


def test_what_the_shell_decides() -> None:
    """What a script's reader left as it was written is no value; a reference of Hydra is one."""
    known = ["a=${b.c}", "a=${oc.env:X}", "a=${oc.select:b,1}", "--config-name=x", "a='$'"]
    unread = ["a=$N", "a=${N}", "a=${N:-8}", "a=$1", "a=$(date)", "a=`date`", "a=x/${N[0]}", "a=${#N}"]
    assert split_unread([*known, *unread]) == (known, unread)


def compose(folder: Path, *said: str) -> Any:
    argv = ["python", "-m", "verl.trainer.main_ppo", *said]
    program = recognise(argv)
    return PpoChecks(VERL).compose(program, argv, folder=folder, search=["."])


def test_the_config_of_a_program(tmp_path: Path) -> None:
    """A program's own config is read; a setting of the shell, and what refers to it, is unknown."""
    make_fork(tmp_path, version="0.9.1", more={"own.same": "${data.train_batch_size}"})
    found = compose(tmp_path, "data.train_batch_size=8", "trainer.nnodes=$N", "+own.new=[1]")
    assert found.unknown == ("trainer.nnodes=$N",)
    config = TrainingConfig(found.values, PpoChecks(VERL).keys_of(found.values))
    assert (config.get("train_batch_size"), config.get("nodes"), config.ranks) == (8, None, None)
    assert found.values["own"] == {"same": 8, "new": [1]}
    found = compose(tmp_path, "data.train_batch_size=$B")
    assert "same" not in found.values["own"]
    with pytest.raises(CannotCompose, match=r"data\.no_such"):
        compose(tmp_path, "data.no_such=1")


def test_a_program_that_is_not_here(tmp_path: Path) -> None:
    """Without the program's files the config has what the command says, and the reason."""
    argv = ["python", "own_ppo.py", "actor_rollout_ref.model.path=/m", "+a.b=1", "model=x"]
    program = recognise(argv)
    found = PpoChecks(VERL).compose(program, argv, folder=tmp_path, search=["."])
    assert found.values == {"actor_rollout_ref": {"model": {"path": "/m"}}, "a": {"b": 1}, "model": "x"}
    assert found.unread == "there is no own_ppo.py here, or it is not installed"


@pytest.mark.parametrize(
    ("said", "why"),
    [("--config-path=none", "there is no own.yaml in"), ("--config-name=none", "there is no none.yaml in")],
)
def test_a_config_that_is_missing(said: str, why: str, tmp_path: Path) -> None:
    """A folder or a file that is not there is an error of the command."""
    make_fork(tmp_path, version="0.9.1")
    with pytest.raises(CannotCompose) as refused:
        compose(tmp_path, said)
    finding = PpoChecks(VERL).refused(refused.value.as_facts()["config_error"], [said])
    assert (finding.code, finding.severity) == ("command.override", "error")
    if refused.value.kind == "MissingConfig":  # else in Hydra's words
        assert why in finding.why


def test_an_older_config_has_older_keys(tmp_path: Path) -> None:
    """A setting is looked up by the key that the config has for it."""
    older = {"actor_rollout_ref": {"actor": {"ppo_micro_batch_size": 64}}, "custom_reward_function": {"path": "r.py"}}
    keys = PpoChecks(VERL).keys_of(older)
    assert keys["micro_batch_size"] == "actor_rollout_ref.actor.ppo_micro_batch_size"
    assert TrainingConfig(older, keys).get("reward_file") == "r.py"
    assert keys["model"] == "actor_rollout_ref.model.path"


def test_the_reward_of_an_older_config() -> None:
    """The manager and the reward model of an older config are found by its keys, which win where both are set."""
    older = {"reward_model": {"reward_manager": "batch", "enable": True}}
    newer: Any = {
        "reward": {"reward_manager": {"name": "dapo"}},
        "reward_model": {"reward_manager": None, "enable": None},
    }
    newer["reward"]["reward_model"] = {"enable": True}
    checks = PpoChecks(VERL)
    found = [checks.reward_function(TrainingConfig(values, checks.keys)) for values in (older, newer, {})]
    assert [(one.manager, one.by_model) for one in found] == [("batch", True), ("dapo", True), ("naive", False)]
