"""Shell scripts, read without running them: the same words as bash itself gives the trainer, or a note why not."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from raydebug.commands import arithmetic, trainings
from raydebug.commands.statements import SCRIPT_BYTES_MAX
from raydebug.commands.trainings import Training, find_trainings
from raydebug.errors import RaydebugError

# As verl's examples were written up to 0.8: one long command, "$@" at its end.
CLASSIC = r"""set -x

gsm8k=$HOME/data/gsm8k
files="['$gsm8k/train.parquet', '$gsm8k/more.parquet']"

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$files" \
    data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
    trainer.logger=['console','wandb'] \
    trainer.total_epochs=15 $@
"""
# As ARPO's scripts are: exports, comments behind values, nested names, arithmetic, a log beside the terminal.
ARPO = r"""
HERE="$( cd "$( dirname "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )"
PARENT="$(dirname "$HERE")"
cd "$PARENT"
# ==== Environment ====
export PYTHONUNBUFFERED=1
export HYDRA_FULL_ERROR=1
export PYTHONPATH="$PARENT"/verl_fork:$PYTHONPATH
NAME="arpo_16_init_8"       # with a comment
CONFIG_PATH="$PARENT/config"
BATCH=128                   # another
PROMPT=1536
RESPONSE=4096
SAVE="$PARENT/out/${NAME}"
if [ "$WANDB_KEY" != "" ]; then
    wandb login --relogin $WANDB_KEY
    export WANDB_DIR=${SAVE}
fi
if [ ! -d "$SAVE" ]; then
    mkdir -p $SAVE
fi
python3 -m verl.trainer.main_ppo \
    --config-path=$CONFIG_PATH \
    --config-name=ppo_trainer.yaml \
    data.train_batch_size=${BATCH} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2*(PROMPT+RESPONSE))) \
    actor_rollout_ref.rollout.multi_turn.enable=${NOBODY_SET_IT} \
    trainer.logger="[console, wandb]" \
    hydra.run.dir=${SAVE}/outputs 2>&1 | tee ${SAVE}/run.log
"""
# As verl's examples are from 0.9 on: defaults from the environment, arrays, case, a launcher of several words.
ARRAYS = r"""#!/usr/bin/env bash
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-4B}
TRAIN=${TRAIN:-$HOME/data/gsm8k/train.parquet}
GPUS=${GPUS:-8}
FILES=${FILES:-"['$TRAIN']"}
case "${DEVICE:-gpu}" in
    gpu)
        ;;
    npu|other)
        export LD_PRELOAD="/usr/lib/x.so${LD_PRELOAD:+:$LD_PRELOAD}"
        ;;
    *)
        echo "python3 -m verl.trainer.main_ppo is not for ${DEVICE}" >&2
        exit 1
        ;;
esac
DATA=(
    algorithm.adv_estimator=grpo   # how
    data.train_files="${FILES}"
    trainer.logger='["console","wandb"]'
)
EXTRA=(
)
DATA+=("trainer.n_gpus_per_node=${GPUS}" trainer.experiment_name="a b")
LAUNCH=(python3)
"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    "${DATA[@]}" actor_rollout_ref.model.path=${MODEL} \
    "${EXTRA[@]}" \
    "$@"
"""
FINE_TUNING = r"""
if [ "$#" -lt 2 ]; then
    echo "Usage: run.sh <gpus> <save> [more]"
