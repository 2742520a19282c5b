"""What one can ask of this repository; `nox -l` is its table of contents."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "none"  # sessions share environments, which use() makes
nox.options.sessions = ["lint", "types", "tests"]

CPU_PYTHON = "3.11"  # what env/cpu.lock is made for
OLDER: dict[str, dict[str, list[str]]] = tomllib.loads(Path("env/compat.toml").read_text(encoding="utf-8"))
# The case table of tests/ray, one of each kind: 90 s on two cores. RAYDEBUG_TEST_LONG=1 runs these files whole.
CASE_TABLE = (
    "tests/ray/test_contracts.py",
    "tests/ray/test_ray_versions.py",
    "tests/ray/test_cluster.py::test_nothing_listens_beyond_loopback",
    *(
        f"tests/ray/test_cases.py::test_breakpoint[{case}]"
        for case in ("task", "nested", "actor", "async_actor", "actor_thread", "driver", "child")
    ),
    "tests/ray/test_cases.py::test_post_mortem[pm_actor]",
    "tests/ray/test_breaks.py::test_breaks_go_with_their_job",
    "tests/ray/test_running.py::test_attach_to_a_process_that_works[actor]",
    "tests/ray/test_stock.py::test_breakpoint",
)
OTHER_PYTHONS = ("3.12", "3.13")
# What differs between Pythons: tracing, code objects, threads, children. A minute for each on two cores, five with
# RAYDEBUG_TEST_LONG=1.
PYTHON_TESTS = (
    "tests/unit/test_children.py",
    "tests/unit/test_breaks_from_outside.py",
    "tests/unit/test_control.py",
    "tests/unit/test_questions.py",
    "tests/unit/test_stacks.py",
    "tests/unit/test_versions.py",
    *(
        f"tests/unit/test_pause_requests.py::test_{name}"
        for name in (
            "busy_main_thread",
            "stops_at_the_users_code",
            "comes_to_a_breakpoint_meanwhile",
            "again_and_again",
        )
    ),
    *(
        f"tests/unit/test_gateway.py::test_{name}"
        for name in (
            "pause_is_listed_attached_and_goes_on",
            "full_speed_after_a_step",
            "a_thread_at_full_speed_takes_no_monitoring_for_another",
        )
    ),
    "tests/unit/test_policies.py::test_stops_only_where_it_should",
)
WORKERS = 3  # of pytest-xdist: each may have a Ray of its own, and some tests wait
CONTAINER_WORKERS = 2  # one cluster at a time, and beside it the group "long", which sleeps most of its time
ALONE = "alone"  # the marker of tests that measure time or CPU: nothing runs beside them
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
# For an image of each flavour a list of packages (env/base-*.list): its Python, and compilers beside a training.
BASES = {"core": "bookworm", "cpu": "bookworm", "cuda": "trixie-dev", "cuda-verl04": "bookworm-dev"}
SCRIPTS = (
    "ci/docker-engine",
    "ci/base-image",
    "ci/chromium",
    "ci/package-access",
    "ci/fixed-times",
    "ci/dist-twice",
    "ci/release-notes",
    ".ci/run",
    ".devcontainer/initialize",
    "deploy/hosts.sh",
    "deploy/slurm.sbatch",
)
GPU, CPU, HOSTS = "docker-compose.yml", "docker-compose.cpu.yml", "deploy/compose-hosts.yml"
RDMA = "deploy/compose-rdma.yml"
YAML = (GPU, CPU, "deploy", ".devcontainer", "env", "src", ".github", ".yamllint")
DEV, DEV_CPU = ".devcontainer/docker-compose.dev.yml", ".devcontainer/docker-compose.dev-cpu.yml"
COMPOSE_COMBINATIONS = (
    *((GPU,), (GPU, CPU), (GPU, HOSTS), (GPU, CPU, HOSTS), (GPU, RDMA), (GPU, DEV), (GPU, CPU, DEV, DEV_CPU)),
)
COMPOSE_REQUIRED = {"RAYDEBUG_TOKEN_FILE": "/dev/null", "RAYDEBUG_UID": "1000", "RAYDEBUG_GID": "1000"}
SOURCES = {"PYTHONPATH": "src"}  # for sessions that read raydebug and need no installed one
GUARDS: dict[Path, IO[bytes]] = {}  # the files whose lock each user of an environment holds


@nox.session
def lint(session: nox.Session) -> None:
    """Style, import contracts, sizes, and locks that still fit what they were made from (seconds)."""
    use(session, "core", project=False)
    run(session, "ruff", "check", "--no-cache", ".")  # its cache does not see that a module has moved
    run(session, "ruff", "format", "--check", ".")
    run(session, "lint-imports", "--no-logo", "--no-cache", env=SOURCES)
    run(session, "python", "env/lock.py", "check", env=SOURCES)
    check_budget(session)
    run(session, "hadolint", "Dockerfile")
    run(session, "shellcheck", *SCRIPTS)
    run(session, "yamllint", "--strict", *YAML)
    run(session, "zizmor", "--offline", "--quiet", ".github")
    if has_compose(session):
        for files in COMPOSE_COMBINATIONS:
            options = [option for file in files for option in ("-f", file)]
            argv = ("docker", "compose", *options, "--profile", "job", "config", "-q")
            session.run(*argv, env=COMPOSE_REQUIRED)
    else:
        session.warn("compose files are not checked here: there is no docker with its plugin compose")


@nox.session
def types(session: nox.Session) -> None:
    """Types, strictly, with mypy."""
    use(session, "core", project=False)
    run(session, "mypy", *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """Tests that need neither Ray nor Docker; many pause real processes (minutes)."""
    use(session, "core")
    run_pytest(session, "tests/unit", workers=WORKERS)


@nox.session
def ray(session: nox.Session) -> None:
    """Tests on a real Ray cluster in this environment (a quarter of an hour)."""
    use(session, "core")
    run_pytest(session, "tests/ray", workers=WORKERS)


@nox.session
def slow(session: nox.Session) -> None:
    """What `tests` leaves out: the rest of tests/ray, and unit tests marked `slow` (ten minutes)."""
    use(session, "core")
    without = [option for test in CASE_TABLE for option in ("--deselect", test)]  # `tests` runs these
    run_pytest(session, "tests/ray", *without, workers=WORKERS)
    run_pytest(session, "tests/unit", workers=WORKERS, marked="slow")


@nox.session
@nox.parametrize("ray", [nox.param(version, id=version) for version in OLDER["ray"]])
def compat(session: nox.Session, ray: str) -> None:
    """The case table of tests/ray with an older Ray, the oldest one with the oldest debugpy (2 minutes each)."""
    use(session, "core", named=f"-ray-{ray}", python=CPU_PYTHON)
    older = [("ray", ray), *((("debugpy", next(iter(OLDER["debugpy"]))),) if ray == next(iter(OLDER["ray"])) else ())]
    wheels = Path(session.create_tmp()) / "older.txt"
    wheels.write_text("".join(f"{name}=={version} {_hashes(OLDER[name][version])}\n" for name, version in older))
    options = ("--quiet", "--no-deps", "--require-hashes", "--compile-bytecode")
    session.run(uv(), "pip", "install", *options, "-r", str(wheels))
    run_pytest(session, *some_or_whole(CASE_TABLE))


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests and a selection of tests/ray, side by side, then those that nothing may run beside (ten minutes)."""
    use(session, "core")
    run_pytest(session, "tests/unit", *CASE_TABLE, workers=WORKERS, marked="not slow")


