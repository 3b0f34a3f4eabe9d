"""What the shape of the repository promises: folders, symlinks, weight of a start, documents."""

import operator
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
LAYERS = ("operator", "planner", "perfmodel")
HEAVY = ("torch", "ax", "kopf", "kubernetes")

# Put together here, so that this file does not hold what it looks for.
FORBIDDEN = [
    re.escape(".".join(host))
    for host in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("proxy", "golang", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("deb", "debian", "org"),
        ("repo", "maven", "apache", "org"),
    )
] + ["(?<![.\\w])/" + folder + "/" for folder in ("work", "root")]


# A command that installs, or a requirement with an extra, of the distribution's old name.
OTHER_DISTRIBUTION = re.compile(
    r"\b(?:pipx?|uv)\b[^`;]*\b(?:install|download|add)\b[^`;]*(?<![\w./-])archipelago(?![\w./-])"
    r"|(?<![\w./-])archipelago\[[a-z]"
)


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that git tracks."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPO, check=True, capture_output=True, text=True
    )
    return tuple(REPO / name for name in done.stdout.split("\0") if name)


def text(path: Path) -> str:
    """The file's text; empty for symlinks and binary files."""
    if path.is_symlink() or not path.is_file():
        return ""
    content = path.read_bytes()
    return "" if b"\0" in content else content.decode()


