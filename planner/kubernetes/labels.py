"""Labels by which the operator, metrics and people know whose pods they see; names that fit.

Whatever is cut to fit gets a hash of the whole, so that two names never meet in one.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

GROUP: Final = "archipelago.dev"
PLAN_LABEL: Final = f"{GROUP}/plan"
ISLAND_LABEL: Final = f"{GROUP}/island"
PHASE_LABEL: Final = f"{GROUP}/phase"

VALUE_LENGTH: Final = 63
"""Characters of a label's value, and of a DNS label."""
HASH_LENGTH: Final = 8


def label_value(name: str) -> str:
    """``name`` where it fits a label value (63 characters), else cut and with a hash of it."""
    return short_name(name, VALUE_LENGTH)


def short_name(name: str, length: int) -> str:
    """``name`` where it is no longer, else cut and with a hash of it: never two names in one."""
    if len(name) <= length and not looks_hashed(name):
        return name
    return f"{cut(name, length - HASH_LENGTH - 1)}-{digest(name)}"


def looks_hashed(name: str) -> bool:
    """Whether an ordinary name could be mistaken for one that we made; it is hashed as well."""
    return re.search(rf"-[0-9a-f]{{{HASH_LENGTH}}}$", name) is not None


def cut(name: str, length: int) -> str:
    """The beginning of a name, ending as a label may end."""
    return name[:length].rstrip("-.")


def digest(name: str) -> str:
    """The first digits of the hash of a name."""
    return hashlib.sha256(name.encode()).hexdigest()[:HASH_LENGTH]