@nox.session
def editors(session: nox.Session) -> None:
    """Clients that others wrote against the gateway: VS Code's (npm), debugpy's, Neovim's (NVIM_DAP=its checkout)."""
    use(session, "core")
    run_pytest(session, "tests/editors")


@nox.session
def wheels(session: nox.Session) -> None:
    """Our table of verl's keys against the config in the wheel of each release (downloads 11 MB, pinned by hash)."""
    use(session, "core")
    session.env["RAYDEBUG_TEST_UV"] = uv()
    run_pytest(session, "tests/wheels")


@nox.session
def installed(session: nox.Session) -> None:
    """Build wheel and sdist twice, compare them, and use them with no checkout (`nox -s all`: on every Python)."""
    use(session, "core")
    session.run("ci/dist-twice", env={"UV": uv()}, external=True)
    found = {version: find_python(version) for version in ("3.11", *OTHER_PYTHONS)}
    session.env["RAYDEBUG_TEST_PYTHONS"] = json.dumps({version: path for version, path in found.items() if path})
    session.env["RAYDEBUG_TEST_UV"] = uv()
    run_pytest(session, "tests/installed")


@nox.session
def browser(session: nox.Session) -> None:
    """The run report in a real Chromium, on the PATH or CHROMIUM=; axe-core (npm) looks it over."""
    use(session, "core")
    run_pytest(session, "tests/browser")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the docs as a site, build/docs/site, strictly; its links, search and looks in a real Chromium."""
    use(session, "docs", project=False)
    run(session, "python", "docs/site.py", "build/docs")
    run(session, "zensical", "build", "--clean", "--strict", "--config-file", "build/docs/zensical.toml")
    use(session, "core")
    run_pytest(session, "tests/browser/test_site.py")


@nox.session
def cpu(session: nox.Session) -> None:
    """Tests of verl and vLLM on this CPU: the plug-in's contracts, the tiny models (minutes)."""
    use(session, "cpu")
    run_pytest(session, "tests/cpu")


