"""Names of accelerators as people, drivers and node labels write them.

``NVIDIA-H100-80GB-HBM3``, ``h100 sxm5`` and ``H100`` are one accelerator. A name that fits several
is none: a guess between 40 and 80 GB, or between NVLink and PCIe, is a plan that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import UnknownName

_IGNORED = frozenset(
    "nvidia amd intel huawei google aws instinct geforce tesla radeon gpu gpus accelerator tensor "
    "core blackwell generation edition hbm2 hbm2e hbm3 hbm3e".split()
)
"""Words that tell no two accelerators of the catalogue apart."""
_FORM = re.compile(r"sxm|pcie|nvl\d*|oam|hgx|dgx|server|workstation")
_MEMORY = re.compile(r"(\d+)(?:g|gb|gib)")
_STEM = re.compile(r"[a-z]*\d+")
_LEAST, _MOST = 0.88, 1.03
"""Memory by driver or data sheet, as share of the GiB in a name: reserves, decimal GB."""


@dataclass(frozen=True)
class Named:
    """What names may say of a row: its names, its memory [B], and that it is a PCIe card."""

    names: tuple[str, ...]
    memory: float
    card: bool


def resolve(rows: Mapping[str, Named], name: str) -> str:
    """Return the row that a name means: its own or an alias, else what is left without vendor.

    Raises:
        UnknownName: no row, or several; the message lists those that it may be.
    """
    folded, wanted = name.casefold().strip(), _key(name)
    for same in (
        [row for row, named in rows.items() if folded in map(str.casefold, named.names)],
        [row for row, named in rows.items() if wanted in map(_key, named.names)],
        [row for row, named in rows.items() if _fits(named, name)],
    ):
        if len(same) == 1:
            return same[0]
        if same:
            raise UnknownName(f"accelerator {name!r} may be {_either(same)}: name one of them")
    stem = _stem(name)
    close = [row for row in rows if stem and _stem(row) == stem]
    hint = f"; did you mean {_either(close)}?" if close else ""
    raise UnknownName(f"unknown accelerator {name!r}{hint} (known: {', '.join(sorted(rows))})")


def model_of(name: str) -> str:
    """Return what a name says apart from vendor, form factor and memory: ``a100``, ``rtx4090``."""
    return _model(_words(name))


def _words(name: str) -> list[str]:
    words = re.sub(r"sxm\d", "sxm", name.casefold()).replace("(", " ").replace(")", " ")
    return [word for word in re.split(r"[\s_/-]+", words) if word and word not in _IGNORED]


def _key(name: str) -> str:
    return "".join(_words(name))


def _model(words: Iterable[str]) -> str:
    return "".join(word for word in words if not (_FORM.fullmatch(word) or _MEMORY.fullmatch(word)))


def _stem(name: str) -> str:
    """Return letters and digits that a model's name begins with: ``a10`` of A10G."""
    found = _STEM.match(model_of(name))
    return found[0] if found else ""


def _fits(named: Named, name: str) -> bool:
    """Return whether a name says nothing that the row is not."""
    words = _words(name)
    own = {word for each in named.names for word in _words(each)} | ({"pcie"} if named.card else set())
    forms = {word for word in words if _FORM.fullmatch(word)}
    sizes = [float(found[1]) * 2**30 for word in words if (found := _MEMORY.fullmatch(word))]
    return (
        _model(words) in {model_of(each) for each in named.names}
        and forms <= own
        and all(_LEAST <= named.memory / size <= _MOST for size in sizes if size)
    )


def _either(names: Iterable[str]) -> str:
    *rest, last = sorted(names)
    return f"{', '.join(rest)} or {last}" if rest else last