def python(code: str) -> str:
    """What a fresh interpreter started in the repository root prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_entries_of_the_top_level_are_there() -> None:
    """The shape that a newcomer sees first."""
    entries = {path.relative_to(REPO).parts[0] for path in tracked()}
    folders = {"operator", "planner", "perfmodel", "deploy", "crds", "tests"}
    assert entries >= folders | {"pyproject.toml", "Dockerfile"}
    assert all((REPO / folder).is_dir() for folder in folders)


def test_the_standard_library_keeps_its_operator() -> None:
    """With an operator/__init__.py, venv, pytest and build die in the repository root."""
    assert not (REPO / "operator" / "__init__.py").exists()
    assert operator.add(1, 1) == 2
    assert python("import operator; print(operator.add(1, 1))") == "2"


def test_the_namespace_has_no_init() -> None:
    """import-linter only sees the packages below a namespace package."""
    assert not (REPO / "src" / "archipelago" / "__init__.py").exists()


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_are_committed_relative_symlinks(layer: str) -> None:
    """A checkout without symlinks builds an empty wheel; an absolute one works on one machine."""
    listed = subprocess.run(
        ["git", "ls-files", "--stage", f"src/archipelago/{layer}"],
        cwd=REPO,
        check=True,
        capture_output=True,
        text=True,
    )
    assert listed.stdout.startswith("120000 ")  # git's mode of a symlink
    assert os.readlink(REPO / "src" / "archipelago" / layer) == f"../../{layer}"  # noqa: PTH115
    assert (REPO / layer / "py.typed").is_file()


def test_help_imports_nothing_heavy() -> None:
    """The command line starts without torch, ax, kopf and kubernetes."""
    loaded = python(
        "import sys; sys.argv = ['archipelago', '--help']\n"
        "from archipelago.planner.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('loaded:', *(m for m in {HEAVY!r} if m in sys.modules))"
    )
    assert "Usage" in loaded
    assert loaded.splitlines()[-1] == "loaded:"


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_file_names_a_registry_or_a_path_of_one_machine(pattern: str) -> None:
    """The repository installs from whatever registry its user has configured."""
    found = re.compile(pattern)
    assert [str(p.relative_to(REPO)) for p in tracked() if found.search(text(p))] == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install archipelago",
        "pip install -U 'archipelago[operator]'",
        "uv add archipelago",
        "needs the extra: archipelago[bayes]",
    ],
)
def test_the_old_names_of_the_distribution_are_recognised(line: str) -> None:
    assert OTHER_DISTRIBUTION.search(line)
    assert not OTHER_DISTRIBUTION.search(line.replace("archipelago", "archipelago-serving"))


def test_no_page_or_message_installs_the_other_archipelago() -> None:
    """The public index has an unrelated package of the import name."""
    lines = {
        f"{path.relative_to(REPO)}: {line.strip()}"
        for path in tracked()
        if path != Path(__file__)
        for line in text(path).splitlines()
        if OTHER_DISTRIBUTION.search(line)
    }
    assert lines == set()


def test_no_file_holds_two_sides_of_a_merge() -> None:
    sides = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert [path.name for path in tracked() if sides.search(text(path))] == []


def test_documents_name_only_make_targets_that_exist() -> None:
    """A command that a page tells people to run is there."""
    targets = set(re.findall(r"^([a-z0-9-]+):", text(REPO / "Makefile"), re.MULTILINE))
    pages = [p for p in tracked() if p.suffix == ".md" and "docs/designs" not in str(p)]
    named = {
        (page.name, target)
        for page in pages
        for target in re.findall(r"(?:^|`|&& |\$ )make ([a-z0-9-]+)", text(page), re.MULTILINE)
    }
    assert {target for _, target in named} >= {"setup", "test", "demo"}
    assert sorted((page, target) for page, target in named if target not in targets) == []


def test_every_target_has_help() -> None:
    """Bare make explains everything a person can ask of it."""
    makefile = text(REPO / "Makefile")
    phony = re.findall(r"^\.PHONY: ([a-z0-9-]+)$", makefile, re.MULTILINE)
    helped = subprocess.run(["make"], cwd=REPO, check=True, capture_output=True, text=True).stdout
    assert len(phony) >= 8
    assert [target for target in phony if f"make {target} " not in helped] == []


def test_relative_links_lead_somewhere() -> None:
    """Every relative link of every page names a file of the repository."""
    dead = [
        f"{page.relative_to(REPO)}: {link}"
        for page in tracked()
        if page.suffix == ".md"
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text(page))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert dead == []


def test_the_architecture_page_names_every_room_and_no_other() -> None:
    """A reader of the page can find every folder, and every folder on it exists."""
    page = text(REPO / "docs" / "explanation" / "architecture.md")
    named = set(re.findall(rf"`((?:{'|'.join(LAYERS)})/[\w/]+)`", page))
    rooms = {
        str(path.parent.relative_to(REPO))
        for layer in LAYERS
        for path in (REPO / layer).rglob("*.py")
    } - set(LAYERS)
    assert named == rooms


def test_packages_are_imported_by_their_full_names() -> None:
    """``import planner`` would work by accident of the working directory."""
    short = [
        str(path)
        for folder in (*LAYERS, "tests", "benchmarks")
        for path in (REPO / folder).rglob("*.py")
        if re.search(r"^\s*(from|import) (planner|perfmodel)\b", text(path), re.MULTILINE)
    ]
    assert short == []


# The points that the first path is held to.
POINTS = {
    *(f"A{n}" for n in (*range(1, 13), *range(14, 40), *range(41, 50))),
    *(f"B{n}" for n in (*range(1, 17), *range(18, 45), 46, 47)),
    *(f"C{n}" for n in range(1, 10)),
}
ACCEPTANCE = REPO / "docs" / "evidence" / "acceptance.md"


def acceptance_rows() -> dict[str, list[str]]:
    """Tests that each row of the acceptance table names, by the row's id."""
    rows = re.findall(r"^\| ([ABC]\d+) \|(.*)$", text(ACCEPTANCE), re.MULTILINE)
    return {point: re.findall(r"`(tests/[\w/]+\.py::\w+)`", row) for point, row in rows}


def test_every_acceptance_point_has_a_row_with_a_test() -> None:
    """No point is claimed without a test that can fail."""
    rows = acceptance_rows()
    assert set(rows) == POINTS
    assert [point for point, tests in rows.items() if not tests] == []


def test_every_test_that_a_page_names_exists() -> None:
    """A renamed test takes its row with it."""
    missing = [
        f"{page.name}: {path}::{function}"
        for page in tracked()
        if page.suffix == ".md"
        for path, function in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text(page))
        if not re.search(rf"def {function}\(", text(REPO / path))
    ]
    assert missing == []
