"""A trainer's config read from its files, as Hydra would compose it, and a trainer found where Python would find it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from raydebug.trainers.registry import recognise
from raydebug.trainers.trainer import Installed
from raydebug.trainers.verl import config_files
from raydebug.trainers.verl.config_files import NotComposed, Overrides, leaves, main_config


def compose(name: str, folders: list[Path], choices: dict[str, str]) -> dict[str, object]:
    return dict(leaves(config_files.compose(name, folders, choices)))


def write(folder: Path, **files: str) -> Path:
    """Files by their path; `actor__fsdp` is actor/fsdp.yaml."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return folder


# tests/wheels holds the same reading against the real Hydra, with the configs of ten releases of verl.
def test_defaults_packages_and_choices(tmp_path: Path) -> None:
    """Groups lie at their packages, in their order; names, relative groups and another group's choice are followed."""
    folder = write(
        tmp_path,
        trainer="""
            defaults:
              - engine: dp
              - actor@a.actor: ${engine}_actor
              - optional missing: nothing
              - data: null
              - _self_
            a: {actor: {batch: 3}}
            b: ${a.actor.batch}
            hydra: {run: {dir: /x}}
        """,
        engine__dp="size: 1\n",
        actor__dp_actor="defaults: [../optim@optim: adam, actor, _self_]\nbatch: 2\nown: 1\n",
        actor__actor="batch: 1\nold: 1\n",
        optim__adam="lr: 0.1\n",
        optim__sgd="lr: 0.2\n",
        engine__pp="size: 2\n",
        actor__pp_actor="piped: 1\n",
    )
    assert compose("trainer", [folder], {}) == {
        "engine.size": 1, "a.actor.optim.lr": 0.1, "a.actor.batch": 3, "a.actor.old": 1, "a.actor.own": 1,
        "b": "${a.actor.batch}",
    }  # fmt: skip
    assert compose("trainer.yaml", [folder], {"engine": "pp"}) == {
        "engine.size": 2, "a.actor.piped": 1, "a.actor.batch": 3, "b": "${a.actor.batch}"
    }  # fmt: skip


@pytest.mark.parametrize("hydra", ["5", "[a]", "{searchpath: 5}", "{searchpath: [5, null]}", "null"])
def test_hydra_s_own_part_may_be_anything(hydra: str, tmp_path: Path) -> None:
    """What is below `hydra` is Hydra's, and no part of the trainer's config."""
    write(tmp_path, trainer=f"hydra: {hydra}\na: 1\n")
    assert compose("trainer", [tmp_path], {}) == {"a": 1}


def test_a_config_on_top_of_the_trainer_s(tmp_path: Path) -> None:
    """A user's own config that names the trainer's by a search path, and overrides a choice of it, is read as one."""
    theirs = write(
        tmp_path / "verl",
        ppo_trainer="defaults: [{engine: dp}, _self_]\ntrainer: {steps: null, gpus: 8}\n",
        engine__dp="size: 1\n",
        engine__pp="size: 2\n",
    )
    mine = write(
        tmp_path / "mine",
        grpo=f"""
            hydra: {{searchpath: ["file://{theirs}"]}}
            defaults: [ppo_trainer, override engine: pp]
            trainer: {{steps: 5}}
        """,
    )
    assert compose("grpo", [mine], {}) == {"engine.size": 2, "trainer.steps": 5, "trainer.gpus": 8}
    write(tmp_path / "mine", own="defaults: [ppo_trainer]\n")
    (tmp_path / "train.py").write_text('@hydra.main(config_path="mine", config_name="own")\n')
    main = main_config(tmp_path / "train.py", Overrides([f"hydra.searchpath=[file:///no,'file://{theirs}']"]))
    assert compose(main.name, main.folders(tmp_path), {})["engine.size"] == 1


BOMB = "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b]\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [\n", "while parsing a flow node"),
        ("- a\n", "is not a mapping"),
        ("defaults: [a@b: c]\n", "there is no a/c.yaml"),
        ("defaults: [nosuch]\n", "there is no nosuch.yaml"),
        ("defaults: [c]\n", "more than 200 configs are merged"),
        ("defaults: {a: b}\n", "are not a list"),
        ("defaults: [[a]]\n", "neither a name nor a group"),
        ("defaults: [{a: '${b}'}]\n", "is not a choice of the defaults list"),
        (BOMB, "has anchors or aliases"),
        ("a: \x00\n", "not allowed"),
        ("a: " + "[" * 40000 + "]" * 40000, "has more than 64 levels in one another"),
        (f"defaults: [{', '.join(['one'] * 201)}]", "more than 200 configs are merged"),
        ("- " * 40000 + "a", "has more than 64 levels in one another"),
    ],
)
def test_what_is_not_understood_counts_as_unread(text: str, why: str, tmp_path: Path) -> None:
    """A config that is broken, or uses what only Hydra knows, is not half read: it says why."""
    (tmp_path / "c.yaml").write_text(text)
    (tmp_path / "one.yaml").write_text("b: 1\n")
    with pytest.raises(NotComposed, match=r".") as failure:
        compose("c", [tmp_path], {})
    assert why in str(failure.value)


