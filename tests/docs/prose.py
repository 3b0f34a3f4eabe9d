"""Check the English of the pages: ``python -m tests.docs.prose``; `make check` runs it.

proselint looks for what it knows to be bad style (the checks of ``STYLE``) and for the words of
``words.yaml``, which is our own list. Both see only the text of a page: no blocks, no code marks.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from proselint.checks import __register__
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, types
from proselint.tools import LintFile

from tests.docs.blocks import REPO, names

WORDS = Path(__file__).with_name("words.yaml")
STYLE = (
    "archaism",
    "cliches",
    "industrial_language.commercialese",
    "industrial_language.corporate_speak",
    "lexical_illusions",
    "malapropisms",
    "mixed_metaphors",
    "mondegreens",
    "nonwords",
    "redundancy",
    "uncomparables",
)
OURS = "words"
# History, and what programs write.
LEFT_OUT = ("docs/designs/",)

_CODE = re.compile(r"`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->")


def prose(text: str) -> str:
    """Return the text of a page; its blocks and code are blanked out, line by line."""
    lines, fence = [], ""
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[1]
            lines.append("·")
        else:
            heading = "." if line.startswith("#") else ""  # its words end there
            lines.append("·" if fence else _CODE.sub("·", line) + heading)
    return "\n".join(lines)


def ours() -> Check:
    """Return the check of our own list; a space in a phrase also stands for the end of a line."""
    phrases = yaml.safe_load(WORDS.read_text())
    return Check(
        check_type=types.PreferredForms(
            {phrase.replace(" ", r"\s+"): plain for phrase, plain in phrases.items()}
        ),
        path=OURS,
        message="Write '{}' instead of '{}'.",
    )


def findings(name: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a page, with place and remedy."""
    if not CheckRegistry().checks:
        CheckRegistry().register_many((*__register__, ours()))
    enabled = {**dict.fromkeys(STYLE, True), OURS: True}
    for result in LintFile(name, prose(text)).lint({"checks": enabled, "max_errors": 10_000}):
        message = " ".join(result.check_result.message.split())
        yield f"{name}:{result.pos[0]}: {message}"


def main() -> int:
    """Check every page of the repository, or the pages named on the command line."""
    pages = sys.argv[1:] or [name for name in names() if not name.startswith(LEFT_OUT)]
    problems = [line for name in pages for line in findings(name, (REPO / name).read_text())]
    print(*problems, sep="\n", end="\n" if problems else "")  # noqa: T201
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
