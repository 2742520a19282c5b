"""What one can ask of this repository; `nox -l` is its table of contents."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

CPU_PYTHON = "3.11"  # what env/cpu.lock is made for
# What the processes of a training import: loading it once in a new environment leaves bytecode for just that (20 s on
# two cores; compiling all 27,000 files of the flavour takes a minute).
TRAINING_MODULES = (
    "ray",
    "torch._dynamo",
    "transformers.models.qwen2.modeling_qwen2",
    "verl.experimental.agent_loop",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.model_executor.models.qwen2",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
SCRIPTS = ("ci/docker-engine", "ci/base-image", "ci/chromium", "ci/build-twice", "ci/package-access", ".ci/run")
YAML = ("docker-compose.yml", "docker-compose.cpu.yml", "docker-compose.hosts.yml", ".devcontainer", "env", ".yamllint")
GPU, CPU, HOSTS = "docker-compose.yml", "docker-compose.cpu.yml", "docker-compose.hosts.yml"
DEV, DEV_CPU = ".devcontainer/docker-compose.dev.yml", ".devcontainer/docker-compose.dev-cpu.yml"
COMPOSE_COMBINATIONS = ((GPU,), (GPU, CPU), (GPU, HOSTS), (GPU, CPU, HOSTS), (GPU, DEV), (GPU, CPU, DEV, DEV_CPU))
SOURCES = {"PYTHONPATH": "src"}  # for sessions that read raydebug and need no installed one


@nox.session
def lint(session: nox.Session) -> None:
    """Style, import contracts, and locks that still fit what they were made from (seconds)."""
    install(session, "dev", project=False)
    session.run("ruff", "check", "--no-cache", ".")  # its cache does not see that a module has moved
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-logo", "--no-cache", env=SOURCES)
    session.run("python", "env/lock.py", "check", env=SOURCES)
    session.run("hadolint", "Dockerfile")
    session.run("shellcheck", *SCRIPTS)
    session.run("yamllint", "--strict", *YAML)
    if shutil.which("docker"):
        for files in COMPOSE_COMBINATIONS:
            options = [option for file in files for option in ("-f", file)]
            argv = ("docker", "compose", *options, "--profile", "job", "config", "-q")
            session.run(*argv, external=True, env={"RAYDEBUG_TOKEN_FILE": "/dev/null"})
    else:
        session.warn("compose files are not checked here: there is no docker")


@nox.session
def types(session: nox.Session) -> None:
    """Types, strictly, with mypy."""
    install(session, "core", "dev", project=False)
    session.run("mypy", *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """Tests that need neither Ray nor Docker; many pause real processes (minutes)."""
    install(session, "core", "dev")
    run_pytest(session, "tests/unit")


@nox.session
def ray(session: nox.Session) -> None:
    """Tests on a real Ray cluster in this environment (minutes)."""
    install(session, "core", "dev")
    run_pytest(session, "tests/ray")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit and ray in one run of pytest."""
    install(session, "core", "dev")
    run_pytest(session, "tests/unit", "tests/ray")


@nox.session
def editors(session: nox.Session) -> None:
    """Clients that others wrote against the gateway: VS Code's (npm), debugpy's, Neovim's (NVIM_DAP=its checkout)."""
    install(session, "core", "dev")
    run_pytest(session, "tests/editors")


@nox.session
def wheels(session: nox.Session) -> None:
    """Our table of verl's keys against the config in the wheel of each release (downloads 11 MB, pinned by hash)."""
    from uv import find_uv_bin

    install(session, "core", "dev")
    session.env["RAYDEBUG_TEST_UV"] = find_uv_bin()
    run_pytest(session, "tests/wheels")


@nox.session
def browser(session: nox.Session) -> None:
    """The run report in a real Chromium, on the PATH or CHROMIUM=; axe-core (npm) looks it over."""
    install(session, "core", "dev")
    run_pytest(session, "tests/browser")


@nox.session(python=CPU_PYTHON)
def cpu(session: nox.Session) -> None:
    """Tests of verl and vLLM on this CPU: the plug-in's contracts, the tiny models (minutes)."""
    install(session, "cpu", "dev")
    run_pytest(session, "tests/cpu")


