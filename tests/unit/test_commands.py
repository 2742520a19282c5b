"""Shell scripts, read without running them: the same words as bash itself gives the trainer, or a note why not."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from raydebug.check.config import judge_copies
from raydebug.check.target import target_of
from raydebug.commands.syntax import SCRIPT_BYTES_MAX
from raydebug.commands.trainings import Training, find_trainings
from raydebug.errors import RaydebugError
from raydebug.trainers import launchers

# `whole`: as verl's examples were written up to 0.8 (`classic`), as those of 0.9 (`arrays`), as ARPO's are.
SCRIPTS = tomllib.loads((Path(__file__).parent / "data" / "shell_scripts.toml").read_text())
COMMANDS = [
    pytest.param("classic", ["trainer.n=1", "a b=c"], id="classic"),
    pytest.param("classic", [], id="classic, no arguments"),
    pytest.param("arpo", [], id="ARPO's style"),
    pytest.param("arrays", ["x=y z"], id="arrays"),
    pytest.param("torchrun", ["4", "out/models/", "lr=1", "w=2"], id="torchrun"),
    pytest.param("odd", ["p"], id="odd"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs of the trainers' names that write down what they are given."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "torchrun"):
        (programs / name).write_text('#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" "$PWD" >> "$WRITTEN"\n')
        (programs / name).chmod(0o755)
    for name in ("dirname", "cat", "mkdir", "tee", "env", "nohup"):
        real = shutil.which(name)
        assert real, name
        (programs / name).symlink_to(real)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    return tmp_path


def environ(project: Path) -> dict[str, str]:
    return {"HOME": "/home/me", "PATH": str(project / "bin"), "PYTHONPATH": "/lib/py"}


def as_bash_runs(project: Path, arguments: list[str]) -> tuple[list[str], str]:
    """What bash gives the trainer, and where."""
    written = project / "written"
    bash = shutil.which("bash")
    assert bash
    subprocess.run(
        [bash, "scripts/run.sh", *arguments],
        cwd=project, env={**environ(project), "WRITTEN": str(written)}, timeout=20, check=False, capture_output=True,
    )  # fmt: skip
    *argv, folder, _ = written.read_text().split("\0")
    return argv, folder


def read(project: Path, script: str, *arguments: str) -> list[Training]:
    """Write a script, and return the trainings that it runs."""
    (project / "scripts" / "run.sh").write_text(script)
    return find_trainings(["bash", "scripts/run.sh", *arguments], environ(project), project)


def start(arguments: str) -> str:
    """Return the line of a script that starts a training."""
    return f"python3 -m verl.trainer.main_ppo {arguments}\n"


@pytest.mark.parametrize(("script", "arguments"), COMMANDS)
def test_the_words_are_those_that_bash_gives(script: str, arguments: list[str], project: Path) -> None:
    """What is read of a script is word for word what bash hands to the trainer, in the folder where bash runs it."""
    (training,) = read(project, SCRIPTS["whole"][script], *arguments)
    argv, folder = as_bash_runs(project, arguments)
    assert training.argv == argv
    assert os.path.normpath(training.folder) == folder


def test_exports_reach_the_training(project: Path) -> None:
    """What a script exports is in the training's environment, and PYTHONPATH leads to the fork that it names."""
    (training,) = read(project, SCRIPTS["whole"]["arpo"])
    assert training.environ["PYTHONPATH"] == f"{project}/verl_fork:/lib/py"
    assert training.environ["HYDRA_FULL_ERROR"] == "1"
    assert "BATCH" not in training.environ
    assert training.notes == ["NOBODY_SET_IT is not set here"]


