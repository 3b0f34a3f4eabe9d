"""Tables as somebody else would leave them: a list of forgeries, and others drawn by a seed.

A forgery takes the stored ConfigMap and returns what is stored instead: another version of it
(`Change`), or, where the API server does not allow that, one that is made anew.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from archipelago.planner.documents import canonical_bytes

KEY: Final = "table.json"
SHARD: Final = "shard.txt"
GROUP: Final = "archipelago.dev"
Body: TypeAlias = dict[str, Any]
Forge: TypeAlias = Callable[[Body, Random], None]

NUMBERS: Final = (
    "0", "-1", "2", "7", "999", "1001", "100000", str(2**31), str(2**53 - 1), str(2**53),
    str(2**62), str(2**63 - 1), str(2**63), "1" + 400 * "0", "1e308", "1e999", "Infinity",
    "-Infinity", "NaN", '"7"', "1.5", "null", "true", "[]", "{}",
)  # fmt: skip
TEXTS: Final = (
    "", "{}", "[]", "null", "x", "{", "[" * 5000, '"' + 9000 * "a" + '"', '{"content":NaN}',
    '{"content":{},"identity":{}}', "\x00", "\ud7ff", "1" * 5000,
)  # fmt: skip
ORIGINS: Final = ("planned", "replanned", "repaired", "rolling", "changing", "owed", "garbage", "")


@dataclass(frozen=True)
class Change:
    """What is done to the ConfigMap. ``anew``: it is deleted, and made as ``body``."""

    name: str
    body: Body
    anew: bool = False
    deleted: bool = False


def _with_table(body: Body, change: Callable[[Body], None]) -> None:
    table = json.loads(body["data"][KEY])
    change(table)
    body["data"][KEY] = json.dumps(table, sort_keys=True, separators=(",", ":"))


def _identity(field: str, value: str) -> Forge:
    def forge(body: Body, _: Random) -> None:
        mark = "@forged@"
        _with_table(body, lambda table: table["identity"].update({field: mark}))
        body["data"][KEY] = body["data"][KEY].replace(f'"{mark}"', value)

    return forge


def _number(field: str) -> Forge:
    return lambda body, random: _identity(field, random.choice(NUMBERS))(body, random)


def _added(body: Body, random: Random) -> None:
    where = random.choice(("", "identity"))
    _with_table(body, lambda t: (t[where] if where else t).update({"forged": random.random()}))


def _without(body: Body, random: Random) -> None:
    part = random.choice(("identity", "kind", "apiVersion"))
    _with_table(body, lambda table: table.pop(part))


def _content(body: Body, random: Random) -> None:
    """Another content whose hash is written beside it: islands, weights, or shards."""

    def change(table: Body) -> None:
        if "shards" in table:
            table["shards"] = table["shards"][::-1]
            if random.random() < 0.5:
                table["contentHash"] = hashlib.sha256(b"forged").hexdigest()
            digest = {name: table[name] for name in ("contentBytes", "contentHash", "shards")}
        else:
            content = table["content"]
            island = random.choice(content["islands"])
            if random.random() < 0.5:
                island["nodes"] = ["attacker-1"]
            else:
                route = random.choice(random.choice(content["models"])["routes"])
                route["pairs"] = route["pairs"][:1]
                route["pairs"][0]["weight"] = 1_000_000
                island["maxBatch"] = island.get("maxBatch", 1) + 1
            digest = content
        hashed = hashlib.sha256(canonical_bytes(digest)).hexdigest()
        body["metadata"]["annotations"][f"{GROUP}/content-hash"] = hashed

    _with_table(body, change)


def _text(body: Body, random: Random) -> None:
    body["data"][KEY] = random.choice(TEXTS)


def _annotation(body: Body, random: Random) -> None:
    notes = body["metadata"]["annotations"]
    name = random.choice([f"{GROUP}/{part}" for part in ("content-hash", "inputs-hash", "live")])
    if random.random() < 0.4:
        notes.pop(name, None)
    else:
        notes[name] = random.choice((*ORIGINS, "0" * 64))


def _labels(body: Body, random: Random) -> None:
    labels = body["metadata"]["labels"]
    for name in random.sample(sorted(labels), k=random.randint(1, len(labels))):
        if random.random() < 0.5:
            del labels[name]
        else:
            labels[name] = "forged"


def _ownerless(body: Body, _: Random) -> None:
    body["metadata"]["ownerReferences"] = []


def _immutable(body: Body, _: Random) -> None:
    body["immutable"] = True


def _binary(body: Body, _: Random) -> None:
    body["binaryData"] = {KEY: "AAAA"}
    del body["data"][KEY]


def _keys(body: Body, _: Random) -> None:
    body["data"]["mine"] = "kept"
    body["metadata"]["labels"]["team"] = "kept"
    body["binaryData"] = {**body.get("binaryData", {}), "blob": "AAAA"}


FORGERIES: Final[Mapping[str, Forge]] = {
    "sequence": _number("sequence"),
    "generation": _number("generation"),
    "uid": _identity("uid", '"another"'),
    "time": _number("time"),
    "added": _added,
    "without": _without,
    "content": _content,
    "text": _text,
    "annotation": _annotation,
    "labels": _labels,
    "ownerless": _ownerless,
    "immutable": _immutable,
    "binary": _binary,
    "keys": _keys,
}
HELD: Final = "held"
"""It has a finalizer, and is deleted."""
GONE: Final = "gone"
KINDS: Final = (*FORGERIES, HELD, GONE)


def forged(body: Body, seed: int, only: str = "") -> Change:
    """Draw what becomes of the ConfigMap: one forgery, or up to three of them together."""
    random = Random(seed)  # noqa: S311
    names = [only] if only else random.sample(KINDS, k=random.choice((1, 1, 2, 3)))
    changed = copy.deepcopy(body)
    done = []
    for name in sorted(names, key=lambda name: name in ("immutable", "binary", "text")):
        if name in FORGERIES:
            try:
                FORGERIES[name](changed, random)
            except (KeyError, ValueError, TypeError, IndexError):
                continue  # nothing is left of it to forge
        done.append(name)
    if HELD in names:
        changed["metadata"]["finalizers"] = ["example.com/held"]
    anew = not {HELD, GONE} & {*names} and random.random() < 0.2
    return Change("+".join(done), changed, anew, bool({HELD, GONE} & {*names}))


SHARD_FORGERIES: Final = ("text", "mutable", "labels", "ownerless", "binary", HELD, GONE)


def forged_shard(body: Body, seed: int, name: str = "") -> Change:
    """Draw what becomes of a shard, which nobody can change: it goes, or is made anew."""
    random = Random(seed)  # noqa: S311
    name = name or random.choice(SHARD_FORGERIES)
    changed = copy.deepcopy(body)
    match name:
        case "text":
            changed["data"][SHARD] = random.choice((*TEXTS, changed["data"][SHARD][::-1]))
        case "mutable":
            changed |= {"immutable": False, "data": {SHARD: random.choice(TEXTS)}}
        case "binary":
            changed |= {"binaryData": {SHARD: "AAAA"}, "data": {}}
        case "labels" | "ownerless":
            FORGERIES[name](changed, random)
        case _ if name == HELD:
            changed["metadata"]["finalizers"] = ["example.com/held"]
    gone = name in (HELD, GONE)
    return Change(f"shard {name}", changed, not gone, gone)
