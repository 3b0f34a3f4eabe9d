"""Every block of every page is run, or stands in the table of tests/docs/listed.py with a reason.

Here: what needs no cluster. ``test_typed_on_a_cluster.py`` types the rest.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from archipelago.operator.kubectl.plugin import splan
from archipelago.planner.cli.app import cli
from archipelago.planner.errors import SpecError
from archipelago.planner.explain.what_if import changed
from archipelago.planner.servingplan import load_resource
from tests.docs.answers import differences
from tests.docs.blocks import REPO, Page, names, page, pages
from tests.docs.documents import DATA, documents, excerpt_problem, problem, shown, to_apply
from tests.docs.listed import COMMANDS, DRAWINGS, EXCERPTS, EXIT_CODES, MENTIONS, PYTHON, SAVED
from tests.docs.prose import findings
from tests.docs.workshop import Workshop, needs_cluster, words

PAGES = {found.name: found for found in pages()}
TYPED = [
    name
    for name, found in PAGES.items()
    if any(not needs_cluster(command.text) for command in found.commands)
]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop.at(tmp_path_factory.mktemp("docs") / "repository")


@pytest.fixture(scope="module")
def plan(workshop: Workshop) -> dict[str, Any]:
    """The plan of the first example, which the pages show."""
    done = workshop.type("archipelago plan -q -f examples/01-llama-on-two-pools.yaml -o json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_block_has_a_language_that_the_tests_know() -> None:
    assert [problem for found in PAGES.values() for problem in found.problems] == []


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "README.md" else pytest.mark.slow) for n in TYPED]
)
def test_what_a_page_types_comes_true(name: str, workshop: Workshop) -> None:
    """In the page's order, in one folder: what a line writes the next ones read."""
    for language, file in SAVED.get(name, {}).items():
        block = next(block for block in PAGES[name].blocks if block.language == language)
        (workshop.folder / file).write_text(block.text + "\n")
    here = [command for command in PAGES[name].commands if not needs_cluster(command.text)]
    assert [found for found in map(workshop.problem, here) if found] == []


def test_what_pages_show_as_yaml_and_json_is_read(plan: dict[str, Any]) -> None:
    """Plans of the page are what the program makes, to 2 %; resources and tables are valid."""
    objects = list(shown(PAGES.values()))
    assert objects
    wrong = [(f"{b.page}:{b.line}", problem(document, plan)) for b, document in objects]
    assert [found for found in wrong if found[1]] == []


@pytest.mark.parametrize("name", EXCERPTS)
def test_excerpts_of_files_are_part_of_them(name: str) -> None:
    blocks = [block for block in PAGES[name].blocks if block.language in DATA]
    assert blocks
    assert [problem for block in blocks if (problem := excerpt_problem(block))] == []


def test_the_table_of_what_is_not_run_has_no_line_too_many() -> None:
    """Each line stands on a page, has a reason, and names something that is there."""
    commands = {command.text for found in PAGES.values() for command in found.commands}
    mentions = {mention for found in PAGES.values() for mention in found.mentions}
    assert COMMANDS.keys() - commands == set()
    assert MENTIONS.keys() - mentions == set()
    assert EXIT_CODES.keys() - commands == set()
    for listed in (*COMMANDS.values(), *MENTIONS.values()):
        assert listed.why
        if listed.by:
            file, word = listed.by
            assert word in (REPO / file).read_text(), listed
    makes = {text for text in commands if text.startswith("make ")}
    assert makes - COMMANDS.keys() == set()


def test_drawings_and_python_are_where_the_table_says() -> None:
    """A page with a drawing or with code is in its list, and the test of the code names it."""
    for language, listed in (("text", DRAWINGS), ("python", PYTHON)):
        having = {
            b.page for found in PAGES.values() for b in found.blocks if b.language == language
        }
        assert having == listed.keys()
    for name, test in PYTHON.items():
        assert Path(name).name in (REPO / test).read_text(), test


@pytest.mark.parametrize("name", [name for name, found in PAGES.items() if found.mentions])
def test_commands_in_code_marks_have_the_names_and_options_that_they_show(name: str) -> None:
    assert [found for found in map(unknown, PAGES[name].mentions) if found] == []