@nox.session(python=CPU_PYTHON)
def demo(session: nox.Session) -> None:
    """See it: a verl GRPO training on this CPU stops at breakpoints and is looked at (`-- --interactive`)."""
    started = time.monotonic()
    if install(session, "cpu", compile_all=False):
        load = f"import {', '.join(TRAINING_MODULES)}"
        session.run("python", "-c", load, env={"VERL_PLATFORM": "cpu", "RAY_AUTH_MODE": "disabled"}, silent=True)
    install_s = time.monotonic() - started
    session.log(f"environment ready in {install_s:.1f} s")
    session.run("python", "-m", "raydebug.demo", *session.posargs, env={"RAYDEBUG_DEMO_INSTALL_S": f"{install_s:.1f}"})


@nox.session
def compose(session: nox.Session) -> None:
    """Tests on real containers; needs a Docker engine and builds the image core (minutes)."""
    install(session, "core", "dev")
    session.run("raydebug", "image", "--flavour", "core")
    run_pytest(session, "tests/compose")


@nox.session
def image(session: nox.Session) -> None:
    """Build an image (`-- --flavour cpu`)."""
    install(session, "core")
    session.run("raydebug", "image", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure pauses beside stock Ray and debugpy; one table."""
    install(session, "core", "dev")
    session.run("python", "-m", "bench", *session.posargs)


@nox.session(venv_backend="none")
def lock(session: nox.Session) -> None:
    """Make env/*.lock from env/*.in (`-- --upgrade` for newer versions, `-- cpu` for one flavour)."""
    lock_tool(session, "make", *session.posargs)


def run_pytest(session: nox.Session, *folders: str) -> None:
    """Run pytest over folders, or over what is named behind `--` (`-- tests/unit/test_pins.py`)."""
    named = any(Path(argument.partition("::")[0]).exists() for argument in session.posargs)
    session.run("pytest", *(() if named else folders), *session.posargs)


def install(session: nox.Session, *flavours: str, project: bool = True, compile_all: bool = True) -> bool:
    """Make the session's environment hold exactly these locks, and raydebug as a user installs it.

    Locks that have not changed since cost nothing. raydebug itself is not installed as editable: its .pth file has to
    lie in site-packages, where every Python of the environment reads it.

    Returns:
        Whether the environment was made anew.
    """
    # Ten processes import the same packages: they must find bytecode, and may write what is missing.
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    locks = [f"env/{flavour}.lock" for flavour in flavours]
    made_of = hashlib.sha256(b"".join(Path(lock).read_bytes() for lock in locks)).hexdigest()
    stamp = Path(session.virtualenv.location) / "raydebug-locks.sha256"
    anew = not stamp.exists() or stamp.read_text() != made_of
    if anew:
        stamp.unlink(missing_ok=True)
        torch = (lock_tool(session, "torch-options") or "").splitlines() if "cpu" in flavours else []
        compiled = ("--compile-bytecode",) if compile_all else ()
        session.run("uv", "pip", "sync", "--quiet", "--require-hashes", *compiled, *torch, *locks)
        stamp.write_text(made_of)
    if project:
        build = ("--build-constraints", "env/dev.lock")  # hatchling as locked
        session.run("uv", "pip", "install", "--quiet", "--no-deps", "--reinstall-package", "raydebug", *build, ".")
    return anew


def lock_tool(session: nox.Session, *arguments: str) -> str | None:
    """Run env/lock.py with the Python that runs nox: it has pip, whose settings say where this machine's wheels are.

    Returns:
        What it printed, for a question; None when it shows its work.
    """
    from uv import find_uv_bin  # the uv beside nox, not the one on PATH

    asks = arguments[0] != "make"
    env = {**SOURCES, "RAYDEBUG_UV": find_uv_bin()}
    answer = session.run(sys.executable, "env/lock.py", *arguments, env=env, external=True, silent=asks, log=not asks)
    return str(answer) if asks else None
