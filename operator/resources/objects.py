"""ServingPlans, tables and shards as frozen values; objects are parsed here and nowhere else.

The folder: Kubernetes objects, names and status as values, for all of the operator; it imports
nothing of the operator but itself, and never waits.

Only hashes of tables and shards are kept: 500 tables would be most of the operator's memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.table.shards import digest, is_pointer

from .live import LiveStatus, TableIsland, TableOrigin
from .names import (
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
    Manifest,
    table_labels,
)
from .shards import NEEDED_BY, SHARD_KEY, Shard, pointer_hash, read_shards, shard_labels, stem_of
from .status import Status


def owner_reference(plan: PlanObject) -> Manifest:
    """Return the owner reference by which deleting the plan collects the table."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": plan.key.name,
        "uid": plan.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


Body: TypeAlias = Mapping[str, Any]

# Part of every inputs hash. Raise it if equal inputs give another table than the last release:
# each plan is made again once after the upgrade. One case: a field that was unknown, and pruned,
# has an effect now.
REVISION: Final = 1
# Fields that no plan depends on: whether there is one, and how its table changes later. The engine
# of a model only changes how phases are switched and how metrics are named.
_WITHOUT_EFFECT: Final = frozenset({"suspend", "replanning"})
_WITHOUT_EFFECT_OF_MODELS: Final = frozenset({"engine"})


@dataclass(frozen=True)
class PlanObject:
    """A ServingPlan.

    Attributes:
        inputs_hash: Hash of everything that its table depends on.
        spec_hash: The same without the nodes of its pools.
        created: The older one of two plans gets a node that both select.
        resolved: The spec with the nodes of its pools; None if no pool selects nodes.
        live: Runtime facts of a live plan.
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
    live: LiveStatus | None = None

    @classmethod
    def from_body(cls, body: Body) -> PlanObject:
        """Read an object of the API server, which has checked its schema."""
        meta, spec = body["metadata"], body.get("spec") or {}
        spec_hash = inputs_hash(meta["name"], spec)
        return cls(
            key=Key(meta["namespace"], meta["name"]),
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            generation=int(meta.get("generation", 0)),
            deleting="deletionTimestamp" in meta,
            suspended=bool(spec.get("suspend", False)),
            inputs_hash=spec_hash,
            spec_hash=spec_hash,
            spec=spec,
            status=Status.from_body(body),
            created=datetime.fromisoformat(meta.get("creationTimestamp") or "1970-01-01T00:00:00Z"),
        )

    @property
    def selects_nodes(self) -> bool:
        """Whether a pool selects nodes instead of stating a count."""
        return any(pool.get("nodeSelector") for pool in self.spec.get("pools") or ())

    @property
    def replanning(self) -> Body:
        """``spec.replanning``; empty if absent."""
        return self.spec.get("replanning") or {}

    @property
    def is_live(self) -> bool:
        """Whether its table may change without an edit.

        ``replanning`` alone does not count: the API server adds its defaults to every plan.
        """
        return bool(self.replanning.get("source")) or self.selects_nodes

    def with_nodes(self, resolved: Body, nodes: str = "") -> PlanObject:
        """Return the plan with the nodes of its pools: other nodes are other inputs.

        ``nodes``: hash of their names, since ``resolved`` only has their number.
        """
        inputs = inputs_hash(self.key.name, {**resolved, "nodes": nodes})
        return replace(self, resolved=resolved, inputs_hash=inputs)

    def to_resource(self) -> dict[str, Any]:
        """Return the resource as a file would hold it: the planner's input."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.key.name},
            "spec": self.spec if self.resolved is None else self.resolved,
        }


@dataclass(frozen=True)
class ConfigMapObject:
    """A ConfigMap, of this operator or of anybody."""

    key: Key
    uid: str
    resource_version: str
    deleting: bool
    owner_reference: Body | None
    labels: Mapping[str, str]

    def is_selected(self) -> bool:
        """Return whether our watches and lists, which select by a label, show it."""
        return self.labels.get(MANAGED_BY) == OURS

    def belongs_to(self, plan: PlanObject) -> bool:
        """Return whether it was made for this plan, not for another one of the same name."""
        return self.owner_reference is not None and self.owner_reference["uid"] == plan.uid

    def belongs_to_predecessor_of(self, plan: PlanObject) -> bool:
        """Return whether a deleted plan of the same name owned it: it will be collected."""
        owner = self.owner_reference
        return (
            owner is not None and owner.get("name") == plan.key.name and not self.belongs_to(plan)
        )

    def carries(self, labels: Mapping[str, str], plan: PlanObject) -> bool:
        """Return whether labels and owner reference are as we write them; others may be added."""
        labelled = labels.items() <= dict(self.labels).items()
        return labelled and self.owner_reference == owner_reference(plan)


