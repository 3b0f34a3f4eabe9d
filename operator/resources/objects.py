"""ServingPlans, tables and shards as frozen values; objects are parsed here and nowhere else.

The folder: Kubernetes objects, names and status as values, for all of the operator; it imports
nothing of the operator but itself, and never waits.

Only hashes of tables and shards are kept: 500 tables would be most of the operator's memory.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from archipelago.planner.documents import Node, canonical_bytes, plain, read_json
from archipelago.planner.errors import PlanFileError
from archipelago.planner.kubernetes.labels import role_of
from archipelago.planner.problem import Phase
from archipelago.planner.schedule import Scheduled
from archipelago.planner.servingplan.load import fitting_fields
from archipelago.planner.servingplan.own import OwnCatalogue, brought_spec
from archipelago.planner.servingplan.workload import multiplied
from archipelago.planner.table.shards import POINTER, digest, is_pointer

from ..settings import OFF
from .files import CALIBRATION, FileSource, FileText, file_sources, with_configs
from .knowledge import KNOWLEDGE_KEY, Kept, is_knowledge, read_kept
from .live import LiveStatus, TableIsland, TableIslands, TableOrigin
from .names import (
    API_VERSION,
    CONTENT,
    INPUTS,
    KIND,
    LIVE,
    MANAGED_BY,
    MANAGER,
    OURS,
    RELEASED,
    TABLE_KEY,
    Identity,
    Key,
    Manifest,
    table_labels,
)
from .reading import Body, read_meta, reading
from .released import NOTHING, Released, from_text
from .shards import NEEDED_BY, SHARD_KEY, Shard, pointer_hash, read_shards, shard_labels, stem_of
from .status import Finding, Status


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


# Part of every inputs hash. Raise it if equal inputs give another table than the last release:
# each plan is made again once after the upgrade. One case: a field that was unknown, and pruned,
# has an effect now.
REVISION: Final = 1
# Fields that no plan depends on: whether there is one, which nodes it gets (inputs of their own),
# how its table changes later, and who makes its pods; of an engine how phases are switched and how
# metrics are named.
_WITHOUT_EFFECT: Final = frozenset({"suspend", "priority", "replanning", "islands"})
_WITHOUT_EFFECT_OF_ENGINES: Final = frozenset({"roleSwitch", "metrics", "servedName"})
# Defaults that the API server gives to plans stored before the fields existed: the same as absent.
_NEW: Final[Body] = {"accelerators": []}
_NEW_OF_ENGINES: Final[Body] = {"prefixHitShares": [], "attentionDataParallel": "Allowed"}


@dataclass(frozen=True)
class PlanObject:
    """A ServingPlan.

    Attributes:
        inputs_hash: Hash of everything that its table depends on.
        stated: ``spec`` as it is stored.
        spec: The fields of it that fit the schema.
        created: Of two plans of equal priority that select a node, the older one gets it.
        resolved: The spec with the nodes of its pools; None if no pool selects nodes.
        live: Runtime facts of a live plan.
        over_quota: Why its pools, which all state counts, are not planned with; None if they are.
        files: What was found of the files that it names; those that were read.
        scheduled: What `spec.traffic.schedule` says of now; None without a schedule.
    """

    key: Key
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    suspended: bool
    inputs_hash: str
    stated: Body
    spec: Body
    status: Status
    created: datetime
    resolved: Body | None = None
    live: LiveStatus | None = None
    over_quota: Finding | None = None
    files: Mapping[FileSource, FileText] = field(default_factory=dict)
    scheduled: Scheduled | None = None

    @classmethod
    def from_body(cls, body: Body) -> PlanObject:
        """Read a ServingPlan.

        The planner process refuses a spec that does not fit this version's schema, with all of its
        errors. Nothing else depends on a field that does not fit.

        Raises:
            Unreadable: it is no object of an API server.
        """
        with reading(KIND, body) as item:
            meta, stated = read_meta(item), item.optional_mapping("spec")
            plain(stated)
            fitting = fitting_fields(stated)
            created = item.field("metadata").optional("creationTimestamp")
            generation = item.field("metadata").optional("generation")
            return cls(
                key=Key(meta.namespace, meta.name),
                uid=meta.uid,
                resource_version=meta.resource_version,
                generation=generation.integer() if generation else 0,
                deleting=meta.deleting,
                suspended=stated.get("suspend") is True,
                inputs_hash=inputs_hash(meta.name, stated, stated.keys() - fitting.keys()),
                stated=stated,
                spec=fitting,
                status=Status.from_body(body),
                created=created.time() if created else datetime.fromtimestamp(0, UTC),
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
    def islands(self) -> Body:
        """``spec.islands``; empty if absent."""
        return self.spec.get("islands") or {}

    @property
    def owns_pods(self) -> bool:
        """Whether the operator makes and changes the pods of its islands."""
        return self.islands.get("manage", OFF) != OFF and bool(self.islands.get("template"))

    @property
    def stated_budgets(self) -> tuple[Body, ...]:
        """``spec.replanning.budgets`` as it is stored: one that does not fit must not be lost."""
        replanning = self.stated.get("replanning")
        budgets = replanning.get("budgets") if isinstance(replanning, Mapping) else None
        found = budgets if isinstance(budgets, list) else ()
        return tuple(budget if isinstance(budget, Mapping) else {} for budget in found)

    @property
    def is_live(self) -> bool:
        """Whether its table may change without an edit.

        ``replanning`` alone does not count: the API server adds its defaults to every plan.
        """
        watched, scheduled = bool(self.replanning.get("source")), bool(self.stated.get("traffic"))
        return watched or scheduled or self.selects_nodes or self.owns_pods

    @property
    def sources(self) -> tuple[FileSource, ...]:
        """Where the files are that it names, read or not."""
        return tuple(dict.fromkeys((*self.files, *file_sources(self.spec))))

    @property
    def calibration(self) -> str:
        """The text of its calibration file; empty if it names none, or none was found."""
        texts = (file.text for source, file in self.files.items() if source.field == CALIBRATION)
        return next(texts, "")

    @property
    def refused_files(self) -> tuple[FileText, ...]:
        """The files that are not what is in their place now."""
        return tuple(file for file in self.files.values() if file.refusal)

    def with_files(self, files: Mapping[FileSource, FileText]) -> PlanObject:
        """Return the plan with the files that it names: another text is another input."""
        spec, stated = (with_configs(each, files) for each in (self.spec, self.stated))
        return replace(self, files=files, spec=spec, stated=stated).hashed(stated)

    def with_catalogue(self, catalogue: OwnCatalogue) -> PlanObject:
        """Return the plan with what it uses of the administrator's catalogue."""
        if not catalogue.accelerators and not catalogue.models:
            return self
        spec, stated = (brought_spec(each, catalogue) for each in (self.spec, self.stated))
        return replace(self, spec=spec, stated=stated).hashed(stated)

    def with_schedule(self, scheduled: Scheduled) -> PlanObject:
        """Return the plan with the rates that hold now: other rates are other inputs.

        A person who wrote these rates, and no schedule, would have the same inputs.
        """
        spec, stated = (_at_factor(each, scheduled) for each in (self.spec, self.stated))
        return replace(self, scheduled=scheduled, spec=spec, resolved=stated).hashed(stated)

    def with_nodes(self, resolved: Body, nodes: str = "") -> PlanObject:
        """Return the plan with the nodes of its pools: other nodes are other inputs.

        ``nodes``: hash of their names, since ``resolved`` only has their number.
        """
        return replace(self, resolved=resolved).hashed({**resolved, "nodes": nodes})

    def hashed(self, inputs: Body) -> PlanObject:
        """Return the plan with the hash of these inputs, and of the files."""
        given = {source.field: file.digest for source, file in self.files.items()}
        unfit = self.stated.keys() - self.spec.keys()
        return replace(self, inputs_hash=inputs_hash(self.key.name, {**inputs, **given}, unfit))

    def to_resource(self) -> dict[str, Any]:
        """Return the resource as a file would hold it: the planner's input."""
        return self._resource(self.stated if self.resolved is None else self.resolved)

    def as_stated(self) -> dict[str, Any]:
        """Return the resource with the spec as it is stored: pools keep their nodeSelector."""
        return self._resource(self.stated)

    def _resource(self, spec: Body) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.key.name},
            "spec": spec,
        }


