"""The pages are correct: generated parts are current, links have targets, no file contains a path of a machine."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fault_names
from raydebug.stacks.wait_kinds import COLLECTIVE, KINDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PACKAGE_HOSTS = re.compile(
    r"https?://[^\s\"'<>]*(?:pypi\.|pythonhosted\.org|download\.pytorch\.org|npmjs\.|yarnpkg\.|conda\.anaconda|/simple\b)"
)


@pytest.fixture(scope="module")
def generate():
    return _module("generate")


@pytest.fixture(scope="module")
def fault_page():
    return _module("fault_page")


def _module(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tracked() -> list[Path]:
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if git.returncode != 0:
        pytest.skip(f"not a git checkout: {git.stderr.strip()}")
    return [ROOT / name for name in git.stdout.split("\0") if name and (ROOT / name).is_file()]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


def test_generated_parts_are_current(generate):
    """Help, results, commands, codes, rules, profiles and lines to install in the pages are those of the program."""
    stale = [page.name for page, whole in generate.WHOLE.items() if _text(page) != whole()]
    stale += [page.name for page, filled in generate.PARTS.items() if _text(page) != filled(_text(page))]
    assert stale == [], f"run: {generate.REGENERATE}"


def test_cells_have_no_bare_bar(generate):
    """A bar in a table splits the cell, also in a code span: every row of the page has two cells."""
    rows = [line for line in generate.cli_page().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}


def test_the_page_of_faults_is_current(fault_page, generate):
    """The page of faults shows the current sentences of the tests and the stock results; every case has both."""
    assert _text(fault_page.PAGE) == fault_page.page(), f"run: {generate.REGENERATE}"


WHOLE = {"title": "it happens", "stock": "it breaks", "source": "measured"}
PROOF = (["F8"], "it holds", "tests/unit/test_x.py::test_it")
UNPROVEN = {
    "no entry": (None, [PROOF], {"F8": {}}, "F8 is missing in docs/faults.toml"),
    "no stock result": ({**WHOLE, "stock": ""}, [PROOF], {"F8": {}}, "F8 has no 'stock'"),
    "no test": (WHOLE, [], {"F8": {}}, "F8 has no test, and no 'reason' why not"),
    "a reason left over": ({**WHOLE, "reason": "x"}, [PROOF], {"F8": {}}, "F8 has a test now: remove its 'reason'"),
    "not measured": (WHOLE, [PROOF], {"F8": {"not measured": "broken"}}, "F8 is said to be measured, and "),
    "never measured": (WHOLE, [PROOF], {}, "F8 is said to be measured, and "),
    "a source of its own": ({**WHOLE, "source": "guessed"}, [PROOF], {}, "F8 has an unknown source: 'guessed'"),
}


@pytest.mark.parametrize(("case", "tests", "seen", "said"), UNPROVEN.values(), ids=UNPROVEN.keys())
def test_a_fault_without_proof_is_refused(fault_page, case, tests, seen, said):
    """A case with neither a test nor a reason, or with a stock result without a source, makes the page fail."""
    (wrong,) = fault_page.lacking("F8", case, [fault_page.Proof(*one) for one in tests], seen)
    assert wrong.startswith(said)


def test_a_fault_with_all_of_it_is_taken(fault_page):
    """A case may be measured, observed by hand, or both, have a reason instead of a test, or be not measured."""
    proof = [fault_page.Proof(*PROOF)]
    for source in ("measured", "observed", "measured, observed", "not measured"):
        assert fault_page.lacking("F8", {**WHOLE, "source": source}, proof, {"F8": {}}) == []
    assert fault_page.lacking("F8", {**WHOLE, "reason": "none here"}, [], {"F8": {}}) == []


def test_names_of_faults():
    """The cases of a docstring are the names at its beginning."""
    assert doctest.testmod(fault_names).failed == 0
    assert fault_names.cases_of("A sentence about F8: none of its own.") == []


def test_every_kind_of_verdict_is_explained():
    """The page about hangs explains each kind of verdict that `raydebug stacks` gives, and no other."""
    rows = _text(ROOT / "docs" / "09-hangs.md").partition("| verdict |")[2].partition("\n\n")[0].splitlines()[2:]
    explained = [kind for row in rows for kind in re.findall("`(.*?)`", row.split("|")[1])]
    assert sorted(explained) == sorted(KINDS.keys() - {COLLECTIVE})


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    """Every link to a file of the repository has an existing target."""
    targets = [t.partition("#")[0] for t in LINK.findall(_text(page)) if "://" not in t and not t.startswith("#")]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_pages_of_the_site(tmp_path):
    """The site has each page at its place; a link to another file is plain text there, a wrong link stays."""
    site = _module("site")
    site.lay_out(tmp_path / "new")
    laid = {path.relative_to(tmp_path / "new" / "pages") for path in (tmp_path / "new" / "pages").rglob("*.md")}
    assert laid == {page.relative_to(ROOT) for page in PAGES}
    page = ROOT / "docs" / "page.md"
    texts = {
        "[a](05-cli.md#x)": "[a](05-cli.md#x)",
        "[`b`](../Dockerfile)": "`b`",
        "[c](../env/profiles)": "c",
        "[d](nothing.md)": "[d](nothing.md)",
        "[e](#here) ![f](pictures/report.png)": "[e](#here) ![f](pictures/report.png)",
        "[g](https://example.org/a)": "[g](https://example.org/a)",
    }
    here = {one.resolve() for one in PAGES}
    for text, said in texts.items():
        assert site.linked(text, page, here) == said


def test_the_docs_stay_short(generate, fault_page):
    """README has at most 1,200 words, the pages that are written by hand 30,000 together."""
    made = {*generate.WHOLE, fault_page.PAGE}
    pages = [page for page in ROOT.glob("docs/**/*.md") if page not in made]
    assert len(_text(ROOT / "README.md").split()) <= 1200
    assert sum(len(_text(page).split()) for page in pages) <= 30_000


def test_every_page_is_in_the_navigation():
    """The site's navigation has every page once."""
    settings = tomllib.loads(_text(ROOT / "docs" / "zensical.toml"))
    listed = [name for part in settings["project"]["nav"] for names in part.values() for name in names]
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_no_file_names_a_machine():
    """No tracked file contains the path of a checkout or of a Python, and no page the path of a home folder."""
    places = {p for p in (str(ROOT), sys.prefix, sys.base_prefix) if p.count("/") >= 2 and not p.startswith("/usr")}
    named = [f"{path.relative_to(ROOT)}: {place}" for path in _tracked() for place in places if place in _text(path)]
    homes = [str(page.relative_to(ROOT)) for page in PAGES if re.search(r"/root/|/home/|\.pyenv", _text(page))]
    assert (named, homes) == ([], [])


def test_nothing_is_installed_from_an_index():
    """No package index has raydebug yet: no tracked file says that it can be installed by its name."""
    by_name = re.compile(r"(?:pip|tool) install (?:-\S+ )*['\"]?raydebug(?:-cpu)?(?:[\[='\"`]|\s|$)", re.MULTILINE)
    said = {str(path.relative_to(ROOT)): match[0] for path in _tracked() if (match := by_name.search(_text(path)))}
    assert said == {}


def test_no_file_names_a_package_host():
    """The source of packages is a setting of the machine: no tracked file has an address of an index or mirror."""
    found = {
        str(path.relative_to(ROOT)): match[0]
        for path in _tracked()
        if path != Path(__file__) and (match := PACKAGE_HOSTS.search(_text(path)))
    }
    assert found == {}
