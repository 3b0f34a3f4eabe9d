"""What the engine of an island is started with, as far as the spec states it: a text of the table.

``chunkTokens=4096;kvDtype=fp8``: names of the API in alphabetical order. A table has it with each
island, so that pods follow the table, also while islands of two specs stand side by side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .errors import PlanFileError

WHOLE = r"[1-9][0-9]{0,8}"
FACTS: Final[Mapping[str, str]] = {
    "chunkTokens": WHOLE,
    "draftTokens": WHOLE,
    "kvDtype": "bf16|fp8",
    "memoryShare": r"[01](\.[0-9]{1,6})?",
    "name": "vllm|sglang|tensorrt-llm",
    "prefixCaching": "on",
    "twoBatchOverlap": "on",
}
"""Facts by name, each with the pattern of its values."""


def started_text(facts: Mapping[str, object]) -> str:
    """Return the text of facts; those that are None are left out. Empty if there is none."""
    return ";".join(f"{name}={facts[name]}" for name in sorted(facts) if facts[name] is not None)


def started_facts(text: str) -> dict[str, str]:
    """Return the facts of a text.

    Raises:
        PlanFileError: it is no such text.
    """
    facts: dict[str, str] = {}
    for item in text.split(";") if text else ():
        name, _, value = item.partition("=")
        if name in facts or not re.fullmatch(FACTS.get(name, "(?!)"), value):
            raise PlanFileError(
                f"started: {item[:40]!r} is none of {', '.join(FACTS)} with its value, once each; "
                "it is the table of another version"
            )
        facts[name] = value
    if started_text(facts) != text:
        raise PlanFileError("started: its names are not in alphabetical order")
    return facts