@nox.session
def gpu(session: nox.Session) -> None:
    """Tests on an NVIDIA GPU, in the flavour cuda; each is a visible skip without one (`REQUIRE_GPU=1`: a failure)."""
    use(session, "cuda" if shutil.which("nvidia-smi") else "core")
    run_pytest(session, "tests/gpu")


@nox.session
def demo(session: nox.Session) -> None:
    """See it: a verl GRPO training on this CPU stops at breakpoints and is looked at (`-- --interactive`).

    RAYDEBUG_TEST_LONG=1 shows it with images and in containers, too; the image for CPU has to be there.
    """
    started = time.monotonic()
    use(session, "cpu")
    install_s = time.monotonic() - started
    session.log(f"environment ready in {install_s:.1f} s")
    env = {"RAYDEBUG_DEMO_INSTALL_S": f"{install_s:.1f}"}
    forms = [tuple(session.posargs)]
    if not session.posargs and os.environ.get("RAYDEBUG_TEST_LONG") == "1":
        forms += [("--vision",), ("--cluster", "compose")]
    for arguments in forms:
        run(session, "python", "tests/support/demo.py", *arguments, env=env)


@nox.session
def compose(session: nox.Session) -> None:
    """Tests on real containers; needs a Docker engine and builds the image core (minutes)."""
    use(session, "core")
    run(session, "raydebug", "image", "--flavour", "core")
    run_pytest(session, "tests/compose", workers=CONTAINER_WORKERS)


@nox.session
def hosts(session: nox.Session) -> None:
    """Tests on a login node and three nodes with Slurm and ssh, in namespaces of Linux; needs root (minutes)."""
    use(session, "core")
    run_pytest(session, "tests/hosts")


@nox.session
def image(session: nox.Session) -> None:
    """Build an image (`-- --flavour cpu`)."""
    use(session, "core")
    run(session, "raydebug", "image", *session.posargs)


@nox.session
def twice(session: nox.Session) -> None:
    """Build an image twice and compare all of it (`-- cpu`; core); RAYDEBUG_TEST_LONG=1: each flavour (hours)."""
    use(session, "core")
    if session.posargs or os.environ.get("RAYDEBUG_TEST_LONG") != "1":
        run(session, "python", "ci/build-twice", *session.posargs)
        return
    for flavour, base in BASES.items():
        session.run("ci/base-image", base, external=True)
        env = {"BASE_IMAGE": f"raydebug-base:{base}", "FLASH_ATTN": "0"}
        run(session, "python", "ci/build-twice", flavour, env=env)
        run(session, "raydebug", "image", "--flavour", flavour, env=env)
    run_pytest(session, "tests/images")


