"""Routing tables as the operator stores them, and their published schema."""

import json
from pathlib import Path
from typing import Any

from archipelago.planner.documents import API_VERSION

FILE = Path(__file__).parents[3] / "planner" / "table" / "routing-table.schema.json"
SCHEMA: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
IDENTITY = {"uid": "6c2c", "generation": 3, "sequence": 7, "time": "2026-01-31T12:00:00Z"}


def routing_table(content: dict[str, Any], **identity: object) -> dict[str, Any]:
    """Return the table of a content, with ``IDENTITY`` but for some fields."""
    head = {"apiVersion": API_VERSION, "kind": "RoutingTable", "identity": IDENTITY | identity}
    return {**head, "content": content}
