"""Labels that mark the pods of an island, and names shortened to fit.

A shortened name ends with a hash of the whole, so that two names never become one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

GROUP: Final = "archipelago.dev"
PLAN_LABEL: Final = f"{GROUP}/plan"
ISLAND_LABEL: Final = f"{GROUP}/island"
PHASE_LABEL: Final = f"{GROUP}/phase"
ROLE_LABEL: Final = f"{GROUP}/role"
DO_NOT_DISRUPT: Final = f"{GROUP}/do-not-disrupt"
"""Annotation of a pod or node: ``"true"`` keeps its islands from changes by choice."""

VALUE_LENGTH: Final = 63
"""Longest label value or DNS label [characters]."""
HASH_LENGTH: Final = 8
ROLE_LENGTH: Final = 16
EITHER: Final = "either"
"""Phase of pods that serve prefill or decode, as each request asks."""


_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""One encoder for all islands: to make one for each takes twice as long."""


def role_of(island: Mapping[str, Any], model: str) -> str:
    """Return what the pods of an island are: a hash, and the phase; others are not its own.

    ``island``: its entry in the table. ``maxBatch`` is not part of it: an island that stays keeps
    the one that its pods were started with.
    """
    stays = {name: value for name, value in island.items() if name not in ("maxBatch", "phase")}
    found = hashlib.sha256(_compact([model, stays]).encode()).hexdigest()[:ROLE_LENGTH]
    return f"{found}-{island['phase']}"


def roles_of(role: str) -> tuple[str, str]:
    """Return the roles of pods that serve as that role: it, and that of pods for either phase."""
    return role, f"{role.rpartition('-')[0]}-{EITHER}"


def label_value(name: str) -> str:
    """Return ``name`` if it fits a label value (63 characters), else cut with a hash of it."""
    return short_name(name, VALUE_LENGTH)


def short_name(name: str, length: int) -> str:
    """Return ``name`` if it is no longer, else cut with a hash: two names never become one."""
    if len(name) <= length and not looks_hashed(name):
        return name
    return f"{cut(name, length - HASH_LENGTH - 1)}-{digest(name)}"


def plain_label(value: str) -> str:
    """Return the value in lower case, with ``-`` for all that a DNS label has not; any length."""
    return re.sub(r"[^a-z0-9]+", "-", value.casefold()).strip("-")


def hashed_label(value: str) -> str:
    """Return a DNS label of a value: its plain beginning, and a hash of the whole."""
    room = VALUE_LENGTH - HASH_LENGTH - 1
    return f"{plain_label(value)[:room].strip('-')}-{digest(value)}".strip("-")


def looks_hashed(name: str) -> bool:
    """Return whether a name could be mistaken for a shortened one; it is hashed as well."""
    return re.search(rf"-[0-9a-f]{{{HASH_LENGTH}}}$", name) is not None


def cut(name: str, length: int) -> str:
    """Return the beginning of a name, ending as a label may end."""
    return name[:length].rstrip("-.")


def digest(name: str) -> str:
    """Return the first digits of a name's hash."""
    return hashlib.sha256(name.encode()).hexdigest()[:HASH_LENGTH]