def unknown(mention: str) -> str:
    """What of a command in code marks does not exist."""
    if mention in MENTIONS:
        return ""
    told = (_unknown(*words(part)) for part in mention.split(" | "))
    return next((f"{mention}: {problem}" for problem in told if problem), "")


def _unknown(program: str, *rest: str) -> str:
    """The same of one program and its arguments; kubectl's own are typed on a cluster."""
    if program == "kubectl" and rest[0] == "splan":
        return _missing(splan, rest[1:])
    if program == "archipelago":
        return _missing(cli, rest)
    makefile = (REPO / "Makefile").read_text()
    known = {
        "kubectl": True,
        "python": rest[:1] == ("-m",) and find_spec(rest[1]) is not None,
        "make": bool(rest and re.search(rf"^{rest[0]}:", makefile, re.MULTILINE)),
    }
    if known.get(program) or program in cli.commands:  # `archipelago plan | verify`
        return ""
    return "no such module or target" if program in known else "neither run nor listed"


def _missing(group: click.Group, rest: Sequence[str]) -> str:
    """The first word that is no command or option of ours."""
    command: click.Command = group
    for word in rest:
        if word.startswith("-") and word != "-":
            options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
            if word.partition("=")[0] not in options | {"--help", "-h"}:
                return f"no {word}"
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return f"no {word}"
            command = found
    return ""


def test_each_change_in_the_table_of_what_ifs_changes_a_plan() -> None:
    """All of them to one plan that has a pool, a model and a link of these names."""
    table = (REPO / "docs" / "reference" / "cli.md").read_text().partition("## what if")[2]
    rows = re.findall(r"^\| (`.*?`) \|", table.partition("\n## ")[0], re.MULTILINE)
    changes = [change for row in rows for change in re.findall(r"`([^`]+)`", row)]
    assert len(changes) >= 14
    body = yaml.safe_load((REPO / "examples" / "06-two-zones.yaml").read_text())
    spec = body["spec"]
    spec["models"][0]["name"] = "llama"
    spec["network"]["links"][0]["name"] = "wan"
    spec["budgetPerHour"] = "100"
    spec["pools"][1].update(
        domains=[{"name": "rack-1", "nodes": 3, "class": "zone-b"}], maxCount=32
    )
    for pool in spec["pools"]:
        pool["pricePerGPUHour"] = "2"
    before = load_resource(body)
    assert [change for change in changes if changed(before, (change,)) == before] == []


# The tests of the tests: what is planted is found.

PLANTED = """# A page

```sh
archipelago catalogue models   # fine
archipelago plan -f none.yaml
make nothing \\
  AT=all
```

```console
$ archipelago --help
Usage: archipelago [OPTIONS] COMMAND [ARGS]...
...
$ echo 100 apples in 3 s
130 apples in 5 s
```

```yaml
spec:
  pools: [{name: h100, accelerator: H100, count: many}]
```

Say `archipelago plan --fast` or `make nonsense` or `cargo build`, `uv sync`.
"""


def planted() -> Page:
    return page("planted.md", PLANTED)


def test_all_that_is_planted_is_found() -> None:
    found = planted()
    assert [block.language for block in found.blocks] == ["sh", "console", "yaml"]
    assert [(command.text, command.block) for command in found.commands] == [
        ("archipelago catalogue models", 3),
        ("archipelago plan -f none.yaml", 3),
        ("make nothing AT=all", 3),
        ("archipelago --help", 10),
        ("echo 100 apples in 3 s", 10),
    ]
    assert found.mentions == ("archipelago plan --fast", "make nonsense", "uv sync")
    assert found.problems == ()


@pytest.mark.slow
def test_a_planted_line_that_fails_or_prints_something_else_fails(workshop: Workshop) -> None:
    told = [workshop.problem(command) for command in planted().commands]
    assert [bool(problem) for problem in told] == [False, True, True, False, True]
    assert "ended with 2, not 0" in told[1]
    assert "none.yaml" in told[1]
    assert "130 apples" in told[4]


def test_a_planted_option_target_and_program_fail() -> None:
    assert [unknown(mention) for mention in planted().mentions] == [
        "archipelago plan --fast: no --fast",
        "make nonsense: no such module or target",
        "uv sync: neither run nor listed",
    ]


