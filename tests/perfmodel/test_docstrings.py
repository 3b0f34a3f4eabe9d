"""Each public function of the physics states its units and its source in its docstring.

A unit stands in square brackets after what it belongs to. A source is a section of the design
page, an arXiv number or DOI, a data sheet, or a repository at a commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/performance-model.md"
FOLDERS = ("roofline", "capacity", "literature", "workload")

PLAIN = {"float", "int", "FloatArray", "NDArray"}
"""Types of arguments that are figures."""

FIGURES = PLAIN | {"AffineStep", "DecodePoint", "RangeMoments", "Parts", "XiongParameters"}
"""Types of results that are figures."""

UNITS = (
    "1|any|s|s\\^2|ms|B|B/s|GiB|FLOP/s|TFLOP/s|req/s|s/sequence|s/token|island-seconds|GPUs|domains|"
    "stages|layers|rows|experts|copies|sequences|tokens|tokens\\^2"
)
UNIT = re.compile(rf"\[({UNITS})( per [\w ]+|[, ] ?[\w ^2]+)?\]")
PAPER = re.compile(r"arXiv:\d{4}\.\d{5}|doi:10\.\d{4,}/\S+|data sheet|[\w-]+/[\w-]+ @ [0-9a-f]{7}")
SECTION = re.compile(r"docs/explanation/performance-model\.md#([\w-]+)")


@dataclass(frozen=True)
class Documented:
    """A public function that returns figures: name, docstring, names of its numeric arguments."""

    name: str
    text: str
    arguments: tuple[str, ...]


def figures(folder: str, source: str) -> Iterator[Documented]:
    """Public functions and methods of public classes that return figures."""

    def walk(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Documented]:
        for child in node.body:
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                yield from walk(child, f"{prefix}{child.name}.")
            if not isinstance(child, ast.FunctionDef) or child.name.startswith("_"):
                continue
            if types(child.returns) & FIGURES:
                numeric = [a.arg for a in arguments(child) if types(a.annotation) & PLAIN]
                text = ast.get_docstring(child) or ""
                yield Documented(f"{prefix}{child.name}", text, tuple(numeric))

    yield from walk(ast.parse(source), f"{folder}.")


def types(annotation: ast.expr | None) -> set[str]:
    """Names in an annotation."""
    return set(re.findall(r"\w+", ast.unparse(annotation))) if annotation else set()


def arguments(function: ast.FunctionDef) -> list[ast.arg]:
    """Positional and keyword arguments."""
    return [*function.args.args, *function.args.kwonlyargs]


def every() -> list[Documented]:
    """All of them, in the order of the files."""
    paths = [p for name in FOLDERS for p in sorted((ROOT / "perfmodel" / name).glob("*.py"))]
    return [found for p in paths for found in figures(f"{p.parent.name}.{p.stem}", p.read_text())]


def anchors() -> set[str]:
    """Sections of the design page, as links name them."""
    titles = re.findall(r"^#+ (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def faults(function: Documented, sections: set[str]) -> list[str]:
    """What a docstring lacks; empty if it is complete."""
    summary, _, _ = function.text.partition("\n\n")
    missing = [] if UNIT.search(summary) else ["unit of the result"]
    missing += [
        f"unit of {name}" for name in function.arguments if not unit_of(name, function.text)
    ]
    source = re.search(r"^Source: (.+?)(\n\n|\Z)", function.text, re.MULTILINE | re.DOTALL)
    links = SECTION.findall(source[1]) if source else []
    if not source or not (links or PAPER.search(source[1])):
        missing.append("source")
    return missing + [f"section {link}" for link in links if link not in sections]


def unit_of(name: str, text: str) -> re.Match[str] | None:
    """The unit that follows an argument's name in its sentence or entry."""
    return re.search(rf"\b{name}\b.{{0,200}}?{UNIT.pattern}", text, re.DOTALL)


@pytest.mark.parametrize("function", every(), ids=lambda function: function.name)
def test_units_and_source_are_stated(function: Documented) -> None:
    """A reader can check a number without leaving the file."""
    assert faults(function, anchors()) == []


def test_all_functions_are_read() -> None:
    """The list is not empty by mistake, and each folder has its part of it."""
    names = [function.name for function in every()]
    assert len(names) >= 100
    assert len(set(names)) == len(names)
    least = {"roofline": 40, "capacity": 15, "literature": 25, "workload": 6}
    for folder, count in least.items():
        assert sum(name.startswith(f"{folder}.") for name in names) >= count


PLANTED = '''
def time(size: float) -> float:
    """Return {result} of ``size`` {argument}.

    {source}
    """
'''


@pytest.mark.parametrize(
    ("result", "argument", "source", "expected"),
    [
        ("seconds [s]", "[B]", "Source: arXiv:2403.02310.", []),
        ("seconds", "bytes", "Source: arXiv:2403.02310.", ["unit of the result", "unit of size"]),
        ("seconds [s]", "[B]", "It is known.", ["source"]),
        ("seconds [s]", "[B]", "Source: a colleague.", ["source"]),
        (
            "seconds [s]",
            "[B]",
            "Source: docs/explanation/performance-model.md#nowhere.",
            ["section nowhere"],
        ),
    ],
)
def test_a_planted_function_is_judged(
    result: str, argument: str, source: str, expected: list[str]
) -> None:
    """The rules find what is missing, and only that."""
    text = PLANTED.format(result=result, argument=argument, source=source)
    (function,) = figures("planted", text)
    assert faults(function, anchors()) == expected
