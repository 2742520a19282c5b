"""`python docs/generate.py`: write docs/05-cli.md, docs/reference, contributing/faults.md, and parts of other pages.

Needs raydebug installed. tests/unit/test_docs.py compares the files with it.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLI_PAGE = ROOT / "docs" / "05-cli.md"
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"
CODES_PAGE = REFERENCE / "codes.md"
FAILURES_PAGE = REFERENCE / "failures.md"
KEYS_PAGE = REFERENCE / "keys.md"
ATTACH_PAGE = ROOT / "docs" / "02-attach.md"
PROFILES_PAGE = ROOT / "docs" / "15-profiles.md"
AGENTS_PAGE = ROOT / "docs" / "11-agents.md"
TROUBLE_PAGE = ROOT / "docs" / "06-troubleshooting.md"
CLUSTERS_PAGE = ROOT / "docs" / "12-clusters.md"
RESULTS = ROOT / "bench" / "results.json"
REGENERATE = "python docs/generate.py"
SYMPTOM_CHARS = 120

# Key of a figure in bench/results.json -> its description in README.
FIGURES = {
    "first_stack": "first pause of a process: `breakpoint()` reached -> stack on the screen",
    "warm_stack": "next pause of that process -> stack on the screen",
    "evaluate": "one expression at a pause",
    "step": "a step, with stack, scopes and variables",
    "calls_later": "Python calls of a worker after its pause is over (1 = as without a debugger)",
    "start_extra": "added to the start of a Python process, at most (an empty program)",
}


def commands() -> dict[str, Any]:
    """Return every verb by its whole name, such as `raydebug tiny model`, in the order of the help."""
    import typer.main

    from raydebug.cli.app import whole_app

    found: dict[str, Any] = {}

    def walk(command: Any, name: str) -> None:
        for word, child in getattr(command, "commands", {}).items():
            walk(child, f"{name} {word}")
        if not hasattr(command, "commands"):
            found[name] = command

    walk(typer.main.get_command(whole_app()), "raydebug")
    return found


def cli_page() -> str:
    """Return docs/05-cli.md."""
    sections = [_section(name, command) for name, command in commands().items()]
    return f"""\
# The command line

Made by `{REGENERATE}` from the program; `raydebug VERB --help` shows the same.

Results go to stdout, progress to stderr. An error has three lines on stderr, `error:`, `cause:` and `fix:`; with
`--json` it is `{{"error": {{"code", "message", "cause", "fix"}}}}`. `raydebug --debug VERB ...` adds the executed
commands and tracebacks; `raydebug --version` prints the version; `raydebug --install-completion` sets up the shell.

Exit codes: 0 success; 1 failure; 2 usage or configuration; 3 a port, a name or a pause is taken; 4 the session is lost;
5 no usable Docker engine; 124 timeout; 130 Ctrl-C; 141 the reader of stdout has gone (`raydebug job logs | head`). If
stderr is closed, messages are dropped.

The cluster of a verb is that of `--name`; without it that of the variable `RAYDEBUG_CLUSTER`; without both `default`,
or the only one that exists. `run`, `try` and `check` take the only one if it runs and was started by `up`, and say so.
If there are several, the error lists them. `up` and `down` take `default`.

`raydebug run` and `job logs -f` return the job's own exit code. If stdout is closed, they say so and still follow the
job to its end. Ctrl-C asks whether to stop the job. SIGTERM and SIGHUP leave it running, unless `run` has started the
cluster for it; the exit code is 128 plus the signal. The run is recorded as `interrupted` until the job is followed
again.

{command_table()}

{chr(10).join(sections)}"""


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help" and not p.hidden]
    shapes = [a.metavar or a.name.upper() for a in arguments]
    words = [name, *(["[OPTIONS]"] if options else []), *shapes]
    if hasattr(command, "usage_end") and "COMMAND" not in "".join(shapes):
        words.append(command.usage_end)
    usage = " ".join(words)
    lines = [f"## {name}", "", "```", usage, "```", "", _text(command), ""]
    rows = [(shape, a.help or "") for shape, a in zip(shapes, arguments, strict=True)]
    rows += [option.get_help_record(context) for option in options]
    if rows:
        lines += [
            "| argument | meaning |",
            "|---|---|",
            *(f"| `{_cell(left)}` | {_cell(right)} |" for left, right in rows),
            "",
        ]
    return "\n".join(lines)


def _text(command: Any) -> str:
    help_text = (command.help or "").replace("\b", "")
    if "Examples:" in help_text:
        text, _, examples = help_text.partition("Examples:")
        lines = [line.removeprefix("  ") for line in examples.strip("\n").split("\n")]
        return text.strip() + "\n\n" + "\n".join(["```", *lines, "```"])
    text, _, example = (command.help or "").strip().partition("Example: ")
    return text.strip() + (f"\n\nExample: `{' '.join(example.split())}`" if example else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def command_table() -> str:
    """Return the table of commands."""
    rows = []
    for name, command in commands().items():
        link = f"[`{name}`](#{name.replace(' ', '-')})"
        rows.append(f"| {link} | {_cell(_text(command).partition(chr(10) * 2)[0])} |")
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def figure_table() -> str:
    """Return README's table of figures, from the last results of the benchmarks."""
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    figures = {figure["key"]: figure for figure in document["figures"]}
    lines = ["| median | raydebug | Ray's debugger with debugpy |", "|---|---|---|"]
    for key, words in FIGURES.items():
        figure = figures[key]
        lines.append(f"| {words} | {_median(figure, 'raydebug')} | {_median(figure, 'stock')} |")
    return "\n".join(lines)


