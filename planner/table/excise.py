"""Take lost islands out of a content in shards, touching only what they change.

A content of tens of thousands of islands takes seconds to read, check and write whole. But a loss
changes little of it: members of groups, weights of routes, and the lost islands themselves. So the
text around the list of islands, which is small, is read and written anew, and the islands are cut
out of the text of the list. The result is the canonical JSON that a repair of the whole plan gives.
Shards keep their places, so those without a lost island keep their names.

What changes is checked: see ``_check``. Standard library only: the operator does it itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from ..documents import Document, canonical_text
from ..errors import CheckError
from ..plan import Pair
from ..problem import DEFAULT_CLASS, Phase
from .reweigh import Loss, Side, Unrepairable, Way
from .shards import Piece, cut
from .validate import validate_routing

_ISLANDS: Final = ',"islands":['
_AFTER: Final = '],"lengthUnit":'
"""Keys with their quotes: within a text these are escaped, so neither stands anywhere else."""
_ISLAND: Final = '{"gpus":'
"""How the canonical JSON of an island begins."""
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True)
class Excised:
    """The content without the lost islands, and where it is cut.

    ``removed``: islands that left; ``gpus``: those that they had.
    """

    text: str
    pieces: tuple[Piece, ...]
    removed: int
    gpus: int


def excise(
    text: str, pieces: Sequence[Piece], lost: Collection[str], limit: int
) -> Excised | Unrepairable:
    """Return a content without these islands, which it has.

    Args:
        text: Canonical JSON of the content, as it was written.
        pieces: Its shards.
        lost: Names of islands; in the order of the list they are found soonest.
        limit: Largest shard [B].

    Raises:
        CheckError: the text is no content of ours, or the result is not one.
    """
    start = text.find(_ISLANDS) + len(_ISLANDS)
    stop = text.find(_AFTER, start)
    if start < len(_ISLANDS) or stop < 0:
        raise CheckError(["content: its lists are not where canonical JSON has them"])
    around = json.loads(text[:start] + text[stop:])
    changed = _without(around, frozenset(lost))
    if isinstance(changed, Unrepairable):
        return changed
    removed, kept, at = [], list[tuple[int, int]](), start  # runs of islands that stay
    for begin, end, island in sorted(_found(text, start, stop, lost), key=lambda item: item[0]):
        removed.append(island)
        if begin > at:
            kept.append((at, begin - 1))
        at = end + 1
    if at < stop:
        kept.append((at, stop))
    _check(around, changed, removed, lost)
    before, after = canonical_text(changed).split(_ISLANDS + "]")
    new = before + _ISLANDS + ",".join(text[a:b] for a, b in kept) + "]" + after
    cuts = _cuts(pieces, (start, stop, len(text)), kept, (len(before) + len(_ISLANDS), len(new)))
    gpus = sum(island["gpus"] for island in removed)
    return Excised(new, cut(new, _bounded(cuts, limit)), len(removed), gpus)


def _found(
    text: str, start: int, stop: int, names: Iterable[str]
) -> Iterator[tuple[int, int, Document]]:
    """Yield begin, end and content of these islands of the list.

    Raises:
        CheckError: one is not there.
    """
    at = start
    for name in names:
        needle = f',"name":{json.dumps(name)},"nodes":['
        place = text.find(needle, at, stop)
        place = text.find(needle, start, at) if place < 0 else place
        begin = text.rfind(_ISLAND, start, place) if place >= 0 else -1
        if begin < 0:
            raise CheckError([f"content.islands: {name!r} is not where canonical JSON has it"])
        island, at = _DECODER.raw_decode(text, begin)
        yield begin, at, island


def _without(around: Document, lost: AbstractSet[str]) -> Document | Unrepairable:
    """Return groups and routes without the islands."""
    members = {g["name"]: [n for n in g["members"] if n not in lost] for g in around["groups"]}
    sides = {
        group["name"]: Side(
            group["model"],
            Phase(group["phase"]),
            group.get("domainClass", DEFAULT_CLASS),
            before=len(group["members"]),
            after=len(members[group["name"]]),
        )
        for group in around["groups"]
    }
    ways = {
        (model["name"], index): Way(
            model["name"], route["max"], tuple(Pair(**pair) for pair in route["pairs"])
        )
        for model in around["models"]
        for index, route in enumerate(model["routes"])
    }
    loss = Loss(sides, tuple(ways.values()))
    if refusal := loss.refusal():
        return refusal

    def routes(model: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {**route, "pairs": [asdict(p) for p in loss.rerouted(ways[model["name"], index])]}
            for index, route in enumerate(model["routes"])
        ]

    groups = [{**g, "members": members[g["name"]]} for g in around["groups"] if members[g["name"]]]
    models = [{**model, "routes": routes(model)} for model in around["models"]]
    return {**around, "groups": groups, "models": models}


def _check(
    before: Document, after: Document, removed: Sequence[Document], lost: Collection[str]
) -> None:
    """Check what has changed; the islands that stay were checked when they were written.

    Exactly the lost islands left the list and the members of groups. Groups and routes are valid:
    every group has members, names exist, phases match, and weights sum up.

    Raises:
        CheckError: one of these does not hold.
    """
    was, left = (
        [n for g in content["groups"] for n in g["members"]] for content in (before, after)
    )
    stubs = [{**group, "members": group["members"][:1]} for group in after["groups"]]
    findings = validate_routing({**after, "groups": stubs})
    if sorted(island["name"] for island in removed) != sorted(lost):
        findings.append("content.islands: other islands than the lost ones left")
    if len(left) != len(was) - len(lost) or not set(lost).isdisjoint(left):
        findings.append("content.groups: other members than the lost ones left")
    if findings:
        raise CheckError(findings)


def _cuts(
    pieces: Sequence[Piece],
    old: tuple[int, int, int],
    kept: Sequence[tuple[int, int]],
    new: tuple[int, int],
) -> list[int]:
    """Return where the new text is cut: at the same places as the old one.

    Args:
        pieces: Of the old text.
        old: Begin and end of its list of islands, and its length.
        kept: Runs of islands that stay, in the old text.
        new: Begin of the list in the new text, and its length.
    """
    start, stop, length = old
    begin, end = new
    places, runs, at = [], iter([*kept, (stop, stop)]), begin
    first, last = next(runs)
    for place in sorted({0, length, *(piece.start for piece in pieces)}):
        while start <= place <= stop and place > last and first < stop:
            at += last - first + 1  # with the comma after it
            first, last = next(runs)
        if place < start:
            places.append(min(place, begin))
        elif place <= stop:
            places.append(at + max(0, min(place, last) - first))
        else:
            places.append(max(end - (length - place), 0))
    return sorted(min(place, end) for place in places)


def _bounded(cuts: Sequence[int], limit: int) -> list[int]:
    """Return the cuts with more between those that are further apart than the limit."""
    more = [range(a, b, limit) for a, b in pairwise(cuts) if b > a]
    return [place for steps in more for place in steps] + [cuts[-1]]