fi
gpus=$1
save=$2
shift 2
CUDA_VISIBLE_DEVICES=0 torchrun --standalone --nnodes=1 --nproc_per_node=$gpus \
     -m verl.trainer.sft_trainer \
    data.train_files=$HOME/t.parquet \
    trainer.default_local_dir=${save%/}/x \
    trainer.experiment_name=${save##*/} \
    trainer.project_name="${gpus}gpus-${@:1:1}" \
    $@ 2>&1 | tee >(cat) "$save.log"
"""
ODD = r"""
function later () {
  python3 -m verl.trainer.main_eval x=1
}
cat <<EOF > /dev/null
python3 -m verl.trainer.main_ppo never=1 'unclosed
EOF
WORDS='a=1   b=2'; EMPTY=
X=$WORDS' c'
export A=1 B="two words"; declare -a LIST=(one "two three"); LIST+=(four)
((A > 5)) && echo never
[[ -n "$X" && $A < 5 ]] && nohup env PYTHONPATH=/p \
  python3 -m verl.trainer.main_generation $WORDS "$WORDS" $EMPTY "$EMPTY" x='single $X' y="d\"q\$" z=a\ b \
  l="${LIST[*]}" n=${#} m=${LIST[1]} u=${X^^} -- "${LIST[@]}" > /dev/null &
wait
"""
COMMANDS = [
    pytest.param(CLASSIC, ["trainer.n=1", "a b=c"], id="classic"),
    pytest.param(CLASSIC, [], id="classic, no arguments"),
    pytest.param(ARPO, [], id="ARPO's style"),
    pytest.param(ARRAYS, ["x=y z"], id="arrays"),
    pytest.param(FINE_TUNING, ["4", "out/models/", "lr=1", "w=2"], id="torchrun"),
    pytest.param(ODD, ["p"], id="odd"),
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
    (training,) = read(project, script, *arguments)
    argv, folder = as_bash_runs(project, arguments)
    assert training.argv == argv
    assert os.path.normpath(training.folder) == folder


def test_exports_reach_the_training(project: Path) -> None:
    """What a script exports is in the training's environment, and PYTHONPATH leads to the fork that it names."""
    (training,) = read(project, ARPO)
    assert training.environ["PYTHONPATH"] == f"{project}/verl_fork:/lib/py"
    assert training.environ["HYDRA_FULL_ERROR"] == "1"
    assert "BATCH" not in training.environ
    assert training.notes == ["NOBODY_SET_IT is not set here"]


KEYED = "N is an array with keys, which are not followed"


@pytest.mark.parametrize(
    ("script", "word", "note"),
    [
        ("N=$(date +%s)\n", "x=$(date +%s)", "$(date +%s) is a program's output"),
        ("N=`nvidia-smi -L | wc -l`\n", "x=$(nvidia-smi -L | wc -l)", "$(nvidia-smi -L | wc -l) is a program's output"),
        ("N=1\n[ -f y ] && N=2\n", "x=1", "N depends on a condition (line 2), which was not decided"),
        ("for N in 3 4; do\n", "x=3", "N is a loop's: its first value is shown"),
        ("N=${M:?say it}\n", "x=${M:?say it}", "M is not set, and the script needs it"),
        ("N=${M/a/b}\n", "x=${M/a/b}", "${M/a/b} was not read"),
        ("N=1\n((N <<= 2))\n", "x=1", "line 2: what it sets N to was not calculated"),
        ("N=1\n((M = N++))\n", "x=1", "line 2: what it sets N to was not calculated"),
        ("let N=2**3\n", "x=$N", "line 1: what it sets N to was not calculated"),
        ("for N in {1..3}; do\n", "x={1..3}", "a word with {...} is several words for bash, which are not followed"),
        ("IFS=,; M=1,2\nfor N in $M; do\n", "x=1",
         "IFS is not what it is at first: how a value is split is not followed"),
        ("N=$((2**70))\n", "x=$((2**70))", "$((2**70)) was not calculated"),
        ("read N\n", "x=$N", "line 1: N is read from input"),
        ("source env.sh\nN=1\n", "x=1",
         "line 1: what source env.sh sets is not known here: No such file or directory"),
        ("source <(cat env)\nN=1\n", "x=1", "line 1: what source sets is not known here"),
        ("source $1\nN=1\n", "x=1", "line 1: what source $1 sets is not known here"),
        ("export $(cat env)\nN=1\n", "x=1", "line 1: what export sets is not known here"),
        ("conda activate verl\nN=1\n", "x=1", "line 1: the environment of conda activate verl was not looked into"),
        ("N=1\n" + 'N="$N$N"\n' * 17, "x=$N", "N is too long to be followed"),
        ("cd -\nN=1\n", "x=1", "line 1: the folder of `cd -` is not known"),
        ("pushd -0\nN=1\n", "x=1", "line 1: the folder of `pushd -0` is not known"),
        ("cd $(mktemp -d)\nN=1\n", "x=1", "line 1: the folder of `cd $(mktemp -d)` is not known"),
        ("N=1\nmapfile -t N < f\n", "x=$N", "line 2: N is set by mapfile, to what is not known here"),
        ("N=1\nprintf -v N %02d 3\n", "x=$N", "line 2: N is set by printf, to what is not known here"),
        ("N=1\ngetopts n: N\n", "x=$N", "line 2: N is set by getopts, to what is not known here"),
        ("N=08\nN=$((10#$N + 1))\n", "x=$((10#$N + 1))", "$((10#$N + 1)) was not calculated"),
        ("declare -A N=([a]=1 [b]=2)\n", "${N[b]}", KEYED),
        ("declare -A N\nN[a]=1; N['b c']=2\n", "${N[b]}", KEYED),
        ("N=([3]=a [5]=b)\n", "${N[5]}", KEYED),
        ("N=(a b c)\nunset 'N[1]'\n", "${N[1]}", KEYED),
        ("N=(a)\nN[7]=b\n", "${N[7]}", KEYED),
        ("N=(a b)\n", "${!N[@]}", "${!N[@]} was not read"),
        ("N=(a b)\n", "${N[x?1:0]}", "${N[x?1:0]} was not read"),
    ],
)  # fmt: skip
def test_what_only_a_run_can_tell_is_said(script: str, word: str, note: str, project: Path) -> None:
    """A word whose value only a run could tell stays as it is written, and a note gives the reason.

    Keys and gaps of arrays are not followed: an element is no other element.
    """
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


SOURCED = {
    "assignments, exports and a function": (
        {"env.sh": 'N=3\nexport M=a\nset -a; W=4; set +a\ntrain() { python3 -m verl.trainer.main_ppo "$@"; }\n'},
        "source scripts/env.sh\ntrain n=$N m=$M\n",
    ),
    "a circle with a guard": (
        {"a.sh": '[ -n "$A" ] && return\nA=1\n. scripts/b.sh\n', "b.sh": ". scripts/a.sh\nB=2\n"},
        ". scripts/a.sh\npython3 -m verl.trainer.main_ppo a=$A b=$B\n",
    ),
    "its own path, and the script's": (
        {"in/env.sh": 'H=$(dirname "${BASH_SOURCE[0]}")\nf() { W=$BASH_SOURCE; }\n[ $0 = "$BASH_SOURCE" ] || N=2\n'},
        'source "$(dirname "$0")/in/env.sh"\nf\npython3 -m verl.trainer.main_ppo h=$H w=$W n=$N b=${BASH_SOURCE[0]}\n',
    ),
    "arguments of its own": (
        {"env.sh": 'A=$1-$#\nshift\nB="$*"\n'},
        'source scripts/env.sh x y z\npython3 -m verl.trainer.main_ppo $A "$B" "$@"\n',
    ),
    "the script's arguments": (
        {"env.sh": "A=$1\nset -- c d e\nshift\n"},
        'source scripts/env.sh\npython3 -m verl.trainer.main_ppo $A "$@"\n',
    ),
    "a file that ends the script": (
        {"env.sh": "python3 -m verl.trainer.main_ppo a=1\nexit 0\n"},
        "source scripts/env.sh\npython3 -m verl.trainer.main_ppo b=1\n",
    ),
    "a status": (
        {"env.sh": "N=1\nfalse\n"},
        "source scripts/env.sh || N=2\nif true; then . scripts/env.sh; fi\npython3 -m verl.trainer.main_ppo n=$N\n",
    ),
    "another folder": (
        {"env.sh": "cd scripts\n", "more.sh": "N=5\n"},
        "source scripts/env.sh; source ./more.sh\npython3 -m verl.trainer.main_ppo n=$N\n",
    ),
    "quoted declarations": (
        {"env.sh": 'X="a b"\nexport "N=$X" K=$X\ndeclare -x "L=1"\n'},
        'source scripts/env.sh\npython3 -m verl.trainer.main_ppo "n=$N" "k=$K" l=$L\n',
    ),
    "a loop over files": (
        {"a.sh": "A=1\n", "b.sh": "B=2\n"},
        "for f in a b; do source scripts/$f.sh; done\npython3 -m verl.trainer.main_ppo $A $B\n",
    ),
    "a return in an eval": ({}, 'eval "return 0"\npython3 -m verl.trainer.main_ppo n=1\n'),
}


@pytest.mark.parametrize(("files", "script"), SOURCED.values(), ids=list(SOURCED))
def test_a_sourced_file_is_read_in_its_place(files: dict[str, str], script: str, project: Path) -> None:
    """What it sets, defines, exports, shifts and ends holds for the script, as in bash, without a note."""
    for name, text in files.items():
        (project / "scripts" / name).parent.mkdir(exist_ok=True)
        (project / "scripts" / name).write_text(text)
    (training,) = read(project, script, "p", "q")
    argv, folder = as_bash_runs(project, ["p", "q"])
    assert training.argv == [word.replace("=scripts/", f"={project}/scripts/") for word in argv]
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
        ('\n\necho "abc\n', "3: a quote is not closed"),
        ("X=$(ls\n", "1: $( is not closed"),
        ("A=(\n 1 2\n", "3: an array is not closed"),
        ("X=${Y\n", "1: ${ is not closed"),
        ('X=\'eval "$X"\'\neval "$X"\n', "1: more than 8 evals in one another"),
        ("( " * 33 + ":" + " )" * 33, "1: more than 32 subshells in one another"),
        ('X="$(' + '"$(' * 9999 + "x" + ')"' * 10000, "1: more than 32 quotes in one another"),
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
    "subshells": [*(f"V{n}=1" for n in range(10000)), *["(:)"] * 20000],
    "functions": [*(f"f{n}()\n(:)" for n in range(3000)), *["f1"] * 2000],
    "elements": ["A=(x)", *['A[0]+="${A[0]}"'] * 60, *["((N=N*2+1))"] * 9000],
    "a long name": [f"(({'a' * 200_000}))"],
    "loops without end": [
        "i=0", "while [ $i -lt 9 ]; do while [ 1 = 1 ]; do x=1; done; done", "while true; do sleep 1; done",
        f"f() {{ {'f; ' * 20}}}", "f",
    ],
}  # fmt: skip


@pytest.mark.timeout(20)
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
        ("${A:-" * 10000 + "x" + "}" * 10000, []),
        ("${N:-" * 10000 + "x" + "}" * 10000, ["more than 32 expansions are in one another"]),
        ("$(dirname " * 10000 + "x" + ")" * 10000, ["more than 32 expansions are in one another"]),
    ],
    ids=["cut", "defaults", "undecided defaults", "substitutions"],
)
def test_a_value_made_to_take_for_ever(project: Path, value: str, notes: list[str]) -> None:
    """Expansions in expansions and patterns over a long value end at a limit, which is said."""
    (training,) = read(project, f"A={'x' * 60000}\nX={value}\n{start('x=$X')}")
    assert [line.partition(": ")[2] if line.startswith("line") else line for line in training.notes] == notes