@pytest.mark.parametrize(
    ("script", "word", "note"),
    [
        ("N=$(date +%s)\n", "x=$(date +%s)", "$(date +%s) is a program's output"),
        ("N=`nvidia-smi -L | wc -l`\n", "x=$(nvidia-smi -L | wc -l)", "$(nvidia-smi -L | wc -l) is a program's output"),
        ("N=1\n[ -f y ] && N=2\n", "x=1", "N depends on a condition (line 2), which was not decided"),
        ("for N in 3 4; do\n", "x=3", "N is a loop's: its first value is shown"),
        ("N=${M:?say it}\n", "x=${M:?say it}", "M is not set, and the script needs it"),
        ("N=${M/a/b}\n", "x=", "M is not set here"),
        ("read M\nN=$((M + 1))\n", "x=$((M + 1))", "$((M + 1)) was not calculated"),
        ("read M\nN=1\n((N = M + 1))\n", "x=1", "what ((N = M + 1)) sets N to was not calculated"),
        ("read N\n", "x=$N", "line 1: N is read from input"),
        ("source env.sh\nN=1\n", "x=1",
         "line 1: what source env.sh sets is not known here: No such file or directory"),
        ("source <(cat env)\nN=1\n", "x=1", "line 1: what source sets is not known here"),
        ("source $1\nN=1\n", "x=1", "line 1: what source sets is not known here"),
        ("export $(cat env)\nN=1\n", "x=1", "line 1: what export sets is not known here"),
        ("conda activate verl\nN=1\n", "x=1", "line 1: the environment of conda activate verl was not looked into"),
        ("N=1\n" + 'N="$N$N"\n' * 17, "x=$N", "N is too long to be followed"),
        ("cd -\nN=1\n", "x=1", "line 1: the folder of `cd -` is not known"),
        ("pushd -0\nN=1\n", "x=1", "line 1: the folder of `pushd -0` is not known"),
        ("cd $(mktemp -d)\nN=1\n", "x=1", "line 1: the folder of `cd $(mktemp -d)` is not known"),
        ("N=1\nmapfile -t N < f\n", "x=$N", "line 2: N is set by mapfile, to what is not known here"),
        ("N=1\nprintf -v N %x 3\n", "x=$N", "line 2: N is set by printf, to what is not known here"),
        ("N=1\ngetopts n: N\n", "x=$N", "line 2: N is set by getopts, to what is not known here"),
        ("M=1\nN=${M@A}\n", "x=${M@A}", "${M@A}: it is not followed"),
        ("cd $(mktemp -d)\n", "x*", "x* is a pattern of file names, which was not followed: the folder is not known"),
    ],
)  # fmt: skip
def test_what_only_a_run_can_tell_is_said(script: str, word: str, note: str, project: Path) -> None:
    """A word whose value only a run could tell stays as it is written, and a note gives the reason."""
    end = "done\n" if script.endswith("do\n") else ""
    (training,) = read(project, script + start("x=$N" if word.startswith("x=") else word) + end)
    assert training.argv[-1] == word
    assert note in training.notes


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-m", "verl.trainer.main_ppo", "a=b"],
        ["env", "X=1", "python3", "-m", "verl.trainer.main_ppo", "a=b"],
        ["uv", "run", "--frozen", "python3", "-m", "verl.trainer.main_ppo", "a=b"],
        ["bash", "-c", "python3 -m verl.trainer.main_ppo $0=b", "a"],
        ["bash", "-x", "scripts/inner.sh", "a=b"],
        ["scripts/inner.sh", "a=b"],
        ["sh", "-euc", "sh scripts/outer.sh"],
        ["nohup", "bash", "scripts/outer.sh"],
    ],
)
def test_the_ways_to_start_a_training(command: list[str], project: Path) -> None:
    """The training is found as it is, behind other programs, in `bash -c`, in a script, in a script of a script."""
    (project / "scripts" / "inner.sh").write_text('#!/bin/sh\nexec python3 -m verl.trainer.main_ppo "$@"\n')
    (project / "scripts" / "outer.sh").write_text("V=a=b\nbash scripts/inner.sh $V\n")
    (training,) = find_trainings(command, environ(project), project)
    assert training.argv == ["python3", "-m", "verl.trainer.main_ppo", "a=b"]


@pytest.mark.parametrize(
    "script",
    [
        "echo python3 -m verl.trainer.main_ppo\n",
        "# python3 -m verl.trainer.main_ppo\n",
        "python3 train.py\n",
        "cat <<'X'\npython3 -m verl.trainer.main_ppo\nX\n",
        "#!/usr/bin/python3\nimport os\n",
        "bash scripts/run.sh\n",
        f"./{'x' * 300}.sh\n",
        "cd ~nosuchuser/x\ntrue\n",
        'export X=\'bash -c "$X"\'\nbash -c "$X"\n',
        "",
    ],
)
def test_scripts_without_a_training(script: str, project: Path) -> None:
    """A script that only mentions one, calls itself, or is no shell script, has no training."""
    assert read(project, script) == []


