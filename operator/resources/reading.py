"""Reading objects and answers of the API server: a value, or ``Unreadable``; pure.

An API server checks types, not meanings, and a proxy or a newer version may send anything. So every
reader is total: what it returns has the types and ranges that it states, and nothing but
``Unreadable`` leaves it. ``tests/support/fuzz/registry.py`` lists all readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

from archipelago.planner.documents import Node, safe
from archipelago.planner.errors import InputError, PlanFileError

from ..errors import Unreadable

Body: TypeAlias = Mapping[str, Any]
TEXT_LENGTH: Final = 256 * 1024
"""Largest text of a user that is taken from a ConfigMap [characters]: ten times the usual ones."""
_VERSION_DIGITS: Final = 20


class Meta(NamedTuple):
    """What the API server gives every object. ``namespace``: empty for one without."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    deleting: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def version(self) -> int:
        """Its version as a number, which grows with each write."""
        return int(self.resource_version)


@contextmanager
def reading(kind: str, body: object) -> Iterator[Node]:
    """Read an object of that kind: a refusal gets its name, and says how to see it.

    Raises:
        Unreadable: a part is missing or of another type; the message names the place.
    """
    try:
        yield Node(body)
    except InputError as error:
        try:
            meta = read_meta(Node(body))
        except PlanFileError:
            raise Unreadable(f"a {kind} without a name: {error}") from None
        name = safe(f"-n {meta.namespace} {meta.name}" if meta.namespace else meta.name)
        remedy = f"correct what `kubectl get {kind.lower()} {name} -o json` shows, or delete it"
        raise Unreadable(f"{kind} {name}: {error}; {remedy}") from None


def read_meta(body: Node) -> Meta:
    """Read ``metadata``.

    Raises:
        PlanFileError: a part is missing or of another type.
    """
    meta = body.field("metadata")
    namespace, deletion = meta.optional("namespace"), meta.optional("deletionTimestamp")
    return Meta(
        namespace.text() if namespace else "",
        meta.field("name").text(),
        meta.field("uid").text(),
        read_version(meta),
        deletion is not None,
        meta.texts("labels"),
        meta.texts("annotations"),
    )


def read_version(meta: Node) -> str:
    """Return ``resourceVersion``, which is a whole number in decimal digits.

    Raises:
        PlanFileError: it is not.
    """
    version = meta.field("resourceVersion")
    text = version.text()
    if not (text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS):
        raise version.refuse("a whole number in decimal digits")
    return text


def text_under(body: Body, key: str) -> str:
    """Return the text that a user has put under a key of a ConfigMap.

    Raises:
        PlanFileError: there is none, or it is too long; the message has the remedy.
    """
    data = Node(body).optional_mapping("data")
    text = data.get(key)
    if not isinstance(text, str) or not text.strip():
        found = ", ".join(sorted(map(str, data))[:5]) or "none"
        raise PlanFileError(
            f"it has no text under {key} (keys: {found}): name another key, or make it with "
            f"`kubectl create configmap NAME --from-file={key}`"
        )
    if len(text) > TEXT_LENGTH:
        raise PlanFileError(
            f"{key} has {len(text)} characters, at most {TEXT_LENGTH} are read: shorten it"
        )
    return text