def _median(figure: dict[str, Any], side: str) -> str:
    values = figure.get(side)
    return f"{statistics.median(values):.3g} {figure['unit']}" if values else "-"


def prompt_table() -> str:
    """Return the table of the debugger's own commands."""
    from raydebug.console.commands import TABLE

    rows = []
    for command in TABLE:
        others = [f"`{name}`" for name in command.names if name != command.usage.split()[0]]
        shown = f"`{command.usage}`" + (f" ({', '.join(others)})" if others else "")
        rows.append(f"| {_cell(shown)} | {_cell(command.help)} |")
    return "\n".join(["| command | what it does |", "|---|---|", *rows])


def profile_table() -> str:
    """Return the table of profiles."""
    from raydebug.profile.load import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    rows = [f"| `{p.name}` | {p.summary} | {', '.join(p.trainers) or 'all'} |" for p in profiles]
    return "\n".join(["| profile | resulting run | trainers |", "|---|---|---|", *rows])


def program_table() -> str:
    """Return the table of the trainings that are recognised."""
    from raydebug.trainers.argparse_trainer import SIGNS_LEAST
    from raydebug.trainers.openrlhf import OPENRLHF
    from raydebug.trainers.slime import SLIME
    from raydebug.trainers.verl.trainer import PARTS, PROGRAMS

    rows = []
    for program in dict.fromkeys((*PROGRAMS.values(), *PARTS.values())):
        names = ", ".join(f"`verl.trainer.{name}`" for name, of in PROGRAMS.items() if of == program)
        parts = ", ".join(f"`{part}...=`" for part, of in PARTS.items() if of == program)
        rows.append(f"| {program} | {names} | {parts} |")
    options = ", ".join(f"`{option}`" for option in sorted(OPENRLHF.signs))
    rows.append(f"| openrlhf_ppo | `openrlhf.cli.train_ppo_ray` | {SIGNS_LEAST} of {options} |")
    options = ", ".join(f"`{option}`" for option in sorted(SLIME.signs))
    rows.append(f"| slime, slime_updates | | {SIGNS_LEAST} of {options} |")
    return "\n".join(
        ["| program | by name (a fork's package too) | by an argument or a key of its config |", "|---|---|---|", *rows]
    )


def word_table(trainer: str) -> str:
    """Return the table of our setting names in the keys of a trainer: the newest key, and versions with another."""
    from raydebug.trainers.registry import columns

    releases = {version: column for version, column in columns()[trainer].items() if column}
    words = dict.fromkeys(word for column in reversed(releases.values()) for word in column)
    rows = [f"| `{word}` | {_key_by_version(word, releases)} |" for word in words]
    return "\n".join(["| word | key |", "|---|---|", *rows])


def _key_by_version(word: str, releases: dict[str, Any]) -> str:
    runs: list[tuple[str, str, str]] = []  # key, from, to
    for version, column in releases.items():
        shown = _shown(column.get(word))
        if runs and runs[-1][0] == shown:
            runs[-1] = (shown, runs[-1][1], version)
        else:
            runs.append((shown, version, version))
    if len(runs) == 1:
        return runs[0][0]
    newest, oldest = next(reversed(releases)), next(iter(releases))
    spans = {
        (first, last): f"from {first}" if last == newest else f"to {last}" if first == oldest else f"{first} to {last}"
        for _, first, last in runs
    }
    spans |= {(first, last): first for _, first, last in runs if first == last and last != newest}
    return "; ".join(f"{spans[first, last]}: {shown}" for shown, first, last in reversed(runs))


def _shown(key: Any) -> str:
    if key is None:
        return "none"
    return f"{'torchrun ' if key.is_launcher_option else ''}`{'+' if key.added else ''}{key.path}`" + "".join(
        f", `{path}`" for path in key.also
    )


def profiles_page(text: str) -> str:
    """Return the text of docs/15-profiles.md with its tables regenerated."""
    return _filled(text, {"profiles": profile_table(), "programs": program_table()})


KEYS = {
    "ppo": "`verl.trainer.main_ppo` (main_generation_server has some of these, from 0.6.0)",
    "easyr1": "`verl.trainer.main` of EasyR1",
    "sft": "`sft_trainer`, from 0.6.0 (sft_trainer_ray, from 0.7.0, has `trainer.n_gpus_per_node`, `trainer.nnodes`)",
    "fsdp_sft": "`fsdp_sft_trainer`, to 0.7.0",
    "generation": "`main_generation`, to 0.7.0",
    "openrlhf_ppo": "`openrlhf.cli.train_ppo_ray`: options without their leading dashes",
    "slime": "`train.py` and `train_async.py` of slime: options without their leading dashes (0.0.1 is the tag v0.1.0)",
}