@pytest.mark.parametrize("name", SCRIPTS["sourced"])
def test_a_sourced_file_is_read_in_its_place(name: str, project: Path) -> None:
    """What it sets, defines, exports, shifts and ends holds for the script, as in bash, without a note."""
    files, script = SCRIPTS["sourced"][name]["files"], SCRIPTS["sourced"][name]["script"]
    for name, text in files.items():
        (project / "scripts" / name).parent.mkdir(exist_ok=True)
        (project / "scripts" / name).write_text(text)
    (training,) = read(project, script, "p", "q")
    argv, folder = as_bash_runs(project, ["p", "q"])
    assert training.argv == argv
    assert (os.path.normpath(training.folder), training.notes) == (folder, [])
    if "export M=a" in files.get("env.sh", ""):
        assert {"M": "a", "W": "4"}.items() <= training.environ.items()
        assert "N" not in training.environ


def test_a_condition_of_a_sourced_file(project: Path) -> None:
    """It has the file's name in the note, and the same line of the script is another condition."""
    (project / "scripts" / "env.sh").write_text("if [ -f x ]; then E=fsdp; else E=megatron; fi\n")
    script = "if [ -f y ]; then C=1; else C=2; fi\nsource scripts/env.sh\n" + start("e=$E c=$C")
    trainings = read(project, script)
    assert [it.argv[3:] for it in trainings] == [["e=fsdp", "c=1"], ["e=fsdp", "c=2"], ["e=megatron", "c=1"]]
    assert "only if the condition of line 1 of scripts/env.sh does not hold" in trainings[-1].notes


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("sourced", "note"),
    [
        ("source scripts/env.sh\n" * 20, "too many files source one another"),
        ("X='unclosed\n", "line 1: ' is not closed"),
        ("#" * (SCRIPT_BYTES_MAX + 1), "it has 262145 bytes, more than the 262144 that a script may have"),
        ("\udcff", "line 1: byte 0xff is not UTF-8"),
    ],
    ids=["circle", "quote", "size", "bytes"],
)
def test_a_sourced_file_that_cannot_be_read(sourced: str, note: str, project: Path) -> None:
    """A circle without end, a broken file, one that is no text: a note, and the script is read on."""
    (project / "scripts" / "env.sh").write_text(sourced, errors="surrogateescape")
    (training,) = read(project, "source scripts/env.sh\n" + start("a=1"))
    assert training.argv[-1] == "a=1"
    assert any(line.endswith(note) for line in training.notes)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("X=1\npython3 -m verl.trainer.main_ppo 'a=b\n", "2: ' is not closed"),
        ('\n\necho "abc\n', '3: " is not closed'),
        ("X=$(ls\n", "1: $( is not closed"),
        ("A=(\n 1 2\n", "1: ( is not closed"),
        ("X=" + "${A:-" * 10000 + "x" + "}" * 10000, "1: too many expansions are in one another"),
        ("X=${Y\n", '1: not a valid parameter expansion operator: "\\n"'),
        ('X=\'eval "$X"\'\neval "$X"\n', "1: more than 8 evals in one another"),
        ("( " * 33 + ":" + " )" * 33, "1: more than 32 subshells in one another"),
        ('X="$(' + '"$(' * 9999 + "x" + ')"' * 10000, "1: too many expansions are in one another"),
    ],
)
def test_a_broken_script_is_refused_with_its_line(script: str, cause: str, project: Path) -> None:
    """A quote or bracket that is not closed, or too many in one another, is an error with the line, and a way on."""
    file = project / "scripts" / "run.sh"
    with pytest.raises(RaydebugError) as failure:
        read(project, script)
    assert failure.value.what == f"the script '{file}' cannot be read without running it"
    assert failure.value.cause == f"{file}:{cause}"
    assert "`raydebug run` runs it without reading it" in failure.value.fix


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "No such file or directory"),
        (b"\xff\n", "1: byte 0xff is not UTF-8"),
        (b"#" * (SCRIPT_BYTES_MAX + 1), "it has 262145 bytes"),
    ],
    ids=["missing", "bytes", "size"],
)
def test_a_script_that_is_not_there_is_refused(content: bytes | None, cause: str, project: Path) -> None:
    """A script that is missing, no UTF-8 or far too long is an error in three lines."""
    if content is not None:
        (project / "scripts" / "run.sh").write_bytes(content)
    with pytest.raises(RaydebugError) as failure:
        find_trainings(["bash", "scripts/run.sh"], environ(project), project)
    assert cause in failure.value.cause
    assert failure.value.exit_code == 2


