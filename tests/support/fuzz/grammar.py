"""What is given to readers, with extreme values in all places.

Texts of the characters that formats give meaning to, any JSON, and something valid with a few
places changed, which gets furthest.
"""

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Inputs for each test; more of them, and new ones each time, where a number is given.
MORE = int(os.environ.get("ARCHIPELAGO_FUZZ_EXAMPLES", "0"))
settings.register_profile(
    "fuzz",
    max_examples=MORE or 100,
    derandomize=not MORE,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
fuzz = settings(settings.get_profile("fuzz"))

HUGE = 10**400  # beyond a float
ODD = (
    HUGE,
    -HUGE,
    2**63,
    -1,
    0,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "\x00",
    "\ud800",
    "1e400",
    *(2**53, 2**63 - 1, -(2**63), 10**30, 1e-308, "1e-400", "1e400Gi", "9" * 400, "-1", "1_0"),
    *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "99999-12-31T00:00:00Z", "now"),
    *("9999-12-31T23:59:59-23:59", "-P1D", "-1h", "²", "x" * 70_000),
)


def deep() -> list[Any]:
    """A document of more levels than any of ours has."""
    found: list[Any] = []
    for _ in range(150):
        found = [found]
    return found


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(ODD)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
) | st.builds(deep)
# What YAML, JSON and CSV give meaning to, and the beginnings of what the readers look for.
TOKENS = st.lists(
    st.sampled_from(
        [
            *"{}[]:,-?&*!|>'\"%@`#=~<+.\n\r\t \\\x00\x85\u2028\ufeff",
            *("<<: ", "!!binary ", "!!set ", "!!timestamp ", "!!bool ", "!!float ", "!!int "),
            *("!!python/object:os.system ", "&a ", "*a", "---\n", "0x_", "1_0", "1e999", "-0"),
            *(".inf", ".nan", "2026-13-99", "12:30:45", "null", "true", "input,output\n", "now"),
            *("apiVersion", "kind", "metadata", "spec", "models", "pools", "items", "name"),
        ]
    ),
    max_size=30,
).map("".join)
BYTES = st.binary() | (TOKENS | st.text()).map(lambda text: text.encode(errors="surrogatepass"))


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in a document, itself included."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


@st.composite
def changed(draw: st.DrawFn, valid: dict[str, Any]) -> Any:  # noqa: ANN401  # any JSON
    """A valid document with one to three places replaced, removed, doubled or renamed."""
    document = {"": copy.deepcopy(valid)}
    for _ in range(draw(st.integers(1, 3))):
        paths = [path for path in places(document) if path]
        *above, last = draw(st.sampled_from(paths))
        holder: Any = document
        for key in above:
            holder = holder[key]
        inside = holder[last]
        if inner := _json_in(inside):
            holder[last] = json.dumps(draw(changed(inner)))
            continue
        match draw(st.sampled_from(("replace", "remove", "double", "rename"))):
            case "remove" if above:
                del holder[last]
            case "double" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[last]))
            case "rename" if above and isinstance(holder, dict):
                holder[draw(st.text(max_size=8))] = holder.pop(last)
            case _:
                holder[last] = draw(VALUES)
    return document[""]


def _json_in(value: object) -> dict[str, Any]:
    """The mapping that a text holds as JSON; empty if it holds none."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def encoded(value: object) -> bytes:
    """As JSON; numbers and characters that JSON has no word for are written all the same."""
    return json.dumps(value).encode()
