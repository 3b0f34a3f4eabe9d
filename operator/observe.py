"""What we see of a plan and its table, as frozen facts; objects are parsed here and nowhere else.

Only a digest of the table is kept: 500 tables would be most of the operator's memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from archipelago.operator.manifests import (
    API_VERSION,
    CONTENT,
    INPUTS,
    KIND,
    MANAGED_BY,
    OURS,
    TABLE_KEY,
    Identity,
    Key,
    owner_reference,
    table_labels,
)
from archipelago.operator.status import Status
from archipelago.planner.canonical import canonical_bytes

Body: TypeAlias = Mapping[str, Any]

# Part of every inputs hash. Raise it when equal inputs give another table than the last release:
# every plan is then made again once after the upgrade, and not otherwise. A field that had no
# effect while it was unknown (unknown.py) and has one now is such a case.
REVISION: Final = 1
# Fields that no table depends on.
_WITHOUT_EFFECT: Final = frozenset({"suspend"})


@dataclass(frozen=True)
class SeenPlan:
    """A ServingPlan as last seen. ``inputs_hash`` names everything its table depends on."""

    key: Key
    uid: str
    resource_version: str
    generation: int
    deleting: bool
    suspended: bool
    inputs_hash: str
    spec: Body
    status: Status

    @classmethod
    def from_body(cls, body: Body) -> SeenPlan:
        """Read an object of the API server, whose schema has been checked there."""
        meta, spec = body["metadata"], body.get("spec") or {}
        return cls(
            key=Key(meta["namespace"], meta["name"]),
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            generation=int(meta.get("generation", 0)),
            deleting="deletionTimestamp" in meta,
            suspended=bool(spec.get("suspend", False)),
            inputs_hash=inputs_hash(meta["name"], spec),
            spec=spec,
            status=Status.from_body(body),
        )

    def to_resource(self) -> dict[str, Any]:
        """The resource as a file would hold it: what the planner is given."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.key.name},
            "spec": self.spec,
        }


@dataclass(frozen=True)
class SeenTable:
    """A ConfigMap of the name of a plan's table. ``content_hash`` None: no table can be read."""

    key: Key
    uid: str
    resource_version: str
    deleting: bool
    owner_uid: str | None
    owner_reference: Body | None
    labels: Mapping[str, str]
    inputs_hash: str | None
    written_hash: str | None  # of the content when we wrote it
    content_hash: str | None  # of the content as it is
    identity: Identity | None

    @classmethod
    def from_body(cls, body: Body) -> SeenTable:
        """Read a ConfigMap; it may be anybody's, so nothing is taken for granted."""
        meta = body["metadata"]
        notes = meta.get("annotations") or {}
        owner = _owner(meta.get("ownerReferences") or ())
        content_hash, identity = _read((body.get("data") or {}).get(TABLE_KEY))
        return cls(
            key=Key(meta["namespace"], meta["name"]),
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            deleting="deletionTimestamp" in meta,
            owner_uid=owner["uid"] if owner else None,
            owner_reference=owner,
            labels=meta.get("labels") or {},
            inputs_hash=notes.get(INPUTS),
            written_hash=notes.get(CONTENT),
            content_hash=content_hash,
            identity=identity,
        )

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

    def is_untouched(self) -> bool:
        """Whether the content is what we wrote."""
        return self.content_hash is not None and self.content_hash == self.written_hash

    def is_labelled_for(self, plan: SeenPlan) -> bool:
        """Whether labels and owner reference are as we write them; others may be there too."""
        ours = table_labels(plan.key.name).items()
        return ours <= dict(self.labels).items() and self.owner_reference == owner_reference(plan)

    def answers(self, plan: SeenPlan) -> bool:
        """Whether nothing has to be written for the plan as it is now."""
        return (
            self.belongs_to(plan)
            and self.inputs_hash == plan.inputs_hash
            and self.is_untouched()
            and self.is_labelled_for(plan)
            and self.identity is not None
            and self.identity.uid == plan.uid
            and self.identity.generation >= plan.generation
        )


@dataclass(frozen=True)
class Observation:
    """All that a decision about one key can see of the cluster. ``plan`` None: there is none."""

    key: Key
    plan: SeenPlan | None
    table: SeenTable | None


def inputs_hash(name: str, spec: Body) -> str:
    """Names what a table depends on: equal hashes, equal content."""
    effective = {field: value for field, value in spec.items() if field not in _WITHOUT_EFFECT}
    inputs = {"revision": REVISION, "name": name, "spec": effective}
    return hashlib.sha256(canonical_bytes(inputs)).hexdigest()[:32]


def _owner(references: Any) -> Body | None:  # noqa: ANN401  # a JSON list
    return next(
        (
            owner
            for owner in references
            if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION
        ),
        None,
    )


def _read(text: str | None) -> tuple[str | None, Identity | None]:
    """Hash of the content and the identity, as far as the text can be read at all."""
    try:
        table = json.loads(text or "")
        content = hashlib.sha256(canonical_bytes(table["content"])).hexdigest()
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, None
    return content, _identity(table.get("identity"))


def _identity(raw: Any) -> Identity | None:  # noqa: ANN401  # any JSON
    try:
        return Identity(str(raw["uid"]), int(raw["generation"]), int(raw["sequence"]))
    except (ValueError, TypeError, KeyError):
        return None