def test_line_ends_of_windows(project: Path) -> None:
    """The words are those that are meant, and a note says that bash takes the carriage returns as part of them."""
    (training,) = read(project, "N=4\r\npython3 -m verl.trainer.main_ppo \\\r\n a=$N\r\n")
    assert training.argv[3:] == ["a=4"]
    why = "run.sh has line ends of Windows, with which bash runs another command"
    assert training.notes == [f"{why}: sed -i 's/\\r$//' {project}/scripts/run.sh"]


def test_reading_runs_nothing(project: Path) -> None:
    """No command of a script is run by reading it, not in substitutions, not in arithmetic."""
    script = 'X=$(touch a) Y=`touch b`; Z=$((__import__("os").system("touch c")))\ntouch d > e\n'
    (training,) = read(project, script + start("x=$X$Y$Z ${Q:-$(touch f)}"))
    assert [path.name for path in project.rglob("*.sh")] == ["run.sh"]
    assert not [name for name in "abcdef" if (project / name).exists()]
    assert "touch" in training.argv[-1]


CONDITIONS = {
    "[ $A ]": False, "[ -z $A ]": True, "[ -n \"$B\" ]": True, "[ $B = 3 ]": True, "[ $B == 4 ]": False,
    "[ $B -ge 3 -a ! $B -gt 3 ]": True, "[[ $B -lt 3 || $B == 3 ]]": True, "[[ $M == *Qwen* ]]": True,
    '[[ $M == "*Qwen*" ]]': False, "[[ $M =~ ^org/Qwen[0-9]+ ]]": True, "[[ ! $M =~ Llama ]]": True,
    "(( B > 2 ))": True, "((B==4))": False, "[[ ( $B = 4 || $B = 3 ) && -n $M ]]": True, "[ $# -lt 2 ]": False,
    "[ ${#L[@]} -eq 3 ]": True, "! [ $B = 3 ]": False, "[[ -v B ]]": True, "test $B != 3": False,
    "[[ $M =~ ^[a-z]+/(Qwen|Llama)?[[:digit:]](-[0-9]+B)+$ ]]": True, '[[ $M =~ "Qwen." ]]': False,
    "[ -n $A ]": True, "[ $A = 3 ]": False, "[ $A != 3 ]": False, '[ "$A" != 3 ]': True,
    "[ ! $A ]": True, "[[ -n $A ]]": False, "[[ $1 == --fast ]]": True, "[ x$A = x ]": True,
    "[[ \"${B}\" -eq 3 && \"${NONE:-}\" != 1 ]]": True, "false": False,
}  # fmt: skip


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS.items(), ids=list(CONDITIONS))
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