MAIN = '@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)\ndef main(config): ...\n'


def install(place: Path, package: str, version: str | None = "0.4.0") -> Path:
    trainer = place / Path(*package.split(".")) / "trainer"
    write(trainer / "config", ppo_trainer="data: {train_batch_size: 7}\n", mine="data: {train_batch_size: 8}\n")
    (trainer / "main_ppo.py").write_text(MAIN)
    if version:
        (trainer.parent / "version").mkdir()
        (trainer.parent / "version" / "version").write_text(f"{version}\n")
    return place


def looked(folder: Path, command: str, *search: str) -> Installed:
    argv = command.split()
    trainer = recognise(argv)
    return trainer.trainer.read_config(trainer, argv, folder=folder, search=search)


def test_the_first_on_the_path_is_found(tmp_path: Path) -> None:
    """Of two, the one that Python would import is read: PYTHONPATH in its order, the folder itself first."""
    install(tmp_path / "one", "verl", "0.3.1.dev")
    install(tmp_path / "two", "verl")
    module = "python -m verl.trainer.main_ppo"
    assert looked(tmp_path, module, "one", "two").version == "0.3.1.dev"
    assert looked(tmp_path, module, str(tmp_path / "two"), "one").version == "0.4.0"
    assert looked(tmp_path / "two", module, "").version == "0.4.0"
    assert looked(tmp_path, "python two/verl/trainer/main_ppo.py").values == {"data.train_batch_size": 7}


def test_a_fork_is_found_by_its_module(tmp_path: Path) -> None:
    """A fork by another name, and a verl below another package, have their own version and config."""
    install(tmp_path, "verl_arpo", None)
    install(tmp_path, "third.verl", "0.6.0")
    assert looked(tmp_path, "python -m verl_arpo.trainer.main_ppo", "") == Installed(None, {"data.train_batch_size": 7})
    assert looked(tmp_path, "python -m third.verl.trainer.main_ppo", "").version == "0.6.0"


def test_hydra_s_options_choose_the_config(tmp_path: Path) -> None:
    """--config-name and --config-path, in both spellings, say which config is read."""
    install(tmp_path, "verl")
    write(tmp_path / "own", theirs="data: {train_batch_size: 9}\n")
    module = "python -m verl.trainer.main_ppo"
    for options, batch in (
        ("--config-name=mine", 8),
        ("--config-name mine.yaml", 8),
        (f"--config-path={tmp_path}/own -cn theirs", 9),
        ("-cp ../../own --config-name theirs a=b", 9),
    ):
        assert looked(tmp_path, f"{module} {options}", "").values == {"data.train_batch_size": batch}
    unread = looked(tmp_path, f"{module} --config-name nosuch", "")
    assert unread.values is None
    assert "there is no nosuch.yaml" in unread.unread


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    """Without verl there is no version, no config, and a reason."""
    assert looked(tmp_path, "python -m verl.trainer.main_ppo", "") == Installed(
        None, None, "verl.trainer.main_ppo is not installed here"
    )


def test_nothing_of_the_package_runs(tmp_path: Path) -> None:
    """The package is read, not imported: what would run on import does not."""
    install(tmp_path, "verl")
    for folder in ("verl", "verl/trainer"):
        (tmp_path / folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert looked(tmp_path, "python -m verl.trainer.main_ppo", "").version == "0.4.0"


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ('"config"', "a/b/config"),
        ('str(Path(__file__).resolve().parents[1] / "config" / "more")', "a/config/more"),
        ("Path(__file__).parent.parent", "a"),
        ('os.path.join(os.path.dirname(__file__), "../config")', "a/config"),
        ("HERE", None),
    ],
)
def test_the_folder_that_a_program_names(path: str, folder: str | None, tmp_path: Path) -> None:
    """A config_path that is computed from the program's file is followed; another one is said not to be read."""
    file = tmp_path / "a" / "b" / "main.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        f'@hydra.main(config_path={path}, config_name="x", version_base=None)\ndef main(config):\n    pass\n'
    )
    if folder is not None:
        assert main_config(file, Overrides([])).folder == tmp_path / folder
        return
    with pytest.raises(NotComposed, match="is not read: HERE"):
        main_config(file, Overrides([]))