@nox.session
def release(session: nox.Session) -> None:
    """Build and check what a release has, in build/release, then make its tag (`-- --dry-run`: no tag).

    Wheels, sdists, lists of contents and digests of the images' contents, the docs as a site, and the notes; wheel and
    sdist are used without a checkout. The tag, once pushed, lets .github/workflows/release.yml publish the same.
    """
    is_trial = "--dry-run" in session.posargs
    session.posargs.clear()  # they would go to pytest
    folder = Path("build/release")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    installed(session)
    for path in (*Path("dist").iterdir(), *Path("env/sbom").glob("*.cdx.json")):
        shutil.copy(path, folder)
    flavours = tomllib.loads(Path("env/digests.toml").read_text(encoding="utf-8"))
    contents = folder / "image-contents.txt"
    contents.write_text("".join(f"{flavour['content']}  {name}\n" for name, flavour in flavours.items()))
    docs(session)
    shutil.copytree("build/docs/site", folder / "site")
    (version,) = re.findall(r'^__version__ = "(.+)"', Path("src/raydebug/__init__.py").read_text(), re.MULTILINE)
    given = (tag := f"v{version}", str(folder / "SHA256SUMS"), str(contents), *(("--dry-run",) if is_trial else ()))
    notes = session.run("ci/release-notes", *given, external=True, silent=True)
    (folder / "notes.md").write_text(str(notes), encoding="utf-8")
    session.log(f"{folder} has {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if not is_trial:
        session.run("git", "tag", tag, external=True)
        session.log(f"next: git push origin {tag}")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure pauses beside stock Ray and debugpy; one table."""
    use(session, "core")
    run(session, "python", "-m", "bench", *session.posargs)


@nox.session
def pictures(session: nox.Session) -> None:
    """Make README's pictures from a real run: a crash in the terminal, the report page (needs Chromium)."""
    use(session, "core")
    run(session, "python", "docs/pictures/make.py")


@nox.session(name="all")
def everything(session: nox.Session) -> None:
    """All sessions, with tests marked `long` and the long forms of others: loads, fuzzing, kills, every Ray (hours)."""
    os.environ["RAYDEBUG_TEST_LONG"] = "1"
    others = [f"unit-{version}" for version in OTHER_PYTHONS] + [f"compat({version})" for version in OLDER["ray"]]
    once = ("gpu", "wheels", "installed", "cpu", "editors", "browser", "docs", "hosts", "compose", "twice", "demo")
    for name in ("lint", "types", "tests", "slow", *others, *once):
        session.notify(name)


@nox.session
def lock(session: nox.Session) -> None:
    """Make env/*.lock and env/sbom from env/*.in (`-- --upgrade` for newer versions, `-- cpu` for one flavour)."""
    lock_tool(session, "make", *session.posargs)


@nox.session
def newer(session: nox.Session) -> None:
    """Try newer releases of Ray, debugpy, verl, vLLM and torch, each in a copy of the checkout (`-- ray`; an hour)."""
    session.run(sys.executable, "env/newer.py", *session.posargs, env={**SOURCES, "RAYDEBUG_UV": uv()})


def check_budget(session: nox.Session) -> None:
    """Fail where a folder has more lines of Python than pyproject.toml allows: a new subject pays with an old one."""
    for folder, most in nox.project.load_toml("pyproject.toml")["tool"]["raydebug"]["budget"].items():
        lines = sum(path.read_text(encoding="utf-8").count("\n") for path in Path(folder).rglob("*.py"))
        session.log(f"{folder}/ has {lines} lines of Python; its budget is {most}")
        if lines > most:
            session.error(f"{folder}/ is {lines - most} lines over its budget ({most}): take out what is needed least")


def has_compose(session: nox.Session) -> bool:
    """Return whether docker is there, with its plugin compose: Debian's package docker.io comes without."""
    if shutil.which("docker") is None:
        return False
    said = session.run("docker", "compose", "version", silent=True, success_codes=range(256))
    return "Compose version" in str(said)


def some_or_whole(tests: tuple[str, ...]) -> tuple[str, ...]:
    """Return these tests; with RAYDEBUG_TEST_LONG=1 the whole files that they are in."""
    is_long = os.environ.get("RAYDEBUG_TEST_LONG") == "1"
    return tuple(dict.fromkeys(test.partition("::")[0] for test in tests)) if is_long else tests


def _hashes(sha256s: list[str]) -> str:
    return " ".join(f"--hash=sha256:{sha256}" for sha256 in sha256s)


def unit_of_another_python(session: nox.Session) -> None:
    """What differs between Pythons: pauses, breakpoints, children, the code in workers (a minute)."""
    version = session.name.removeprefix("unit-")
    python = find_python(version)
    if python is None:
        session.skip("this Python is not here: neither on the PATH nor among pyenv's")
    use(session, "core", named=f"-{version}", python=python)
    run_pytest(session, *some_or_whole(PYTHON_TESTS), workers=WORKERS)


def find_python(version: str) -> str | None:
    """Return a Python of this version, pyenv's or the one on the PATH; pyenv's shims on it may lead nowhere."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in versions.glob(f"{version}.*/bin/python") if re.search(r"/[\d.]+/bin/", str(path))]
    on_path = shutil.which(f"python{version}")
    return next(iter([*found, *([on_path] if on_path and "/shims/" not in on_path else [])]), None)


for _version in OTHER_PYTHONS:
    nox.session(name=f"unit-{_version}")(unit_of_another_python)


def run_pytest(session: nox.Session, *folders: str, workers: int = 1, marked: str = "") -> None:
    """Run pytest over folders, or over what is named behind `--` (`-- tests/unit/test_pins.py`).

    Args:
        session: its environment is in use.
        folders: what to run where the command line names nothing.
        workers: how many tests run at once where the command line gives no argument; those that are marked to run alone
            come last.
        marked: an expression of pytest's markers for all of them.
    """
    if workers > 1 and not session.posargs:
        rest = f" and {marked}" if marked else ""
        run(session, "pytest", *folders, "-n", str(workers), "--dist", "loadgroup", "-m", f"not {ALONE}{rest}")
        run(session, "pytest", *folders, "-m", f"{ALONE}{rest}", success_codes=[0, 5])  # 5: none of them is marked so
        return
    named = any(Path(argument.partition("::")[0]).exists() for argument in session.posargs)
    run(session, "pytest", *(() if named else folders), *session.posargs)


def use(session: nox.Session, flavour: str, *, named: str = "", python: str = "", project: bool = True) -> None:
    """Let the session use the environment of a flavour, and bring that up to date first.

    raydebug is installed as a user installs it, not as editable: its .pth file has to lie in site-packages, where every
    Python of the environment reads it. What has not changed costs nothing. An environment changes only while no other
    session uses it.

    Args:
        session: what runs in it.
        flavour: its lock, beside that of the tools; most sessions share one environment of each flavour.
        named: the end of its name where it is another one.
        python: what it is made with; the Python that runs nox, or the one of env/cpu.lock, where nothing is said.
        project: whether raydebug has to be installed.
    """
    folder = session.cache_dir.parent / f"{flavour}{named}"
    python = python or (CPU_PYTHON if flavour == "cpu" else sys.executable)
    session.env.update({"VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"})
    # Ten processes import the same packages: they must find bytecode, and may write what is missing.
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    locks = [Path("env", f"{flavour}.lock"), Path("env", "dev.lock")]
    wanted = {"locks": f"{digest(locks)} for {python}"}
    if project:
        wanted["raydebug"] = digest(wheel_inputs(flavour))
    guard = GUARDS.setdefault(folder, folder.with_name(f"{folder.name}.guard").open("wb"))
    fcntl.flock(guard, fcntl.LOCK_SH)
    while any(stamp(folder, part) != made_of for part, made_of in wanted.items()):
        session.log(f"{folder} is brought up to date; sessions that use it end first")
        fcntl.flock(guard, fcntl.LOCK_EX)
        if stamp(folder, "locks") != wanted["locks"]:
            session.run_install(uv(), "venv", "--quiet", "--clear", "--python", python, str(folder))
            sync(session, flavour, locks)
            stamp(folder, "locks", wanted["locks"])
        if project and stamp(folder, "raydebug") != wanted["raydebug"]:
            built_with = ("--build-constraints", "env/dev.lock")  # hatchling as locked
            options = ("--quiet", "--no-deps", "--reinstall", *built_with)
            session.run_install(uv(), "pip", "install", *options, ".", *(f"./{path}" for path in beside(flavour)))
            # Each process of a test would compile our modules anew where PYTHONDONTWRITEBYTECODE is set.
            packages = map(str, folder.glob("lib/*/site-packages/raydebug"))
            session.run_install(str(folder / "bin/python"), "-m", "compileall", "-q", *packages)
            stamp(folder, "raydebug", wanted["raydebug"])
            if flavour == "cpu" and stamp(folder, "bytecode") != wanted["locks"]:  # verl needs raydebug's platform
                load = f"import {', '.join(TRAINING_MODULES)}"
                # Without token mode: the program imports and starts no Ray, so that it needs no token of the user's.
                imports_only = {"VERL_PLATFORM": "cpu", "RAY_AUTH_MODE": "disabled"}
                session.run_install(str(folder / "bin/python"), "-c", load, env=imports_only, silent=True)
                stamp(folder, "bytecode", wanted["locks"])
        fcntl.flock(guard, fcntl.LOCK_SH)


def sync(session: nox.Session, flavour: str, locks: list[Path]) -> None:
    """Install exactly what locks hold into the session's new environment; the cpu flavour without bytecode."""
    torch = (lock_tool(session, "torch-options") or "").splitlines() if flavour == "cpu" else ()
    compiled = () if flavour == "cpu" else ("--compile-bytecode",)
    session.run_install(uv(), "pip", "sync", "--quiet", "--require-hashes", *compiled, *torch, *map(str, locks))


def stamp(folder: Path, part: str, made_of: str | None = None) -> str:
    """Return what a part of an environment was made of, empty for nothing; with `made_of` write that down first."""
    file = folder / f"made-of-{part}"
    if made_of is not None:
        file.write_text(made_of)
    return file.read_text() if file.exists() else ""


def beside(flavour: str) -> list[Path]:
    """Return the distributions of this repository that a flavour has beside raydebug."""
    return [Path("packages", "raydebug-cpu")] if flavour == "cpu" else []


def wheel_inputs(flavour: str) -> list[Path]:
    """Return all that the wheels of a flavour are built from."""
    build = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = ("pyproject.toml", "README.md", "LICENSE", *build["only-include"], *build["force-include"])
    return [*map(Path, files), *beside(flavour)]


def digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of files, and of those below folders, with their names."""
    made_of = hashlib.sha256()
    for path in paths:
        files = (
            sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
            if path.is_dir()
            else [path]
        )
        for file in files:
            made_of.update(f"{file}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return made_of.hexdigest()


def run(session: nox.Session, program: str, *arguments: str, **options: Any) -> None:
    """Run a program of the session's environment."""
    session.run(str(Path(session.env["VIRTUAL_ENV"] or "", "bin", program)), *arguments, **options)


def uv() -> str:
    """Return the uv beside nox, not the one on PATH."""
    from uv import find_uv_bin

    return str(find_uv_bin())


def lock_tool(session: nox.Session, *arguments: str) -> str | None:
    """Run env/lock.py with the Python that runs nox: it has pip, whose settings say where this machine's wheels are.

    Returns:
        What it printed, for a question; None when it shows its work.
    """
    asks = arguments[0] != "make"
    ask = session.run_install if asks else session.run  # an environment is made by --install-only, too
    answer = ask(
        sys.executable, "env/lock.py", *arguments, env={**SOURCES, "RAYDEBUG_UV": uv()}, silent=asks, log=not asks
    )
    return str(answer) if asks else None
