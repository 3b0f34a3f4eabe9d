"""What a reader of routing tables would have found at each moment that was ever stored.

From the recorder's versions of ConfigMaps the state at each of them is rebuilt, and whether the
pointer of that moment resolved.
"""

import json
from collections.abc import Iterator
from typing import Any

from archipelago.planner.errors import PlanFileError
from archipelago.planner.table.shards import assemble
from archipelago.planner.table.validate import validate_table
from tests.support.faults.history import DELETED, TABLE, History


def tables(history: History, name: str) -> Iterator[tuple[float, dict[str, Any] | None, list[str]]]:
    """After each change: when, the stored table, and what is wrong with it for a reader.

    While no table is stored there is nothing to be wrong.
    """
    stored: dict[str, dict[str, Any]] = {}
    for version in history.ordered(TABLE):
        if version.change == DELETED:
            stored.pop(version.name, None)
        else:
            stored[version.name] = version.body
        if name in stored:
            pointer = json.loads(stored[name]["data"]["table.json"])
            yield version.at, pointer, unreadable(pointer, stored)
        else:
            yield version.at, None, []


def deletions(history: History) -> list[tuple[float, str]]:
    """When which ConfigMap went."""
    return [(v.at, v.name) for v in history.ordered(TABLE) if v.change == DELETED]


def unreadable(pointer: dict[str, Any], stored: dict[str, dict[str, Any]]) -> list[str]:
    """Why a reader cannot use the table; empty where it can."""
    try:
        whole = assemble(pointer, lambda name: str(stored[name]["data"]["shard.txt"]))
    except (KeyError, PlanFileError) as error:
        return [repr(error)]
    return [*validate_table(pointer), *([] if whole is pointer else validate_table(whole))]
