"""The ServingPlans of this folder: ``good`` ones are accepted, ``bad`` ones break one rule each.

A bad manifest begins with comments: ``path`` of the field, and a piece of the message that must
appear: ``remedy`` in both places, or ``offline`` (command line) and ``online`` (API server).
"""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Bad:
    """One rule broken: where, and what must be said about it."""

    name: str
    text: str
    path: str
    offline: str
    online: str


def bad() -> list[Bad]:
    """Every bad manifest, by name."""
    return [_read(file) for file in sorted((HERE / "bad").glob("*.yaml"))]


def good() -> dict[str, str]:
    """Name and text of every manifest that must be accepted."""
    return {file.stem: file.read_text() for file in sorted((HERE / "good").glob("*.yaml"))}


def _read(file: Path) -> Bad:
    text = file.read_text()
    head = dict(
        line.removeprefix("# ").split(": ", 1)
        for line in text.splitlines()
        if line.startswith("# ")
    )
    both = head.get("remedy", "")
    return Bad(file.stem, text, head["path"], head.get("offline", both), head.get("online", both))