def test_a_planted_part_of_a_spec_is_read_within_the_smallest_example() -> None:
    (block,) = [block for block in planted().blocks if block.language == "yaml"]
    (part,) = documents(block)
    whole = to_apply(part)
    assert whole is not None
    assert whole["metadata"]["name"] == "minimal"
    with pytest.raises(SpecError, match="count"):
        problem(part, {})
    part["spec"]["pools"][0]["count"] = 8
    assert problem(part, {}) == ""


def test_a_planted_table_and_plan_are_judged() -> None:
    version = {"apiVersion": "archipelago.dev/v1alpha1"}
    assert problem({**version, "kind": "RoutingTable"}, {})
    planned = {**version, "kind": "Plan", "theta": 1.5}
    assert problem(planned, {**planned, "theta": 1.6})
    assert problem(planned, {**planned, "theta": 1.51}) == ""
    assert to_apply({"apiVersion": "v1", "kind": "ConfigMap"}) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```\nplan\n```\n", "planted.md:1: a block with no language"),
        ("\n```zsh\nplan\n```\n", "planted.md:2: a block with unknown language 'zsh'"),
        ("so:\n\n    plan\n", "planted.md:3: an indented block, which has no language"),
        ("```sh\nplan\n", "planted.md:1: a block that never ends"),
    ],
)
def test_a_planted_block_that_no_test_could_read_fails(text: str, said: str) -> None:
    assert page("planted.md", text).problems == (said,)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nb\nc\n", False),
        ("a\n", "b\n", False),
        ("b\na\n", "a\nb\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("a\n...\ne\n", "a\nb\nc\nd\n", False),
        ("a\n...\nb c\n...\n", "a\nx\nb d\n", False),
        ("a b ...\n", "a b c d\n", True),
        ("100.0% of $4.00, 1,000", "100.9% of $4.05, 1,010", True),
        ("100 %", "103 %", False),
        ("100%", "100", False),
        ("in 0.2 s", "in 1.4 s", True),
        ("11s old", "2m3s old", True),
        ("at 2026-11-21T14:55:25Z", "at 2027-01-01T00:00:00Z", True),
        ("content bb3c10ada1ae", "content 0123456789ab", True),
        ("a\n", "1 s: solving 5%\na\n", True),
    ],
)
def test_answers_are_compared_by_their_words(shown: str, printed: str, *, same: bool) -> None:
    assert (differences(shown, printed) == "") is same


def test_every_page_is_looked_at() -> None:
    """The list comes from git, as the pages do."""
    assert {"README.md", "docs/reference/cli.md", "examples/README.md"} <= set(names())
    assert {"README.md", "docs/reference/cli.md"} <= set(TYPED)


def test_a_planted_word_is_found_with_its_place_and_code_is_not_read() -> None:
    text = "# A page\n\nWhoever reads `whoever` mends it.\n\n```text\nwhoever\n```\n"
    assert list(findings("planted.md", text)) == [
        "planted.md:3: Write 'the name of the person or part' instead of 'Whoever'.",
        "planted.md:3: Write 'fix' instead of 'mends'.",
    ]


def test_a_table_with_a_wrong_number_of_cells_is_found(tmp_path: Path) -> None:
    """By the Markdown linter with the settings of the repository."""
    (tmp_path / "planted.md").write_text("# A page\n\n| a | b |\n|---|---|\n| 1 | 2 | 3 |\n")
    rumdl = str(Path(sys.executable).parent / "rumdl")
    done = subprocess.run(
        [rumdl, "check", "--config", str(REPO / "pyproject.toml"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "planted.md:5:1: [MD056]" in done.stdout


PATH = re.compile(r"`((?:operator|planner|perfmodel|deploy|tests|examples|docs)/[\w./-]+)`")


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/how-to/")])
def test_every_path_of_a_how_to_page_exists(name: str) -> None:
    """A file that moves takes its page with it."""
    page = PAGES[name]
    typed = [word for c in page.commands for word in c.text.split() if word.startswith("tests/")]
    assert [path for path in PATH.findall(page.prose) + typed if not (REPO / path).exists()] == []


def test_the_program_of_the_python_page_plans_the_first_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/reference/python.md: the program, and what it prints."""
    program, printed = PAGES["docs/reference/python.md"].blocks
    monkeypatch.chdir(REPO)
    exec(program.text, {})  # noqa: S102  # ours
    assert differences(printed.text, capsys.readouterr().out) == ""