CASE = "in\n a|b) X=1;;\n c*) X=2;;\n *) X=3;;\nesac\n" + start("x=$X")
LOOP = f"for p in a b; do\n %s\n {start('x=$p')}done\n{start('y=1')}"
UNDECIDED = "N depends on a condition (line %d), which was not decided"
# What a script runs when its arguments are a=1 b=2 c=3: the words of each training, and the last one's notes.
READ: dict[str, tuple[str, list[str], list[str] | None]] = {
    "every training of a script": (
        "torchrun -m verl.trainer.sft_trainer a=1 || exit 1\n" + start("b=2"), ["a=1", "b=2"], None,
    ),
    "a blank behind a backslash, where the command ends": (
        "python3 -m verl.trainer.main_ppo \\\n  a=1 \\ \n  b=2\n", ["a=1  "],
        ["line 2: a blank follows the backslash, so the command ends there"],
    ),
    "a shift in a loop": ("while [[ $# -gt 1 ]]; do shift; done\n" + start('"$@"'), ["c=3"], []),
    "a shift in a loop whose condition is not known": (
        'while [ -e "$1" ]; do shift 2; done\n' + start('"$@"'), ["a=1 b=2 c=3"],
        ["line 1: `shift` depends on a condition that is not known here"],
    ),
    "groups behind what is not decided, which end nothing": (
        "[ -f x ] || { echo none; exit 0; }\nN=1\n[ -f y ] && { N=2; }\n[ -f z ] && ( exit 0 )\n" + start("n=$N"),
        ["n=1"], [UNDECIDED % 3],
    ),
    "regular expressions made to take for ever, and none": (
        f"X={'a' * 4000}\n"
        + "".join(f"[[ $X =~ {regex} ]] && N=1\n" for regex in ("^(a|a)*b$", "^(a+)+b$", ".*.*.*.*=", "(a"))
        + start("n=${N:-0}"), ["n=1"], [UNDECIDED % 5],
    ),
    "a case of a word": (f"case b {CASE}", ["x=1"], []),
    "a case of a pattern": (f"case cde {CASE}", ["x=2"], []),
    "a case of another word": (f"case z {CASE}", ["x=3"], []),
    "a case that is not known": (f"case $(hostname) {CASE}", ["x=1", "x=2", "x=3"], None),
    "functions and loops": (
        "for n in 1 2 3; do ALL=$ALL,$n; done\ntrain() { local lr=$1; shift\n "
        + start('lr=$lr all=$ALL "$@"')
        + f"}}\ntrain 1e-6 a=1\ntrain 1e-5\nfor s in 7 8; do {start('seed=$s')}done\n",
        ["lr=1e-6 all=,1,2,3 a=1", "lr=1e-5 all=,1,2,3", "seed=7"], None,
    ),
    "the tenth argument": ("set -- a b c d e f g h i j\n" + start("x=${10} $12"), ["x=j a2"], []),
    "the length of an array": ("L=(a b c)\n" + start("x=${#L[@]}"), ["x=3"], []),
    "a variable's variable": ("N=M\nM=5\n" + start("x=${!N}"), ["x=5"], []),
    "a here-document as a value": ("S=$(cat <<EOF\none\nEOF\n)\n" + start("x=$S"), ["x=one"], []),
    "a here-document that a shell reads, and one that is text": (
        f"N=3\nbash -s <<EOF\n{start('n=$N')}EOF\ncat > later.sh <<'EOF'\n{start('n=$N')}EOF\n", ["n=3"], None,
    ),
    "an argument that is missing": (
        'if [ $# -lt 4 ]; then echo "usage: run.sh N"; exit 1; fi\n' + start("n=$4 m=${5:-4}"), ["n=$4 m=4"],
        ["$4 is not given", "line 1: called like this, the script ends here"],
    ),
    "a guard in a loop": (LOOP % "[ -f done-$p ] && continue", ["x=a", "y=1"], None),
    "a guard in a loop, or": (LOOP % "[ -d $p ] || continue", ["x=a", "y=1"], None),
    "a guard in a loop, a group": (LOOP % "[ -f done ] && { echo $p; continue; }", ["x=a", "y=1"], None),
    "a guard in a loop, a program": (LOOP % "grep -q $p done && break", ["x=a", "y=1"], None),
}  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("script", "trainings", "notes"), READ.values(), ids=list(READ))
def test_what_is_read(script: str, trainings: list[str], notes: list[str] | None, project: Path) -> None:
    """Each training is shown that may run, with its words; a note says what is not known, and where."""
    found = read(project, script, "a=1", "b=2", "c=3")
    assert [" ".join(training.argv[3:]) for training in found] == trainings
    assert notes in (None, found[-1].notes)


