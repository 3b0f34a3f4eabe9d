"""What we see of a plan and its table, as frozen facts; objects are parsed here and nowhere else.

Only digests of tables and shards are kept: 500 tables would be most of the operator's memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from archipelago.operator.livefacts import Live, Mark, SeenIsland
from archipelago.operator.manifests import (
    API_VERSION,
    CONTENT,
    INPUTS,
    KIND,
    LIVE,
    MANAGED_BY,
    OURS,
    SPEC,
    TABLE_KEY,
    Identity,
    Key,
    owner_reference,
    table_labels,
)
from archipelago.operator.sharding import (
    SHARD_KEY,
    WANTED,
    Shard,
    pointer_hash,
    read_shards,
    shard_labels,
    stem_of,
)
from archipelago.operator.status import Status
from archipelago.planner.canonical import canonical_bytes
from archipelago.planner.shards import digest, is_pointer

Body: TypeAlias = Mapping[str, Any]

# Part of every inputs hash. Raise it when equal inputs give another table than the last release:
# every plan is then made again once after the upgrade, and not otherwise. A field that had no
# effect while it was unknown (unknown.py) and has one now is such a case.
REVISION: Final = 1
# Fields that no plan depends on: the first says whether there is one, the other how its table
# changes later. How an engine changes its phase, or names its metrics, is no matter of a plan.
_WITHOUT_EFFECT: Final = frozenset({"suspend", "replanning"})
_WITHOUT_EFFECT_OF_MODELS: Final = frozenset({"engine"})
_NEVER: Final = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class SeenPlan:
    """A ServingPlan as last seen. ``inputs_hash`` names everything its table depends on.

    ``spec_hash``: names the same without the nodes that its pools find.
    ``created``: decides between plans that select the same nodes. ``resolved``: its spec with the
    nodes that its pools have found; None where no pool looks for any. ``live``: what is known of a
    live plan beside its objects.
    """

    key: Key
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    suspended: bool
    inputs_hash: str
    spec_hash: str
    spec: Body
    status: Status
    created: datetime
    resolved: Body | None = None
    live: Live | None = None

    @classmethod
    def from_body(cls, body: Body) -> SeenPlan:
        """Read an object of the API server, whose schema has been checked there."""
        meta, spec = body["metadata"], body.get("spec") or {}
        named = inputs_hash(meta["name"], spec)
        return cls(
            key=Key(meta["namespace"], meta["name"]),
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            generation=int(meta.get("generation", 0)),
            deleting="deletionTimestamp" in meta,
            suspended=bool(spec.get("suspend", False)),
            inputs_hash=named,
            spec_hash=named,
            spec=spec,
            status=Status.from_body(body),
            created=datetime.fromisoformat(meta.get("creationTimestamp") or _NEVER),
        )

    @property
    def finds_nodes(self) -> bool:
        """Whether a pool looks for its nodes instead of counting them."""
        return any(pool.get("nodeSelector") for pool in self.spec.get("pools") or ())

    @property
    def replanning(self) -> Body:
        """How its table may change without an edit; empty where nothing is said."""
        return self.spec.get("replanning") or {}

    @property
    def is_live(self) -> bool:
        """Whether its table may change without an edit.

        ``replanning`` alone says nothing: the API server gives every plan its usual values.
        """
        return bool(self.replanning.get("source")) or self.finds_nodes

    def with_nodes(self, resolved: Body, nodes: str = "") -> SeenPlan:
        """The same plan with what its pools have found: other nodes are other inputs.

        ``nodes``: tells their names; one in the place of another is not counted in ``resolved``.
        """
        inputs = inputs_hash(self.key.name, {**resolved, "nodes": nodes})
        return replace(self, resolved=resolved, inputs_hash=inputs)

    def to_resource(self) -> dict[str, Any]:
        """The resource as a file would hold it: what the planner is given."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.key.name},
            "spec": self.spec if self.resolved is None else self.resolved,
        }


