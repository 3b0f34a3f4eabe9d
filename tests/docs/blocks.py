"""Finds every fenced block, every line typed in one, and every command in code marks of a page."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]

SHELL, SESSION = "sh", "console"
LANGUAGES = {SHELL, SESSION, "yaml", "json", "csv", "python", "text"}
PROGRAMS = ("archipelago", "kubectl", "make", "python", "pip", "uv", "helm", "docker")

_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(.*?)\s*$")
_COMMENT = re.compile(r"(^|\s+)#\s.*$")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its opening fence, counted from 1."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """What a page tells people to type; ``shown`` is the answer that it prints, None: it has none.

    ``block`` is the line of the page where its block begins.
    """

    page: str
    block: int
    text: str
    shown: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.block}"


@dataclass(frozen=True)
class Page:
    """A page taken apart; ``problems`` says what keeps a test from running all of it."""

    name: str
    blocks: tuple[Block, ...]
    prose: str
    problems: tuple[str, ...]

    @property
    def commands(self) -> tuple[Command, ...]:
        """Everything that is typed in its blocks, in order."""
        return tuple(command for block in self.blocks for command in commands(block))

    @property
    def mentions(self) -> tuple[str, ...]:
        """Commands in code marks in the text and the tables, each once."""
        found = [code.replace("\\|", "|").strip() for code in _CODE.findall(self.prose)]
        return tuple(
            dict.fromkeys(c for c in found if c.startswith(tuple(f"{p} " for p in PROGRAMS)))
        )


def names() -> list[str]:
    """Every Markdown page that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=REPO, check=True, capture_output=True, text=True
    )
    return sorted(name for name in listed.stdout.split("\0") if (REPO / name).is_file())


def pages() -> list[Page]:
    """All of them, taken apart."""
    return [page(name, (REPO / name).read_text()) for name in names()]


def page(name: str, text: str) -> Page:
    """Take a page apart."""
    blocks: list[Block] = []
    prose: list[str] = []
    problems: list[str] = []
    fence, opened, language, inside = "", 0, "", list[str]()
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2]:
                blocks.append(Block(name, opened, language, "".join(f"{ln}\n" for ln in inside)))
                fence = ""
            else:
                inside.append(line)
        elif found:
            fence, opened, language, inside = found[1], number, found[2], []
            if language not in LANGUAGES:
                said = f"unknown language {language!r}" if language else "no language"
                problems.append(f"{name}:{number}: a block with {said}")
        else:
            if line.startswith(("    ", "\t")) and not before.strip() and line.strip():
                problems.append(f"{name}:{number}: an indented block, which has no language")
            prose.append(line)
        before = line
    if fence:
        problems.append(f"{name}:{opened}: a block that never ends")
    return Page(name, tuple(blocks), "\n".join(prose), tuple(problems))


def commands(block: Block) -> Iterator[Command]:
    """What is typed in a block, comments left out and continued lines joined."""
    if block.language == SHELL:
        for line in _joined(block.text).splitlines():
            if typed := _COMMENT.sub("", line).strip():
                yield Command(block.page, block.line, typed)
    if block.language == SESSION:
        head, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        if head.strip():
            raise ValueError(f"{block.page}:{block.line}: a session begins with $")
        for part in parts:
            typed, _, shown = _joined(part).partition("\n")
            yield Command(block.page, block.line, typed.strip(), shown)


def _joined(text: str) -> str:
    return re.sub(r"\s*\\\n\s*", " ", text)