def keys_page() -> str:
    """Return docs/reference/keys.md: the words of a profile in the keys of each trainer."""
    tables = "\n".join(f"\n## {title}\n\n{word_table(name)}" for name, title in KEYS.items())
    return f"""\
# Keys of profiles

Made by `{REGENERATE}`: the words of a [profile](../15-profiles.md) in each trainer's keys. `nox -s wheels`
compares them with the configs in the wheels of verl. A `+` means that verl reads the key without listing it.
{tables}
"""


def install_lines(extras: str) -> str:
    """Return the block that installs raydebug with these extras, from the checkout."""
    from raydebug.settings.flavours import install_raydebug

    return f"```\n{install_raydebug(extras)}\n```"


def image_lines() -> str:
    """Return the block that installs raydebug in an image of Ray's."""
    from raydebug.settings.flavours import WHEEL

    return f"```dockerfile\nFROM rayproject/ray:2.60.0-py311\nCOPY {WHEEL} .\nRUN pip install ./{WHEEL}\n```"


def readme(text: str) -> str:
    """Return README's text with the parts between its markers regenerated."""
    return _filled(text, {"figures": figure_table(), "install": install_lines("all")})


def agents_page(text: str) -> str:
    """Return the text of docs/11-agents.md with its line to install regenerated."""
    return _filled(text, {"install": install_lines("cli,mcp")})


def trouble_page(text: str) -> str:
    """Return the text of docs/06-troubleshooting.md with its line that starts a wheel regenerated."""
    from raydebug.settings.flavours import WHEEL

    return _filled(text, {"wheel": f"```\nuvx --from ./{WHEEL} raydebug diagnose LOG\n```"})


def clusters_page(text: str) -> str:
    """Return the text of docs/12-clusters.md with its lines of an image regenerated."""
    return _filled(text, {"image": image_lines()})


def codes_page() -> str:
    """Return docs/reference/codes.md: the codes of findings."""
    from raydebug.findings import meanings

    rows = [f"| `{code}` | {_cell(meaning)} |" for code, meaning in meanings()]
    return f"""\
# Codes of findings

Made by `{REGENERATE}`: the codes that [`raydebug check`](../03-checks.md) and the metrics of a run can give.

| code | meaning |
|---|---|
{chr(10).join(rows)}
"""


def failures_page() -> str:
    """Return docs/reference/failures.md: of each class that `raydebug diagnose` knows its most exact rule."""
    from raydebug.diagnose.rules import load_rules

    exact: dict[str, Any] = {}
    for rule in sorted(load_rules(), key=lambda rule: -rule.rank):
        exact.setdefault(rule.name, rule)
    rows = []
    for name, rule in sorted(exact.items()):
        symptom = rule.example.strip().splitlines()[-1].strip()
        cut = symptom if len(symptom) <= SYMPTOM_CHARS else symptom[: SYMPTOM_CHARS - 4] + " ..."
        again = " (`--again`)" if any(one.when.search(rule.example) for one in rule.apply) else ""
        rows.append(f"| `{name}` | `` {_cell(cut)} `` | {_cell(rule.cause)} | {_cell(rule.fix)}{again} |")
    return f"""\
# Failures that `raydebug diagnose` knows

Made by `{REGENERATE}` from the rules, `src/raydebug/diagnose/rules/*.toml`. `--again` marks a fix that
[`raydebug run --again`](../06-troubleshooting.md#what-a-log-says) can apply.

| class | symptom | cause | fix |
|---|---|---|---|
{chr(10).join(rows)}
"""


def attach_page(text: str) -> str:
    """Return the text of docs/02-attach.md with its table regenerated."""
    return _filled(text, {"prompt": prompt_table()})


def _filled(text: str, tables: dict[str, str]) -> str:
    for name, table in tables.items():
        pattern = rf"(<!-- {name}: made by {re.escape(REGENERATE)} -->\n).*?(<!-- {name}: end -->)"
        text, count = re.subn(pattern, lambda m, table=table: m[1] + table + "\n" + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"there are {count} pairs of markers '{name}', not one")
    return text


WHOLE = {CLI_PAGE: cli_page, CODES_PAGE: codes_page, FAILURES_PAGE: failures_page, KEYS_PAGE: keys_page}
PARTS = {
    README: readme,
    ATTACH_PAGE: attach_page,
    PROFILES_PAGE: profiles_page,
    AGENTS_PAGE: agents_page,
    CLUSTERS_PAGE: clusters_page,
    TROUBLE_PAGE: trouble_page,
}


def main() -> None:
    """Write the files."""
    REFERENCE.mkdir(exist_ok=True)
    for page, whole in WHOLE.items():
        page.write_text(whole(), encoding="utf-8")
    for page, filled in PARTS.items():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    import fault_page  # beside this file

    fault_page.PAGE.write_text(fault_page.page(), encoding="utf-8")


if __name__ == "__main__":
    main()