LONG = {
    "assignments, deep quotes and values that double": [
        *(f'V{n}=${{V{n - 1}:-{n}}}"\'"x' for n in range(8000)), "A=a", *['A="$A$A"'] * 14,
        "B=(a b)", *['B+=("${B[@]}")'] * 60, *['A="$A$A"'] * 60, f"eval eval eval eval eval eval {start('x=1')}",
    ],
    "subshells": [*(f"V{n}=1" for n in range(10000)), *["(:)"] * 10000],
    "functions": [*(f"f{n}()\n(:)" for n in range(3000)), *["f1"] * 2000],
    "elements": ["A=(x)", *['A[0]+="${A[0]}"'] * 60, *["((N=N*2+1))"] * 9000],
    "a long name": [f"(({'a' * 200_000}))"],
    "loops without end": [
        "i=0", "while [ $i -lt 9 ]; do while [ 1 = 1 ]; do x=1; done; done", "while true; do sleep 1; done",
        f"f() {{ {'f; ' * 20}}}", "f",
    ],
}  # fmt: skip


@pytest.mark.parametrize("lines", LONG.values(), ids=list(LONG))
def test_a_long_script_is_read_in_no_time(lines: list[str], project: Path) -> None:
    """A script of tens of thousands of lines, or one that would never end, is read to its end."""
    trainings = read(project, "\n".join([*lines, start("x=1")]))
    assert {training.argv[-1] for training in trainings} == {"x=1"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("value", "notes"),
    [
        ("${A%%*b*b}", ["${A%%*b*b}: the value is too long to be cut"]),
        ("${A:-" * 40 + "x" + "}" * 40, []),
        ("${N:-" * 40 + "x" + "}" * 40, ["more than 32 expansions are in one another"]),
        ("$(dirname " * 40 + "x" + ")" * 40, [f"$({'dirname $(' * 6}...) is a program's output"]),
    ],
    ids=["cut", "defaults", "undecided defaults", "substitutions"],
)
def test_a_value_made_to_take_for_ever(project: Path, value: str, notes: list[str]) -> None:
    """Expansions in expansions and patterns over a long value end at a limit, which is said."""
    (training,) = read(project, f"A={'x' * 60000}\nX={value}\n{start('x=$X')}")
    assert [line.partition(": ")[2] if line.startswith("line") else line for line in training.notes] == notes


@pytest.mark.parametrize(
    ("launcher", "found"),
    [
        ("torchrun --nproc_per_node 4 -m", "error: torchrun starts verl.trainer.main_ppo 4 times"),
        (
            "python -m torch.distributed.run --nproc-per-node=gpu -m",
            "warning: torchrun starts verl.trainer.main_ppo once for each GPU",
        ),
        ("accelerate launch -m", "warning: accelerate starts verl.trainer.main_ppo once for each GPU"),
        ("deepspeed --num_gpus 8 --module", "error: deepspeed starts verl.trainer.main_ppo 8 times"),
        ("srun --ntasks 16 python3 -m", "error: srun starts verl.trainer.main_ppo 16 times"),
        ("mpirun -np 2 python3 -m", "error: mpirun starts verl.trainer.main_ppo 2 times"),
        ("srun -N1 -n1 python3 -m", ""),
        ("torchrun --nproc_per_node 1 -m", ""),
    ],
)
def test_a_trainer_that_a_launcher_starts_several_times(launcher: str, found: str, project: Path) -> None:
    """A trainer that starts its workers itself is started once; a launcher that starts it N times is a finding."""
    (training,) = read(project, f"{launcher} verl.trainer.main_ppo a=1\n")
    target = target_of(training, project, None, None)
    assert [f"{one.severity}: {one.what}" for one in judge_copies(target)] == ([found] if found else [])
    (own,) = read(project, "torchrun --nproc_per_node 4 -m verl.trainer.sft_trainer a=1\n")
    assert own.copies is None


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("P a=1 \\\n  # b=2 \\\n  c=3\n",
         "line 2: a comment ends the command there; what follows is no part of it"),
        ("P a=1 | tee x.log \\\n  b=2\n", "line 1: b=2 is an argument of `tee`, which writes a file of that name"),
        ("trap 'P a=1' EXIT\n", "only if `trap` of line 1 runs it"),
        ("cat > t.sh <<'E'\nP a=1\nE\nbash t.sh\n", None),
        ("X=$(P a=1)\n", None),
        ("P b=2 && P a=1\n", "only if the condition of line 1 holds"),
        ("f() { P a=1; }\n", "f() is not called by the script"),
        ("P a=1\nif\n", "line 2: `if` must be followed by a statement list: bash stops there"),
    ],
)  # fmt: skip
def test_where_a_training_is_found(script: str, note: str | None, project: Path) -> None:
    """A training is found where bash starts it, and a note says what bash takes away from it, or what it depends on."""
    trainings = read(project, script.replace("P ", "python3 -m verl.trainer.main_ppo "))
    assert [it.notes for it in trainings if it.argv[3:] == ["a=1"]] == [[note] if note else []]


