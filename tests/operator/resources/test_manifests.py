"""Names, labels and the table's text."""

import json
import re
import string
from dataclasses import replace

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.resources.manifests import table_manifest, table_text
from archipelago.operator.resources.names import NAME_LENGTH, Identity, Key, table_name
from archipelago.operator.resources.objects import owner_reference
from archipelago.planner.documents import canonical_bytes
from archipelago.planner.kubernetes.labels import label_value
from tests.support.operator.situations import CONTENT, T0, plan, stored
from tests.support.planner.tables import SCHEMA, routing_table

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
ALPHABET = string.ascii_lowercase + string.digits
PART = st.text(ALPHABET + "-", min_size=1, max_size=63).filter(LABEL.fullmatch)
PLAN_NAMES = st.lists(PART, min_size=1, max_size=5).map(".".join).filter(lambda n: len(n) <= 253)


@given(PLAN_NAMES)
def test_a_table_name_is_a_dns_label_of_at_most_63_characters(name: str) -> None:
    made = table_name(name)

    assert len(made) <= NAME_LENGTH
    assert LABEL.fullmatch(made)
    assert made == table_name(name)


@given(st.lists(PLAN_NAMES, min_size=2, max_size=30, unique=True))
def test_two_plans_never_share_a_table_name(names: list[str]) -> None:
    hashed = [table_name(name).removesuffix("-routing") for name in names]

    assert len({table_name(name) for name in [*names, *hashed]}) == len({*names, *hashed})


@given(PLAN_NAMES)
def test_a_label_value_fits(name: str) -> None:
    assert len(label_value(name)) <= NAME_LENGTH
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", label_value(name))


def test_short_names_stay_readable_and_long_ones_differ_in_their_hash() -> None:
    longest = "a" * 253

    assert table_name("chat") == "chat-routing"
    assert len(table_name(longest)) == 63
    assert table_name(longest) != table_name("a" * 252)
    assert label_value("a" * 63) == "a" * 63
    assert label_value("a" * 64) != label_value("a" * 65)


def test_the_text_is_what_the_planner_would_write_byte_for_byte() -> None:
    text = table_text(Identity("u", 3, 7), CONTENT, T0)
    reference = routing_table(json.loads(CONTENT), uid="u", time="2026-01-01T00:00:00Z")

    assert text.encode() == canonical_bytes(reference)
    assert json.loads(text)["identity"] == {
        "uid": "u", "generation": 3, "sequence": 7, "time": "2026-01-01T00:00:00Z"
    }  # fmt: skip


def test_the_identity_follows_the_published_schema() -> None:
    identity = json.loads(table_text(Identity("u", 3, 7), CONTENT, T0))["identity"]
    shape = SCHEMA["properties"]["identity"] | {"$defs": SCHEMA.get("$defs", {})}

    jsonschema.validate(identity, shape)


def test_a_first_write_can_only_create_and_a_later_one_only_change_what_was_seen() -> None:
    splan = plan()
    identity = Identity(splan.uid, 1, 1)

    first = table_manifest(splan, None, identity, CONTENT, T0)
    later = table_manifest(splan, stored(splan), identity, CONTENT, T0)

    assert first["metadata"]["resourceVersion"] == "1"
    assert later["metadata"]["resourceVersion"] == "200"


def test_the_table_is_found_and_owned() -> None:
    splan = replace(plan(), key=Key("team", "x" * 253))
    meta = table_manifest(splan, None, Identity(splan.uid, 1, 1), CONTENT, T0)["metadata"]

    assert {name for name in meta["labels"] if name.startswith("app.kubernetes.io/")} == {
        f"app.kubernetes.io/{part}" for part in ("name", "managed-by", "part-of", "instance")
    }
    assert meta["ownerReferences"] == [owner_reference(splan)]
    assert owner_reference(splan)["controller"] is True
    assert owner_reference(splan)["blockOwnerDeletion"] is False
