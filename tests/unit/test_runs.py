"""Run folders: what is recorded of a run, from its log, its pauses and its nodes' measurements."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from raydebug.check.output import record
from raydebug.check.stages import FAILED, SKIPPED, Outcome
from raydebug.check.target import Target
from raydebug.cluster.runner import LocalRunner
from raydebug.cluster.state import Cluster
from raydebug.errors import RaydebugError
from raydebug.findings import Finding
from raydebug.jobs import memory_samples, recorder
from raydebug.jobs.memory_samples import Memory
from raydebug.jobs.phases import MOST_STEPS, Phases
from raydebug.jobs.recorder import Recorder, _trainer_of
from raydebug.report.write import write_report
from raydebug.runs import folder as run_folder
from raydebug.runs.folder import RunFolder, list_runs, load_run
from raydebug.runs.record import CHECK, NODE, RUN, Change, GpuLoad, Phase, ProcessMemory, Run
from raydebug.trainers.openrlhf import OPENRLHF
from raydebug.trainers.verl.trainer import VERL
from runs import wait_for

if TYPE_CHECKING:
    from raydebug.cluster.dashboard import Dashboard

LOG = """\
2026-11-21 19:36:50,665 INFO worker.py:2029 -- Connected to Ray cluster. View the dashboard
(TaskRunnerV1 pid=1) INFO:2026-11-21 19:37:08,090:create worker group dict_keys(['actor_rollout'])
(WorkerDict pid=2) Qwen2ForCausalLM contains 123.46K parameters
(TaskRunnerV1 pid=1) INFO:2026-11-21 19:37:21,821:actor and ref model engine initialized
(vLLMHttpServer pid=3) ['serve',
(EngineCore pid=4) INFO 11-21 19:37:40 [backends.py:9] torch.compile takes 12.50 s in total
(TaskRunnerV1 pid=1) LLMServerManager: ['127.0.0.1:42555']
(TaskRunnerV1 pid=1) step:1 - actor/pg_loss:-0.32 - x/y:np.float64(1e-05) - timing_s/step:4.5
(TaskRunnerV1 pid=1) step:1 - actor/pg_loss:-0.32 - timing_s/step:4.5
(TaskRunnerV1 pid=1) step:2 - actor/pg_loss:nan - critic/rewards/mean:np.float64(0.5) - timing_s/step:2.0
""".splitlines()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster("c", "", "compose", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0)


def about(**more: Any) -> dict[str, Any]:
    variables = {"RAYDEBUG_PROFILE": "debug", "HF_TOKEN": "hf_secret"}
    began_ms = (time.time() - 60) * 1000
    return {"submission_id": "raydebug-1", "start_time": began_ms, "runtime_env": {"env_vars": variables}, **more}


PAUSE: Any = {
    "id": "3", "kind": "breakpoint", "file": "/x/train.py", "line": 7, "function": "f", "pid": 9, "since_s": 1.0,
}  # fmt: skip


def test_phases_of_a_training() -> None:
    """The lines by which verl ends its phases give a waterfall; what vLLM says to have taken lies within it."""
    phases = Phases(100.0)
    for second, line in enumerate(LOG, start=1):
        phases.take(line, 100.0 + second * 10)
    assert [(span.name, span.start_s, span.end_s) for span in phases.spans(120.0)] == [
        ("driver: imports, Ray", 0.0, 10.0),
        ("trainer: imports, data", 10.0, 20.0),
        ("workers: start, imports", 20.0, 30.0),
        ("model: load, FSDP", 30.0, 40.0),
        ("rollout server: start, imports", 40.0, 50.0),
        ("vLLM: engine init", 50.0, 70.0),
        ("first step", 70.0, 80.0),
        ("training", 80.0, 120.0),
        ("vLLM: compile", 47.5, 60.0),
    ]
    steps = [(step["step"], step["end_s"], step["seconds"]) for step in phases.steps]
    assert steps == [(1, 80.0, 4.5), (2, 100.0, 2.0)]
    assert phases.steps[0]["metrics"] == {"actor/pg_loss": -0.32, "timing_s/step": 4.5}
    assert phases.steps[1]["metrics"]["critic/rewards/mean"] == 0.5


def test_phases_of_a_program_that_is_no_training() -> None:
    """Any program has a start and a run; while it goes on, the last phase is open."""
    phases = Phases(0.0)
    assert phases.spans(None) == [Phase(name="start", start_s=0.0)]
    phases.take(LOG[0], 3.0)
    assert phases.spans(None)[-1] == Phase(name="run", start_s=3.0)


def test_phases_of_the_own_trainer() -> None:
    """Where the trainer of a command is known, itself or by a script, no line of another one ends a phase."""
    line, ended = "(TaskRunner pid=1) create worker group", "trainer: imports, data"
    for trainer, ends in ((None, True), (VERL, True), (OPENRLHF, False)):
        phases = Phases(0.0, trainer=trainer)
        phases.take(line, 1.0)
        assert (ended in phases.ended) == ends


def test_trainer_of_a_command(tmp_path: Path) -> None:
    """A run's trainer is read from its command; without one, or with a script that cannot be read, it is unknown."""
    (tmp_path / "train.sh").write_text("exec python3 -m openrlhf.cli.train_ppo_ray $@\n")
    assert _trainer_of(["bash", "train.sh"], tmp_path) is OPENRLHF
    assert _trainer_of(["python", "-m", "verl.trainer.main_ppo"], tmp_path) is VERL
    assert _trainer_of(["python", "x.py"], tmp_path) is _trainer_of(["bash", "none.sh"], tmp_path) is None


def test_memory_of_processes_and_gpus() -> None:
    """The job's workers are recognised by title, others' are left out; GPUs have use and load, in MiB and percent."""
    memory = Memory()
    statistics = {
        "mem": [4 << 30, 1 << 30, 75.0, 3 << 30],
        "workers": [{"pid": 7, "memoryInfo": {"rss": 300 << 20}}, {"pid": 8, "memoryInfo": {"rss": 1}}, {"pid": 9}],
        "gpus": [{"index": 0, "name": "H100", "memoryUsed": 1024, "memoryTotal": 81559, "utilizationGpu": 37}],
    }
    memory.take("10.0.0.1", statistics, 2.04, {7: "WorkerDict rank 0"})
    memory.take("10.0.0.1", {}, 4.0, {})
    assert memory.describe() == (
        [
            ProcessMemory(process="all processes of the node", node="10.0.0.1", samples=[(2.0, 3072.0), (4.0, 0.0)]),
            ProcessMemory(process="WorkerDict rank 0", node="10.0.0.1", samples=[(2.0, 300.0)]),
        ],
        [GpuLoad(name="GPU 0: H100", node="10.0.0.1", total_mib=81559.0, samples=[(2.0, 1024.0, 37.0)])],
    )


def node_statistics(at: int) -> dict[str, Any]:
    """Return what the agent of a node says: eight workers, eight GPUs; at 1,000 one peak of both."""
    used = 60_000 if at == 1_000 else 20_000
    workers = [{"pid": pid, "memoryInfo": {"rss": used * 2**20}} for pid in range(8)]
    gpu = {"name": "H100", "memoryTotal": 81559, "memoryUsed": used, "utilizationGpu": 100 * (at % 2)}
    return {"mem": [0, 0, 0, used * 2**20], "workers": workers, "gpus": [{"index": one, **gpu} for one in range(8)]}


def test_names_of_workers_are_asked_for_once(cluster: Cluster) -> None:
    """Ray's table of actors is read when a worker is new or has another name, not for each of its methods."""
    names = {7: "ray::IDLE"}
    actors: list[dict[str, Any]] = []
    asked = []

    class Ray:
        def job(self, _: str) -> dict[str, Any]:
            return {"job_id": "01000000"}

        def nodes(self) -> list[dict[str, str]]:
            return [{"node_id": name, "node_ip": f"10.0.0.{name}", "state": "ALIVE"} for name in "012"]

        def node_statistics(self, node_id: str) -> dict[str, Any]:
            if node_id == "0":
                raise RaydebugError("no answer", cause="it has just ended", fix="wait", code="x.y")
            workers = [{"pid": pid, "cmdline": [name], "memoryInfo": {"rss": 2**20}} for pid, name in names.items()]
            return {"workers": workers if node_id == "1" else workers[:1]}

        def actors(self, _: str) -> list[dict[str, Any]]:
            asked.append(dict(names))
            return actors

    made = Recorder(cluster, about(), ["python", "train.py"])
    made._changes = [{}]

    def sample() -> int:
        asked.clear()
        made._sample(cast("Dashboard", Ray()))
        return len(asked)

    assert [sample(), sample()] == [1, 0]
    names[7] = "ray::Trainer.__init__"  # it is in the table when that has returned
    assert [sample(), sample()] == [1, 0]
    names[7] = "ray::Trainer.fit"
    actors.append({"pid": 7, "node_id": "1", "class_name": "Trainer"})
    assert [sample(), sample()] == [1, 0]
    names[7] = "ray::Trainer.save"
    assert sample() == 0
    nodes = [series.node for series in made._memory.describe()[0] if series.process == "Trainer"]
    assert nodes == ["10.0.0.1"]  # pid 7 of the other is another


@pytest.mark.parametrize(("node_id", "held"), [("n1", 60), ("n2", 1), (None, 0)])
def test_memory_of_a_process_that_has_ended(cluster: Cluster, node_id: str | None, held: int) -> None:
    """A death certificate has the memory of its own process: pods number their processes alike."""

    class Ray:
        def nodes(self) -> list[dict[str, str]]:
            return [{"node_id": name, "node_ip": name, "state": "ALIVE"} for name in ("n2", "n1")]

        def node_statistics(self, node: str) -> dict[str, Any]:
            rss = {"n1": 60, "n2": 1}[node]
            return {"workers": [{"pid": 77, "cmdline": ["ray::Trainer"], "memoryInfo": {"rss": rss}}]}

        def job(self, _: str) -> dict[str, str]:
            return {}

    made = Recorder(cluster, about(), ["python", "train.py"])
    made._changes = [{}]
    made._sample(cast("Dashboard", Ray()))
    assert made._progress_of({"pid": 77, "node_id": node_id})[0] == held


def test_a_long_run_has_a_small_record(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    """However long it runs, a record has at most so many samples; the highest memory and the mean load stay."""
    monkeypatch.setattr(memory_samples, "MOST_SAMPLES", 2_000)
    memory = Memory()
    titles = {pid: f"WorkerDict rank {pid}" for pid in range(8)}
    for at in range(5_000):
        memory.take("10.0.0.1", node_statistics(at), 2.0 * at, titles)
        assert memory.count <= 2_000
    processes, gpus = memory.describe()
    assert sum(len(one.samples) for one in (*processes, *gpus)) == memory.count > 500
    for samples in [one.samples for one in (*processes, *gpus)]:
        moments = [sample[0] for sample in samples]
        assert moments[0] == 0
        assert [round(later - at) for at, later in pairwise(moments)] == [memory.every_s] * (len(moments) - 1)
        assert max(sample[1] for sample in samples) == 60_000
        assert [sample[1] for sample in samples].count(60_000) == 1
    loads = [sample[2] for sample in gpus[0].samples]
    assert all(abs(load - 50) <= 1 for load in loads[:-1])


def test_processes_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many processes have few samples each, and later ones none: a record of them is bounded too."""
    monkeypatch.setattr(memory_samples, "MOST_SAMPLES", 100)
    monkeypatch.setattr(memory_samples, "MOST_SERIES", 50)
    monkeypatch.setattr(memory_samples, "LEAST_OF_SERIES", 4)
    memory = Memory()
    for at in range(500):
        memory.take(f"10.0.0.{at}", {}, 2.0 * at, {})
        memory.take("10.0.0.1", {}, 2.0 * at + 1, {})
    assert len(memory.processes) == 50
    assert memory.count == sum(len(one.samples) for one in memory.processes.values()) <= 200


def test_a_long_training_has_few_steps() -> None:
    """Of a long training the first and the last steps are kept, and between them one of every so many."""
    phases = Phases(0.0)
    for step in range(1, 50_001):
        phases.take(f"(TaskRunner pid=1) step:{step} - actor/pg_loss:{step} - timing_s/step:2.0", 2.0 * step)
        assert len(phases.steps) <= MOST_STEPS
    kept = [step["step"] for step in phases.steps]
    assert phases.step_count == 50_000
    assert kept[:10] == [*range(1, 11)]
    assert kept[-100:] == [*range(49_901, 50_001)]
    assert max(later - one for one, later in pairwise(kept)) <= 2 * 50_000 / (MOST_STEPS / 2)
    assert len(kept) > MOST_STEPS / 4
    assert {step["seconds"] for step in phases.steps} == {2.0}
    assert phases.steps[500]["metrics"]["actor/pg_loss"] == kept[500]


def test_a_record_of_steps(cluster: Cluster) -> None:
    """Steps are in the record as they were logged, with their number; a line without end costs bounded memory."""
    made = Recorder(cluster, about(), ["python", "train.py"])
    made.take_log("".join(f"{line}\n" for line in LOG))
    for _ in range(40):
        made.take_log("x" * 100_000)
    assert len(made._rest) == recorder.REST_CHARS
    made.end("SUCCEEDED", 0, None)
    run = load_run("raydebug-1")
    assert run.step_count == 2
    assert (run.steps[0]["step"], run.steps[0]["metrics"]["actor/pg_loss"]) == (1, -0.32)
    assert math.isnan(run.steps[1]["metrics"]["actor/pg_loss"])


def test_memory_of_children() -> None:
    """The children of a worker, and theirs, are measured by program; those of another process are not."""
    argv = ["bash", "-c", "bash -c 'sleep 30; true'; true"]
    workers = [subprocess.Popen(argv, start_new_session=True) for _ in range(2)]
    try:
        made = Memory(with_children=True)
        rows = [{"pid": worker.pid, "memoryInfo": {"rss": memory_samples.MIB}} for worker in workers]
        measured = psutil.Process(workers[0].pid)
        wait_for(lambda: "sleep" in [child.name() for child in measured.children(recursive=True)], "the grandchild")
        made.take("n", {"workers": rows}, 1.0, {workers[0].pid: "Actor"})
        names = {process for process, _ in made.processes}
        assert names == {NODE, "Actor", "bash of Actor", "sleep of Actor"}
        assert made.processes["bash of Actor", "n"].samples[0][1] >= 1
    finally:
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def test_log_of_the_job(cluster: Cluster) -> None:
    """What Ray says of the cluster every few seconds is no output of the job; a progress bar without a line end is."""
    made = Recorder(cluster, about(), ["python", "train.py"])
    made.take_log("step 1\n")
    before = made.log_chars
    made.take_log("\x1b[33m(raylet)\x1b[0m [2026-01-02 E 1 2] (raylet) m.cc:1: /tmp/ray is over 95% full\n")
    made.take_log("(raylet, ip=10.0.0.2) a worker\n(autoscaler +8s) Tip: use `ray status`\n")
    assert made.log_chars == before
    made.take_log("\r 1%")
    assert made.log_chars > before


class Logs:
    """A dashboard of two nodes; the head has the file that the driver of job raydebug-1 has written."""

    def nodes(self) -> list[dict[str, Any]]:
        return [{"node_id": "w", "is_head_node": False}, {"node_id": "h", "is_head_node": True}]

    def log_names(self, node_id: str) -> list[str]:
        return ["raydebug-profile-raydebug-1.json"] if node_id == "h" else []

    def log_text(self, node_id: str, name: str) -> str:
        # a change whose words no reader of a log could take apart
        assert (node_id, name) == ("h", "raydebug-profile-raydebug-1.json")
        return json.dumps([{"key": "a.b", "old": "x -> y (z)", "new": "2: 3", "why": "two\nare enough (here)"}])


def test_recorder(cluster: Cluster) -> None:
    """A run leaves its command, its profile's changes, its pauses and its end; values of secret variables stay out."""
    made = Recorder(cluster, about(), ["python", "train.py"])
    assert load_run().status == "running"
    made.take_log("raydebug: the profile 'debug' changes 1 settings:\n  trainer.total_training_steps: null -> 2 (two ")
    made.take_log("are enough)\n")
    made.read_changes(cast("Dashboard", Logs()))
    for listed in ([PAUSE], [PAUSE], []):
        made.take_pauses(listed)
    made.end("FAILED", 1, {"kind": "ValueError", "text": "x", "who": "driver", "place": ""})
    run = load_run("raydebug-1")
    assert (run.status, run.exit_code, (run.first_error or {})["kind"]) == ("failed", 1, "ValueError")
    change = {"key": "a.b", "old": "x -> y (z)", "new": "2: 3", "why": "two\nare enough (here)"}
    assert (run.changes, run.document["changes"]) == ([Change(**change)], [change])
    (one,) = run.pauses
    assert one.where == "/x/train.py:7 f"
    assert (one.end_s or 0.0) >= one.start_s
    assert run.variables["HF_TOKEN"] == "(hidden)"
    path = run.folder
    assert "hf_secret" not in (path / "run.json").read_text()
    assert (path / "job.log").read_text().endswith("are enough)\n")
    assert {entry.stat().st_mode & 0o777 for entry in path.iterdir()} == {0o600}
    assert path.stat().st_mode & 0o777 == 0o700


def test_gateway_that_restarts(cluster: Cluster) -> None:
    """A pause that is not listed while the gateway restarts is one pause of the record, and open."""
    made = Recorder(cluster, about(), ["x"])
    for listed in ([PAUSE], [], [{**PAUSE, "since_s": 4.0}]):
        made.take_pauses(listed)
    assert made.is_paused
    made.end("SUCCEEDED", 0, None)
    assert [one.id for one in load_run("raydebug-1").pauses] == ["3"]


def test_clock_that_is_set(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that is set two hours ahead during a run moves nothing in its record."""
    made, real = Recorder(cluster, {**about(), "start_time": time.time() * 1000}, ["x"]), time.time
    made.take_pauses([PAUSE])
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    made.end("SUCCEEDED", 0, None)
    run = load_run("raydebug-1")
    (one,) = run.pauses
    assert (one.end_s or 1e9) - one.start_s < 3600
    assert (run.took_s or 1e9) < 3600


def test_disk_that_is_full(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that cannot be written is said once; the run goes on, and what can be written later is."""
    made = Recorder(cluster, about(), ["x"])
    write, add_log = RunFolder.write, RunFolder.add_log

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write", full)
    monkeypatch.setattr(RunFolder, "add_log", full)
    made.take_log("line\n")
    made.take_log("another\n")
    monkeypatch.setattr(RunFolder, "write", write)
    monkeypatch.setattr(RunFolder, "add_log", add_log)
    made.take_log("later\n")
    made.end("SUCCEEDED", 0, None)
    assert capsys.readouterr().err == "note: the record of this run is not whole: [Errno 28] No space left on device\n"
    assert load_run().status == "succeeded"
    assert (load_run().folder / "job.log").read_text() == "later\n"
    monkeypatch.setattr(recorder, "RunFolder", full)
    Recorder(cluster, about(), ["x"]).end("SUCCEEDED", 0, None)


def test_finding_a_run(tmp_path: Path) -> None:
    """A run is named by its id, the beginning of it, its path, or `last`; what cannot be read says why."""
    with pytest.raises(RaydebugError, match="no run is recorded"):
        load_run()
    for number, name in enumerate(("raydebug-1a", "raydebug-1b", "raydebug-2")):
        made = RunFolder(name)
        made.write(Run(id=name, started=number))
        os.utime(made.path / "run.json", (number, number))
    assert load_run().id == "raydebug-2"
    assert load_run("raydebug-1b").id == "raydebug-1b"
    assert load_run(str(run_folder.runs_dir() / "raydebug-1a")).id == "raydebug-1a"
    assert [run.id for run in list_runs()] == ["raydebug-1a", "raydebug-1b", "raydebug-2"]
    with pytest.raises(RaydebugError, match="several runs begin with 'raydebug-1'"):
        load_run("raydebug-1")
    with pytest.raises(RaydebugError, match="there is no run 'x'"):
        load_run("x")
    for text in ("", "{", "[]", "{}", json.dumps({"version": 99})):
        (run_folder.runs_dir() / "raydebug-2" / "run.json").write_text(text)
        with pytest.raises(RaydebugError, match="the record of run 'raydebug-2' cannot be read"):
            load_run("raydebug-2")
    assert len(list_runs()) == 2


def test_next_step_after_a_failure() -> None:
    """A crash is opened, another failure is diagnosed; only a run that is not the last one is named."""
    for number, name in enumerate(("r1", "r2")):
        made = RunFolder(name)
        made.write(Run(id=name, started=number))
        os.utime(made.path / "run.json", (number, number))
    made.add_snapshot("c1", b"")
    assert run_folder.next_step("r2") == "next: raydebug open"
    assert run_folder.next_step("r2", "--pick", "2") == "next: raydebug open --pick 2"
    assert run_folder.next_step("r1") == "next: raydebug diagnose r1"


def test_old_runs_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many folders of a kind are kept: the oldest go when a new one begins; checks push no run out."""
    monkeypatch.setattr(run_folder, "KEPT", 2)
    for number, name in enumerate(("r0", "r1", "check-2", "r3", "r4", "check-5", "check-6")):
        made = RunFolder(name)
        made.write(Run(id=name, started=number))
        os.utime(made.path / "run.json", (number, number))
    run_folder.remove_oldest(RUN)
    assert [run.id for run in list_runs()] == ["check-2", "r3", "r4", "check-5", "check-6"]
    run_folder.remove_oldest(CHECK)
    assert [run.id for run in list_runs()] == ["r3", "r4", "check-5", "check-6"]


def test_check_leaves_a_folder(tmp_path: Path) -> None:
    """A check is recorded with its stages as phases and its findings, no secret in its command, and has a page."""
    command = ("python", "-m", "verl.trainer.main_ppo", "trainer.wandb.api_key=x1y2z3")
    target = Target(command, None, tmp_path, LocalRunner(sys.executable), {}, {}, profile="debug")
    finding = Finding("data.column-missing", "error", "no column 'prompt'", "verl reads it", "data.prompt_key=question")
    outcomes = [
        Outcome("env", SKIPPED, 0.0, 0.3, reason="it passed before"),
        Outcome("data", FAILED, 1.5, 10.0, [finding]),
        Outcome("model", SKIPPED, 0.0, 30.0, reason="stage data failed"),
    ]
    record(target, outcomes, 1_800_000_000.0)
    (run,) = list_runs()
    assert (run.kind, run.status, run.exit_code) == ("check", "failed", 1)
    assert run.phases == [Phase(name="stage data", start_s=0.0, end_s=1.5)]
    assert run.findings == [{**finding.as_json(), "stage": "data"}]
    page = write_report(run).read_text()
    assert "data.column-missing" in page
    assert "changed nothing" not in page
    assert "x1y2z3" not in page + json.dumps(run.document)