@dataclass(frozen=True)
class ConfigMapObject:
    """A ConfigMap, of this operator or of anybody.

    Attributes:
        abandoned: This operator wrote it, as the API server noted, and nobody owns it any more.
        locked: Its text cannot be changed: it is immutable, or somebody has put binary data there.
        finalizers: What holds it if it is deleted.
    """

    key: Key
    uid: str
    resource_version: str
    deleting: bool
    owner_reference: Body | None
    labels: Mapping[str, str]
    _: KW_ONLY
    abandoned: bool = False
    locked: bool = False
    finalizers: tuple[str, ...] = ()

    def is_selected(self) -> bool:
        """Return whether our watches and lists, which select by a label, show it."""
        return self.labels.get(MANAGED_BY) == OURS

    def belongs_to(self, plan: PlanObject) -> bool:
        """Return whether it was made for this plan, not for another one of the same name."""
        if self.owner_reference is None:
            return self.abandoned
        return self.owner_reference.get("uid") == plan.uid

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
            (`Cache.update_content`).
        released: GPUs that islands of earlier tables had and none of this one has.
    """

    inputs_hash: str | None
    written_hash: str | None
    stored_hash: str | None
    content_hash: str | None
    identity: Identity | None
    shards: tuple[Shard, ...] = ()
    origin: TableOrigin | None = None
    islands: TableIslands = field(default_factory=TableIslands)
    released: Released = field(default_factory=lambda: NOTHING)

    @classmethod
    def from_body(cls, body: Body) -> TableObject:
        """Read a ConfigMap, which may be anybody's: any part of its content may be missing.

        Raises:
            Unreadable: it is no object of an API server.
        """
        with reading("ConfigMap", body) as item:
            notes = read_meta(item).annotations
            text = item.optional_mapping("data").get(TABLE_KEY)
            return cls(
                **_facts(item),
                inputs_hash=notes.get(INPUTS),
                written_hash=notes.get(CONTENT),
                released=from_text(notes.get(RELEASED)),
                **_read(text, notes.get(LIVE)),
            )

    def is_unmodified(self) -> bool:
        """Return whether the content, or the pointer, is what was written."""
        return self.stored_hash is not None and self.stored_hash == self.written_hash

    def is_up_to_date(self, plan: PlanObject) -> bool:
        """Return whether it is the table of the plan's present inputs."""
        return self.inputs_hash == plan.inputs_hash and self.is_valid_for(plan)

    def is_valid_for(self, plan: PlanObject) -> bool:
        """Return whether it is complete, of this generation and to stay, whatever its nodes."""
        return (
            self.belongs_to(plan)
            and self.is_unmodified()
            and self.carries(table_labels(plan.key.name), plan)
            and not self.locked
            and not self.deleting
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
        """Read a ConfigMap, which may be anybody's; the text itself is not kept.

        Raises:
            Unreadable: it is no object of an API server.
        """
        with reading("ConfigMap", body) as item:
            notes = read_meta(item).annotations
            text = item.optional_mapping("data").get(SHARD_KEY)
            hashed = digest(text) if isinstance(text, str) else None
            return cls(**_facts(item), text_hash=hashed, needed_by=notes.get(NEEDED_BY))

    def is_ours(self, plan: PlanObject) -> bool:
        """Return whether it is a labelled shard of this plan and not being deleted."""
        return self.carries(shard_labels(plan.key.name), plan) and not self.deleting

    def holds(self, shard: Shard, plan: PlanObject) -> bool:
        """Return whether readers of a pointer to that shard find it here."""
        return self.text_hash == shard.hash and self.is_ours(plan)


@dataclass(frozen=True)
class KnowledgeObject(ConfigMapObject):
    """A ConfigMap with the name of what a plan has learnt.

    ``kept``: None if it is refused; ``refusal``: why.
    """

    kept: Kept | None
    refusal: str = ""

    @classmethod
    def from_body(cls, body: Body) -> KnowledgeObject:
        """Read a ConfigMap, which may be anybody's.

        Raises:
            Unreadable: it is no object of an API server.
        """
        with reading("ConfigMap", body) as item:
            facts, text = _facts(item), item.optional_mapping("data").get(KNOWLEDGE_KEY)
            try:
                return cls(**facts, kept=read_kept(text))
            except PlanFileError as error:
                return cls(**facts, kept=None, refusal=f"{KNOWLEDGE_KEY}: {error}")


@dataclass(frozen=True)
class Observation:
    """The objects of one key. ``plan``: None if it does not exist.

    ``shards``: objects with names of its shards, needed or not, by name. ``knowledge``: the object
    with the name of what the plan has learnt.
    """

    key: Key
    plan: PlanObject | None
    table: TableObject | None
    shards: Mapping[str, ShardObject] = field(default_factory=dict)
    knowledge: KnowledgeObject | None = None


OurObject: TypeAlias = TableObject | ShardObject | KnowledgeObject


def read_config_map(body: Body) -> OurObject:
    """Read a ConfigMap as a table, a shard or what is learnt, by its name.

    Raises:
        Unreadable: it is no object of an API server.
    """
    with reading("ConfigMap", body) as item:
        name = read_meta(item).name
    if is_knowledge(name):
        return KnowledgeObject.from_body(body)
    return ShardObject.from_body(body) if stem_of(name) else TableObject.from_body(body)


def _at_factor(spec: Body, scheduled: Scheduled) -> Body:
    """Return the spec with the rates of the schedule instead of the schedule."""

    def multiplied_model(model: Body) -> Body:
        rate = model.get("requestsPerSecond")
        if rate is None:
            return model
        return {**model, "requestsPerSecond": multiplied(rate, scheduled.factor)}

    rest = {name: value for name, value in spec.items() if name != "traffic"}
    return {**rest, "models": [multiplied_model(model) for model in spec["models"]]}


def inputs_hash(name: str, spec: Body, misfits: AbstractSet[str] = frozenset()) -> str:
    """Return the hash of everything that a table depends on: equal hashes, equal content.

    A field that does not fit its schema (``misfits``) always counts: there is no plan with it.
    """
    without_effect = _WITHOUT_EFFECT - misfits
    effective = _effective(spec, without_effect, _NEW)
    models = spec.get("models") or []
    effective["models"] = [
        _effective_model(model) if isinstance(model, Mapping) else model  # of a newer definition
        for model in (models if isinstance(models, list) else [models])
    ]
    inputs = {"revision": REVISION, "name": name, "spec": effective}
    return hashlib.sha256(canonical_bytes(inputs)).hexdigest()[:32]


def _effective_model(model: Body) -> dict[str, Any]:
    engine = model.get("engine")
    if not isinstance(engine, Mapping):
        return dict(model)
    rest = {name: value for name, value in model.items() if name != "engine"}
    found = _effective(engine, _WITHOUT_EFFECT_OF_ENGINES, _NEW_OF_ENGINES)
    return {**rest, "engine": found} if found else rest


def _effective(body: Body, without: AbstractSet[str], new: Body) -> dict[str, Any]:
    """Return the fields that count, less defaults that are younger than the first release."""
    return {
        name: value
        for name, value in body.items()
        if name not in without and not (name in new and value == new[name])
    }


def _facts(item: Node) -> dict[str, Any]:
    """Return the fields of any ConfigMap."""
    meta = read_meta(item)
    raw = item.field("metadata")
    owners = [owner.mapping() for owner in raw.optional_items("ownerReferences")]
    owners.sort(key=lambda owner: owner.get("controller") is not True)  # there is one at most
    ours = [o for o in owners if o.get("kind") == KIND and o.get("apiVersion") == API_VERSION]
    controlled = any(owner.get("controller") is True for owner in owners)
    writers = (entry.mapping() for entry in raw.optional_items("managedFields"))
    written = any(w.get("manager") == MANAGER and w.get("operation") == "Apply" for w in writers)
    binary = item.optional_mapping("binaryData").keys()
    immutable = item.mapping().get("immutable") is True
    return {
        "abandoned": written and not ours and not controlled,
        "locked": immutable or bool(binary & {TABLE_KEY, SHARD_KEY, KNOWLEDGE_KEY}),
        "finalizers": tuple(name.text() for name in raw.optional_items("finalizers")),
        "key": Key(meta.namespace, meta.name),
        "uid": meta.uid,
        "resource_version": meta.resource_version,
        "deleting": meta.deleting,
        "owner_reference": next(iter(ours), None),
        "labels": meta.labels,
    }


def _read(text: object, origin: str | None) -> dict[str, Any]:
    """Return hashes, identity and shards; None for each if the text is no table."""
    try:
        table = read_json(text)
        shards = read_shards(table) if is_pointer(table.mapping()) else ()
        live_origin = next((item for item in TableOrigin if item == origin), None)
        if shards:
            content_hash = table.field("contentHash").sha256()
        else:
            content_hash = hashlib.sha256(canonical_bytes(table.field("content").value)).hexdigest()
        facts = {
            "stored_hash": pointer_hash(table.mapping()) if shards else content_hash,
            "content_hash": content_hash,
            "shards": shards,
            "origin": live_origin,
            "islands": (
                islands_of(table.field("content")) if live_origin and not shards else TableIslands()
            ),
        }
    except PlanFileError:
        return {"stored_hash": None, "content_hash": None, "identity": None}
    try:
        raw = table.field("identity")
        numbers = raw.field("generation").integer(1), raw.field("sequence").integer(1)
        raw.field("time").time()
        identity: Identity | None = Identity(raw.field("uid").text(), *numbers)
        form = (table.field("apiVersion").value, table.field("kind").value)
        fields = table.mapping().keys() - ({*POINTER} if shards else {"content"})
        if (
            form != (API_VERSION, "RoutingTable")
            or fields - {"apiVersion", "identity", "kind"}
            or raw.mapping().keys() - {*Identity._fields, "time"}
        ):
            identity = None  # somebody has added to it: it is written anew
    except PlanFileError:
        identity = None
    return facts | {"identity": identity}


def read_content(body: Body) -> tuple[str, TableIslands]:
    """Return the content of a whole table, as canonical JSON, and its islands.

    Raises:
        PlanFileError: the ConfigMap has no table.
    """
    content = read_json(Node(body).field("data").field(TABLE_KEY).text()).field("content")
    return canonical_bytes(content.value).decode("ascii"), islands_of(content)


def read_shard(body: Body) -> str:
    """Return the text of a shard.

    Raises:
        PlanFileError: the ConfigMap has none.
    """
    return Node(body).field("data").field(SHARD_KEY).text()


def read_islands(content: str) -> TableIslands:
    """Return the islands of the content of a table.

    Raises:
        PlanFileError: it is no content of a table.
    """
    return islands_of(read_json(content))


def islands_of(content: Node) -> TableIslands:
    """Return the islands of a table by name.

    Raises:
        PlanFileError: it is no content of a table.
    """
    models = {
        name.text(): group.field("model").text()
        for group in content.field("groups").items()
        for name in group.field("members").items()
    }
    used = {
        pair.field(phase).text()
        for model in content.optional_items("models")
        for route in model.optional_items("routes")
        for pair in route.optional_items("pairs")
        for phase in ("prefill", "decode")
    }
    routed = {
        name.text()
        for group in content.field("groups").items()
        if group.optional("name") is not None and group.field("name").value in used
        for name in group.field("members").items()
    }
    return TableIslands(
        (
            island.field("name").text(),
            TableIsland(
                Node(models, "groups").field(island.field("name").text()).text(),
                island.field("phase").one_of(Phase).value,
                tuple(node.text() for node in island.field("nodes").items()),
                island.field("gpus").integer(1),
                role_of(island.mapping(), models[island.field("name").text()]),
                island.field("name").text() in routed,
                tuple(
                    (sys.intern(part.field("pool").text()), part.field("gpus").integer(1))
                    for part in ([*island.optional_items("parts")] or (island,))
                    if part.optional("pool")
                ),
            ),
        )
        for island in content.field("islands").items()
    )


def out_of_service(plan: PlanObject, islands: TableIslands) -> list[str]:
    """Return the islands that must leave the table: on lost nodes, or sent requests and not ready.

    Only where pods carry the plan's label; else it is not known which are ready.
    """
    unready = plan.live.unready(islands) if plan.live else frozenset()
    silent = {name for name in unready if islands[name].routed}
    return sorted(silent | set(lost_islands(plan, islands)))


def lost_islands(plan: PlanObject, islands: TableIslands) -> list[str]:
    """Return those of the islands that have lost a node."""
    lost = plan.live.lost_nodes if plan.live else frozenset()
    return sorted({name for node in lost for name in islands.by_node.get(node, ())})
