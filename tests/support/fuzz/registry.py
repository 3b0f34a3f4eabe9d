"""All readers by name, and inputs for each; the tests and ``make fuzz`` run the same."""

import json
from contextlib import suppress
from typing import Any, Final

from hypothesis import strategies as st

from .grammar import BYTES, VALUES, changed, encoded
from .objects import OBJECTS
from .readers import READERS, Reader

ALL: Final = READERS | OBJECTS


def documents(reader: Reader) -> list[dict[str, Any]]:
    """The JSON objects that it is known to understand."""
    found = []
    for seed in reader.seeds():
        with suppress(ValueError):
            found.append(json.loads(seed))
    return [value for value in found if isinstance(value, dict)]


def almost_right(reader: Reader) -> st.SearchStrategy[bytes]:
    """One of these with a few places changed."""
    return st.one_of([changed(document).map(encoded) for document in documents(reader)])


def inputs(reader: Reader) -> st.SearchStrategy[bytes]:
    """Whatever it may be given: mostly what gets furthest."""
    return almost_right(reader) | almost_right(reader) | VALUES.map(encoded) | BYTES
