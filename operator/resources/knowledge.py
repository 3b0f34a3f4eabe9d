"""The ConfigMap that keeps what a plan has learnt: its name, its text, and how that is read; pure.

The text is foreign: anybody with the right may have changed it. A reader gives what was kept or a
named refusal. Nothing depends on it but the first windows after a restart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from archipelago.planner.documents import canonical_bytes, read_json
from archipelago.planner.errors import PlanFileError
from archipelago.planner.service.knowledge import Knowledge, knowledge_document, read_knowledge

from .names import API_VERSION, Key, table_labels, table_name, timestamp

KNOWLEDGE_KEY: Final = "knowledge.json"
KNOWLEDGE_BYTES: Final = 256 * 1024
"""Most that is kept [B]: a thousand islands take a ninth of it."""
VERSION: Final = 1
"""Of the text. Another one is refused: what it means is not known here."""

_KIND: Final = "PlanKnowledge"
_SUFFIX: Final = "-learnt"


@dataclass(frozen=True)
class Kept:
    """What is stored, and when it was so."""

    knowledge: Knowledge
    time: datetime


def knowledge_name(plan: str) -> str:
    """Return the name of the ConfigMap: a DNS label that no table, shard or other plan has."""
    return table_name(plan).removesuffix("-routing") + _SUFFIX


def knowledge_key(plan: Key) -> Key:
    """Return the key of the plan's ConfigMap."""
    return Key(plan.namespace, knowledge_name(plan.name))


def is_knowledge(name: str) -> bool:
    """Return whether it is the name of such a ConfigMap."""
    return name.endswith(_SUFFIX)


def knowledge_labels(plan: str) -> dict[str, str]:
    """Return labels that our watch selects."""
    return table_labels(plan) | {"app.kubernetes.io/name": "plan-knowledge"}


def knowledge_text(kept: Kept) -> str:
    """Return what is stored, as canonical JSON."""
    content = knowledge_document(kept.knowledge)
    document = {
        "apiVersion": API_VERSION,
        "checksum": _checksum(content),
        "content": content,
        "kind": _KIND,
        "time": timestamp(kept.time),
        "version": VERSION,
    }
    return canonical_bytes(document).decode("ascii")


def read_kept(text: object) -> Kept:
    """Read what is stored.

    Raises:
        PlanFileError: it is not what an operator of this version has written.
    """
    if isinstance(text, str) and len(text) > KNOWLEDGE_BYTES:
        raise PlanFileError(f"{len(text)} bytes, at most {KNOWLEDGE_BYTES} are kept")
    document = read_json(text)
    form = (document.field("apiVersion").value, document.field("kind").value)
    if form != (API_VERSION, _KIND):
        raise document.field("kind").refuse(f"{_KIND} of {API_VERSION}")
    version = document.field("version").integer(1)
    if version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise PlanFileError(f"version {version} is of {age} operator, this one reads {VERSION}")
    content = document.field("content")
    if document.field("checksum").sha256() != _checksum(content.mapping()):
        raise PlanFileError("checksum: the content is not what was written")
    return Kept(read_knowledge(content.value), document.field("time").time())


def _checksum(content: object) -> str:
    return hashlib.sha256(canonical_bytes(content)).hexdigest()