@dataclass(frozen=True)
class TableObject(ConfigMapObject):
    """A ConfigMap with the name of a plan's table.

    Attributes:
        inputs_hash: Inputs of the plan that it was made for.
        written_hash: ``stored_hash`` at the time when it was written.
        stored_hash: Hash of the content, or of the pointer to shards, that is stored.
        content_hash: Hash of the content; None if it is not a table.
        origin: How the table of a live plan came to be; None for a static plan.
        islands: Islands of a live plan's table, by name. Those of a table in shards are read later
            (`Cache.update_islands`).
        spec_hash: Spec of a live plan that it was made of, whatever the nodes.
    """

    inputs_hash: str | None
    written_hash: str | None
    stored_hash: str | None
    content_hash: str | None
    identity: Identity | None
    shards: tuple[Shard, ...] = ()
    origin: TableOrigin | None = None
    islands: Mapping[str, TableIsland] = field(default_factory=dict)
    spec_hash: str | None = None

    @classmethod
    def from_body(cls, body: Body) -> TableObject:
        """Read a ConfigMap, which may be anybody's: any part of it may be missing."""
        notes = body["metadata"].get("annotations") or {}
        return cls(
            **_facts(body),
            inputs_hash=notes.get(INPUTS),
            written_hash=notes.get(CONTENT),
            spec_hash=notes.get(SPEC),
            **_read((body.get("data") or {}).get(TABLE_KEY), notes.get(LIVE)),
        )

    def is_unmodified(self) -> bool:
        """Return whether the content, or the pointer, is what was written."""
        return self.stored_hash is not None and self.stored_hash == self.written_hash

    def is_up_to_date(self, plan: PlanObject) -> bool:
        """Return whether it is the table of the plan's present inputs."""
        return self.inputs_hash == plan.inputs_hash and self.is_valid_for(plan)

    def is_valid_for(self, plan: PlanObject) -> bool:
        """Return whether it is complete and of this generation, whatever its nodes."""
        return (
            self.belongs_to(plan)
            and self.is_unmodified()
            and self.carries(table_labels(plan.key.name), plan)
            and self.identity is not None
            and self.identity.uid == plan.uid
            and self.identity.generation >= plan.generation
        )


@dataclass(frozen=True)
class ShardObject(ConfigMapObject):
    """A ConfigMap with the name of a shard. ``text_hash``: None if it has no text of a shard."""

    text_hash: str | None
    needed_by: str | None  # sequence of the table that it was last written for

    @classmethod
    def from_body(cls, body: Body) -> ShardObject:
        """Read a ConfigMap, which may be anybody's; the text itself is not kept."""
        text = (body.get("data") or {}).get(SHARD_KEY)
        notes = body["metadata"].get("annotations") or {}
        hashed = None if text is None else digest(text)
        return cls(**_facts(body), text_hash=hashed, needed_by=notes.get(NEEDED_BY))

    def is_ours(self, plan: PlanObject) -> bool:
        """Return whether it is a labelled shard of this plan and not being deleted."""
        return self.carries(shard_labels(plan.key.name), plan) and not self.deleting

    def holds(self, shard: Shard, plan: PlanObject) -> bool:
        """Return whether readers of a pointer to that shard find it here."""
        return self.text_hash == shard.hash and self.is_ours(plan)


@dataclass(frozen=True)
class Observation:
    """The objects of one key. ``plan``: None if it does not exist.

    ``shards``: objects with names of its shards, needed or not, by name.
    """

    key: Key
    plan: PlanObject | None
    table: TableObject | None
    shards: Mapping[str, ShardObject] = field(default_factory=dict)


def read_config_map(body: Body) -> TableObject | ShardObject:
    """Read a ConfigMap as a table or a shard, by its name."""
    shard = stem_of(body["metadata"]["name"]) is not None
    return ShardObject.from_body(body) if shard else TableObject.from_body(body)


def inputs_hash(name: str, spec: Body) -> str:
    """Return the hash of everything that a table depends on: equal hashes, equal content."""
    effective = {field: value for field, value in spec.items() if field not in _WITHOUT_EFFECT}
    effective["models"] = [
        {name: value for name, value in model.items() if name not in _WITHOUT_EFFECT_OF_MODELS}
        if isinstance(model, Mapping)
        else model  # of a newer definition
        for model in spec.get("models") or ()
    ]
    inputs = {"revision": REVISION, "name": name, "spec": effective}
    return hashlib.sha256(canonical_bytes(inputs)).hexdigest()[:32]


def _facts(body: Body) -> dict[str, Any]:
    """Return the fields of any ConfigMap."""
    meta = body["metadata"]
    owners = (
        owner
        for owner in meta.get("ownerReferences") or ()
        if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION
    )
    return {
        "key": Key(meta["namespace"], meta["name"]),
        "uid": meta["uid"],
        "resource_version": meta["resourceVersion"],
        "deleting": "deletionTimestamp" in meta,
        "owner_reference": next(owners, None),
        "labels": meta.get("labels") or {},
    }


def _read(text: str | None, origin: str | None) -> dict[str, Any]:
    """Return hashes, identity and shards; None for each if the text is no table."""
    try:
        table = json.loads(text or "")
        in_shards = is_pointer(table)
        live_origin = next((item for item in TableOrigin if item == origin), None)
        if in_shards:
            content_hash = str(table["contentHash"])
        else:
            content_hash = hashlib.sha256(canonical_bytes(table["content"])).hexdigest()
        fields = {
            "stored_hash": pointer_hash(table) if in_shards else content_hash,
            "content_hash": content_hash,
            "shards": read_shards(table) if in_shards else (),
            "origin": live_origin,
            "islands": islands_of(table["content"]) if live_origin and not in_shards else {},
        }
    except (ValueError, TypeError, KeyError, RecursionError):
        return {"stored_hash": None, "content_hash": None, "identity": None}
    try:
        raw = table["identity"]
        identity = Identity(str(raw["uid"]), int(raw["generation"]), int(raw["sequence"]))
    except (ValueError, TypeError, KeyError):
        identity = None
    return fields | {"identity": identity}


def islands_of(content: Body) -> dict[str, TableIsland]:
    """Return the islands of a table by name."""
    models = {name: group["model"] for group in content["groups"] for name in group["members"]}
    return {
        island["name"]: TableIsland(models[island["name"]], island["phase"], tuple(island["nodes"]))
        for island in content["islands"]
    }


def lost_islands(plan: PlanObject, islands: Mapping[str, TableIsland]) -> list[str]:
    """Return those of the islands that have lost a node."""
    lost = plan.live.lost_nodes if plan.live else frozenset()
    return sorted(name for name, island in islands.items() if lost & set(island.nodes))