@dataclass(frozen=True)
class SeenMap:
    """A ConfigMap, perhaps ours and perhaps anybody's."""

    key: Key
    uid: str
    resource_version: str
    deleting: bool
    owner_reference: Body | None
    labels: Mapping[str, str]

    @property
    def owner_uid(self) -> str | None:
        """Uid of the ServingPlan that it belongs to."""
        return self.owner_reference["uid"] if self.owner_reference else None

    def is_selected(self) -> bool:
        """Whether our watches and lists, which go by a label, tell about it."""
        return self.labels.get(MANAGED_BY) == OURS

    def belongs_to(self, plan: SeenPlan) -> bool:
        """Whether it was made for this very plan, not for a namesake."""
        return self.owner_uid == plan.uid

    def is_left_by_predecessor_of(self, plan: SeenPlan) -> bool:
        """Whether a deleted plan of the same name owned it: the garbage collector takes it."""
        owner = self.owner_reference
        return (
            owner is not None and owner.get("name") == plan.key.name and not self.belongs_to(plan)
        )

    def carries(self, labels: Mapping[str, str], plan: SeenPlan) -> bool:
        """Whether labels and owner reference are as we write them; others may be there too."""
        ours = labels.items() <= dict(self.labels).items()
        return ours and self.owner_reference == owner_reference(plan)


@dataclass(frozen=True)
class SeenTable(SeenMap):
    """A ConfigMap of the name of a plan's table. ``content_hash`` None: no table can be read.

    ``stored_hash``: of what lies there, a content or a pointer to shards. ``mark``: how the table
    of a live plan came to be, None for any other; then ``islands`` says where they stand, by name;
    those of a table in shards have to be read (``Cache.learn``). ``spec_hash``: of the spec that it
    was made of, whatever the nodes were; None of a plan that is not live.
    """

    inputs_hash: str | None
    written_hash: str | None  # the stored hash when we wrote it
    stored_hash: str | None
    content_hash: str | None
    identity: Identity | None
    shards: tuple[Shard, ...] = ()
    mark: Mark | None = None
    islands: Mapping[str, SeenIsland] = field(default_factory=dict)
    spec_hash: str | None = None

    @classmethod
    def from_body(cls, body: Body) -> SeenTable:
        """Read a ConfigMap; it may be anybody's, so nothing is taken for granted."""
        notes = body["metadata"].get("annotations") or {}
        return cls(
            **_facts(body),
            inputs_hash=notes.get(INPUTS),
            written_hash=notes.get(CONTENT),
            spec_hash=notes.get(SPEC),
            **_read((body.get("data") or {}).get(TABLE_KEY), notes.get(LIVE)),
        )

    def is_untouched(self) -> bool:
        """Whether the content is what we wrote; of a pointer: which shards it names."""
        return self.stored_hash is not None and self.stored_hash == self.written_hash

    def is_labelled_for(self, plan: SeenPlan) -> bool:
        """Whether labels and owner reference are as we write them; others may be there too."""
        return self.carries(table_labels(plan.key.name), plan)

    def answers(self, plan: SeenPlan) -> bool:
        """Whether nothing has to be written under its name for the plan as it is now."""
        return self.inputs_hash == plan.inputs_hash and self.stands_for(plan)

    def stands_for(self, plan: SeenPlan) -> bool:
        """Whether it is whole and of this generation, whatever nodes it was made with."""
        return (
            self.belongs_to(plan)
            and self.is_untouched()
            and self.is_labelled_for(plan)
            and self.identity is not None
            and self.identity.uid == plan.uid
            and self.identity.generation >= plan.generation
        )