AS_BASH = {
    "a function with a subshell as its body": "f() (\n true\n)\nf\nT 1 $PWD\n",
    "elements of an array": (
        "A=(a b c)\ni=2\nT ${A[$i]} ${A[i-1]} ${A[-1]} ${A[9]:-none}\nA[1]=x; A[3]=y; A[0]+=z\nT ${A[@]} $A\n"
    ),
    "calculations": (
        "N=8\n((N++)); T $N\n((N=N*2)); T $N\n(( N += 2 )); T $N\nlet N=N-3 M=4 'K = N / 2'; T $N $M $K\n"
        "((N -= 17)) && T never\ndeclare -i I=3+4; T $I $((-7/2)) $((-7%3)) $((7/-2))\n"
    ),
    "a subshell has values of its own": (
        "N=3; A=(a); export E=1\n( N=4; A+=(b); set -- z; cd scripts; T $N ${A[@]} $1 $PWD; unset N )\n"
        "T $N ${A[@]} $1 $PWD\n"
    ),
    "a subshell that ends": "(T 1; exit 1; T never) || T 2\n( exit 0 ) && T 3\nf() { (return 1); T 4; }\nf\n",
    "a subshell in the background": "( cd scripts && T $PWD ) &\nwait; T $PWD\n",
    "a subshell behind a condition": "false && ( T never ); true || { T never; T never; }; true && { T 1; T 2; }\n",
    "a group and its status": "{ false; } || { T 1; }\n! { true; } && T never\n( true ) && { N=2; T $N; }\nT $N\n",
    "an exit in a function in a subshell": "f() { exit 1; T never; }\n( f; T never )\nT 1\n",
    "exec": "exec > log 2>&1\nexec 3> log\nexec {fd}> log\nX=1 exec 2> log\n( exec T 1; T never )\nexec T 2\nT never\n",
    "an exec that is not reached": "false && exec T never\ntrue | exec cat\nT 1\n",
    "words of a value": (
        'A=(1 2 3); B=\'a  b \'; C=\' \'\nT "${A[*]}" $B. .$B$A .$C. $C\nIFS=,; X="${A[*]}" Y="$@"; T "$X" "$*" "$Y"\n'
    ),
    "quotes in defaults": (
        "L=${A:-['x']}; T \"${A:-['console','wandb']}\" \"${A:-\"a  b\"}\" ${A:-\"/my data/y\"} ${A:-'q  r's} $L\n"
        'A=1; T ${A:+"c  d"} ${A:-"e f"} ${B:-${C:-"g  h"}} ${B:-a  b}\n'
    ),
    "quotes with a dollar": "S=$'a\\nb'\nT \"p=$S\" $'it\\'s' $'x\\ty\\\\' $(dirname $'a\\'b/c') \"$'d'\" $'e'\n",
    "patterns of case": (
        'X=ab\ncase $X in "a*") T 1;; a*) T 2;& x) T 3;; *) T 4;; esac\nP="a*"; case $X in "$P") T 5;; $P) T 6;; esac\n'
    ),
    "a line that ends behind a connector": "false &&\n\n T never\ntrue || # or\n T never\ntrue &&\n T 1\n",
    "local variables": (
        "N=1; A=(a); f() { local N=2 M=3 K; declare A=b; typeset -a L=(x); G=4; T $N ${K-none} ${M} $A; }\n"
        "f\nT $N ${M-none} ${L-none} $A $G\nf\n"
    ),
    "folders": (
        "cd scripts; T $PWD; cd -; T $PWD; cd -; T $PWD $OLDPWD\n"
        "pushd ..; pushd bin; T $PWD; popd; T $PWD; popd\nT $PWD\n"
    ),
    "here-documents and comments in a substitution": (
        "X=$(cat <<'EOF'\nDon't do (it\nEOF\n)\nY=$(dirname /a/b # it's the (folder\n)\n"
        'T "$X" $Y "$(cat <<E\na"$Y\nE\n)"\n'
    ),
    "quotes in a here-document": 'N=3\n/bin/bash -s <<EOF\nT a=\\"$N\\" "b\\\\\\\\" \\$((1 + 2))\nEOF\n',
    "what is before a loop": (
        ': "${X:=y}" "${A:=0}" "${B:=0}"\nwhile [ $# -gt 0 ]; do A="$A-$1"; shift; done; T $A\n'
        "set -- r s\nls || true\nwhile [ $# -gt 0 ]; do B=$B-$1; shift; done; T $B\n"
    ),
    "a body with a case": "function f ()\n(\n case $1 in (a) X=1;; b) (true); X=2;; esac; T $1 $X\n)\nf b\nf a\n",
}


@pytest.mark.parametrize("script", AS_BASH.values(), ids=list(AS_BASH))
def test_forms_of_the_shell(script: str, project: Path) -> None:
    """Each training has the words that bash gives it and its folder, without a note."""
    trainings = read(project, script.replace("T ", "python3 -m verl.trainer.main_ppo "), "p", "q")
    assert [note for training in trainings for note in training.notes] == []
    argv, folder = as_bash_runs(project, ["p", "q"])
    assert [word for it in trainings for word in [*it.argv, os.path.normpath(it.folder)]] == [*argv, folder]


def test_the_examples() -> None:
    """The examples in the docstrings of `_environ_of` and `assignment` are true."""
    assert [doctest.testmod(module).failed for module in (trainings, arithmetic)] == [0, 0]