def test_line_ends_of_windows(project: Path) -> None:
    """The words are those that are meant, and a note says that bash takes the carriage returns as part of them."""
    (training,) = read(project, "N=4\r\npython3 -m verl.trainer.main_ppo \\\r\n a=$N\r\n")
    assert training.argv[3:] == ["a=4"]
    why = "run.sh has line ends of Windows, with which bash runs another command"
    assert training.notes == [f"{why}: sed -i 's/\\r$//' {project}/scripts/run.sh"]


def test_reading_runs_nothing(project: Path) -> None:
    """No command of a script is run by reading it, not in substitutions, not in arithmetic."""
    script = "X=$(touch a) Y=`touch b`; Z=$(($(touch c)))\ntouch d > e\n"
    (training,) = read(project, script + start("x=$X$Y$Z ${Q:-$(touch f)}"))
    assert [path.name for path in project.rglob("*.sh")] == ["run.sh"]
    assert not [name for name in "abcdef" if (project / name).exists()]
    assert "touch" in training.argv[-1]


@pytest.mark.parametrize(("condition", "holds"), SCRIPTS["conditions"].items())
def test_a_condition_with_known_operands_is_decided(condition: str, holds: bool, project: Path) -> None:
    """One training is found, that of the branch which the shell takes, without a note; bash agrees."""
    branches = f"B=3\nM=org/Qwen3-8B\nL=(a b c)\nif {condition}; then T=1; else T=0; fi\n"
    (training,) = read(project, branches + start("x=$T"), "--fast", "b")
    assert (training.argv[-1], training.notes) == (f"x={int(holds)}", [])
    ran = subprocess.run(
        ["bash", "-c", f"{branches}echo $T", "run.sh", "--fast", "b"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == str(int(holds))


def test_both_branches_of_what_is_not_decided(project: Path) -> None:
    """Each training is shown whole, with its condition: none of them mixes two branches. A guard's exit is passed."""
    first, second = read(
        project,
        "[ -f data ] || exit 1\nif [ ! -d model ]; then echo none; exit 2; fi\n"
        "if [ -f x ]; then E=fsdp; C=ppo_trainer; else E=megatron; C=ppo_megatron_trainer; fi\n"
        + start("--config-name=$C x=$E"),
    )
    assert first.argv[-2:] == ["--config-name=ppo_trainer", "x=fsdp"]
    assert second.argv[-2:] == ["--config-name=ppo_megatron_trainer", "x=megatron"]
    assert (first.is_variant, second.is_variant) == (False, True)
    assert "only if the condition of line 3 does not hold" in second.notes


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", SCRIPTS["read"])
def test_what_is_read(name: str, project: Path) -> None:
    """Each training is shown that may run, with its words; a note says what is not known, and where."""
    expected = SCRIPTS["read"][name]
    found = read(project, expected["script"].replace("@LONG", "a" * 4000), "a=1", "b=2", "c=3")
    assert [" ".join(training.argv[3:]) for training in found] == expected["trainings"]
    assert found[-1].notes == expected.get("notes", found[-1].notes)


@pytest.mark.parametrize("script", SCRIPTS["forms"].values(), ids=list(SCRIPTS["forms"]))
def test_forms_of_the_shell(script: str, project: Path) -> None:
    """Each training has the words that bash gives it and its folder, without a note."""
    trainings = read(project, script.replace("T ", "python3 -m verl.trainer.main_ppo "), "p", "q")
    assert [note for training in trainings for note in training.notes] == []
    argv, folder = as_bash_runs(project, ["p", "q"])
    assert [word for it in trainings for word in [*it.argv, os.path.normpath(it.folder)]] == [*argv, folder]


def test_the_examples() -> None:
    """The examples in the docstring of `environ_of` are true."""
    assert doctest.testmod(launchers).failed == 0