@dataclass(frozen=True)
class SeenShard(SeenMap):
    """A ConfigMap of a shard's name. ``text_hash`` None: it holds no text of a shard."""

    text_hash: str | None
    wanted_by: str | None  # sequence of the table that it was last written for

    @classmethod
    def from_body(cls, body: Body) -> SeenShard:
        """Read a ConfigMap, anybody's; the text itself is not kept."""
        text = (body.get("data") or {}).get(SHARD_KEY)
        notes = body["metadata"].get("annotations") or {}
        hashed = None if text is None else digest(text)
        return cls(**_facts(body), text_hash=hashed, wanted_by=notes.get(WANTED))

    def is_ours(self, plan: SeenPlan) -> bool:
        """Whether it is a shard of this very plan, labelled as one and not on its way out."""
        return self.carries(shard_labels(plan.key.name), plan) and not self.deleting

    def holds(self, shard: Shard, plan: SeenPlan) -> bool:
        """Whether readers of a pointer to that shard find it here."""
        return self.text_hash == shard.hash and self.is_ours(plan)


@dataclass(frozen=True)
class Observation:
    """All that a decision about one key can see of the cluster. ``plan`` None: there is none.

    ``shards``: what lies under names of its shards, wanted or not, by name.
    """

    key: Key
    plan: SeenPlan | None
    table: SeenTable | None
    shards: Mapping[str, SeenShard] = field(default_factory=dict)


def seen_map(body: Body) -> SeenTable | SeenShard:
    """Read a ConfigMap as what its name says that it is."""
    shard = stem_of(body["metadata"]["name"]) is not None
    return SeenShard.from_body(body) if shard else SeenTable.from_body(body)


def inputs_hash(name: str, spec: Body) -> str:
    """Names what a table depends on: equal hashes, equal content."""
    effective = {field: value for field, value in spec.items() if field not in _WITHOUT_EFFECT}
    effective["models"] = [_planned_for(model) for model in spec.get("models") or ()]
    inputs = {"revision": REVISION, "name": name, "spec": effective}
    return hashlib.sha256(canonical_bytes(inputs)).hexdigest()[:32]


def _planned_for(model: Any) -> Any:  # noqa: ANN401  # any JSON, perhaps of a newer definition
    if not isinstance(model, Mapping):
        return model
    return {name: value for name, value in model.items() if name not in _WITHOUT_EFFECT_OF_MODELS}


def _owner(references: Any) -> Body | None:  # noqa: ANN401  # a JSON list
    return next(
        (
            owner
            for owner in references
            if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION
        ),
        None,
    )


def _facts(body: Body) -> dict[str, Any]:
    """What is known of any ConfigMap."""
    meta = body["metadata"]
    return {
        "key": Key(meta["namespace"], meta["name"]),
        "uid": meta["uid"],
        "resource_version": meta["resourceVersion"],
        "deleting": "deletionTimestamp" in meta,
        "owner_reference": _owner(meta.get("ownerReferences") or ()),
        "labels": meta.get("labels") or {},
    }


def _read(text: str | None, mark: str | None) -> dict[str, Any]:
    """Hashes, identity and shards, as far as the text can be read at all."""
    try:
        table = json.loads(text or "")
        if is_pointer(table):
            found = _pointed(table)
        else:
            content = hashlib.sha256(canonical_bytes(table["content"])).hexdigest()
            found = {"stored_hash": content, "content_hash": content}
        if mark in set(Mark):
            islands = {} if is_pointer(table) else islands_of(table["content"])
            found |= {"mark": Mark(mark), "islands": islands}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"stored_hash": None, "content_hash": None, "identity": None}
    return found | {"identity": _identity(table.get("identity"))}


def islands_of(content: Body) -> dict[str, SeenIsland]:
    """Where every island of a table stands."""
    models = {name: group["model"] for group in content["groups"] for name in group["members"]}
    return {
        island["name"]: SeenIsland(models[island["name"]], island["phase"], tuple(island["nodes"]))
        for island in content["islands"]
    }


def _pointed(table: Body) -> dict[str, Any]:
    return {
        "stored_hash": pointer_hash(table),
        "content_hash": str(table["contentHash"]),
        "shards": read_shards(table),
    }


def _identity(raw: Any) -> Identity | None:  # noqa: ANN401  # any JSON
    try:
        return Identity(str(raw["uid"]), int(raw["generation"]), int(raw["sequence"]))
    except (ValueError, TypeError, KeyError):
        return None
