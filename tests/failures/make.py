"""Make the logs of tests/failures again: `python tests/failures/make.py [NAME...]`, in the flavour cpu and as root.

Each case of cases.toml is a shell script that fails with the real programs, or ends well. It runs in namespaces of its
own (util-linux `unshare`): its processes, mounts and full disks end with it, all ports are free, and no network is
reached. Paths of this machine are replaced; nothing else of what the programs wrote is changed.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LOGS = HERE / "logs"
LIMIT_S = 60
GZIP_FROM_BYTES = 30_000
KEPT = Path("/var/tmp/raydebug-failures")  # from run to run: environments, model, data; a case has its own /tmp
BUILD = """\
import sys
from pathlib import Path
from raydebug.tiny.dataset import build_dataset
from raydebug.tiny.model import build_model

build_model(Path(sys.argv[1], "model"))
build_dataset(Path(sys.argv[1], "data"))
"""
VARIABLES = {
    "HOME": "/home/user",
    "LANG": "C.UTF-8",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else vLLM compiles for half a minute
    "PYTHONDONTWRITEBYTECODE": "1",
}
COLLECT = 'mkdir -p "$KEPT"; cd /tmp/ray/session_latest/logs && cp {patterns} "$KEPT"'


def main(names: list[str]) -> int:
    """Make the logs of some cases, or of all that are not there."""
    cases = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="failures-", dir="/var/tmp") as folder:
        tiny = Path(folder, "tiny")
        build = "from pathlib import Path as P; from raydebug.tiny.model import build_model as m; import sys; "
        build += (
            "from raydebug.tiny.dataset import build_dataset as d; p = P(sys.argv[1]); m(p / 'model'); d(p / 'data')"
        )
        subprocess.run([sys.executable, "-c", build, str(tiny)], check=True)
        for name in names or [one for one in cases if not (LOGS / one).exists() and not any(LOGS.glob(f"{one}.log*"))]:
            run = Path(folder, name)
            shutil.copytree(tiny, run)
            for file in (*HERE.glob("*_cases.py"), HERE / "train.sh"):
                shutil.copy(file, run)
            print(f"{name}: {record(name, cases[name], run)}", flush=True)
            shutil.rmtree(run)
    return 0


def record(name: str, case: dict[str, object], run: Path) -> str:
    """Run a case, and write its log or its folder of logs."""
    kept, log = run / "kept", run / "job.log"
    environ = {**VARIABLES, "RUN": str(run), "KEPT": str(kept), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    if "packages" in case:
        other = make_environment(str(case.get("python", "3.11")), list(case["packages"]))  # type: ignore[call-overload]
        environ["OTHER"] = str(other)
        environ["OTHER_PACKAGES"] = str(next(other.glob("lib/python3*/site-packages")))
    script = f"source {HERE}/sandbox.sh\n(cd {run}\n{case['run']}\n)\ncode=$?\n"
    if "keep" in case:
        script += COLLECT.format(patterns=" ".join(case["keep"])) + "\n"  # type: ignore[call-overload]
    script += "exit $code\n"
    options = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--uts")
    with log.open("wb") as output:
        argv = ["unshare", *options, "bash", "-c", script]
        process = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            end = f"exit code {process.wait(float(str(case.get('limit_s', LIMIT_S))))}"
        except subprocess.TimeoutExpired:
            process.kill()  # and with it the namespace
            process.wait()
            end = "ended at its limit"
    for cgroup in Path("/sys/fs/cgroup").glob("*/failures-case"):
        cgroup.rmdir()
    shutil.rmtree(LOGS / name, ignore_errors=True)
    for old in LOGS.glob(f"{name}.log*"):
        old.unlink()
    if "keep" in case:
        for file in (log, *sorted(kept.glob("*"))):
            write(LOGS / name / file.name, file.read_bytes(), run)
    else:
        write(LOGS / f"{name}.log", log.read_bytes(), run)
    return end


def write(file: Path, text: bytes, run: Path) -> None:
    """Write a log without this machine's paths, compressed if it is long; an empty one is left out."""
    for path, neutral in {
        str(run): "/home/user/run",
        str(HERE): "/home/user/run",
        sys.prefix: "/home/user/venv",
        sys.base_prefix: "/usr/local",
        str(Path(sys.base_prefix).parent): "/usr",
        str(KEPT): "/home/user",
    }.items():
        text = text.replace(path.encode(), neutral.encode())
    if not text.strip():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    if len(text) < GZIP_FROM_BYTES:
        file.write_bytes(text)
    else:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(text, mtime=0))


def make_environment(python: str, packages: list[str]) -> Path:
    """Return an environment with these packages, made with uv where it is not there."""
    folder = KEPT / f"venv-{python}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    if not (folder / "made").exists():
        base = sys.executable if python == sysconfig.get_python_version() else python
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", base, str(folder)], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", str(folder), *packages]
        subprocess.run(install, check=True)
        (folder / "made").touch()
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
