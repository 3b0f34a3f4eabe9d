"""Whatever is given to read, what comes out is a value or a documented error (B46).

Texts are made in three ways: of the characters that the formats give meaning to, of arbitrary JSON,
and from something valid with a few places changed, which gets furthest. Every run of the tests uses
the same inputs; ``make fuzz`` looks for new ones.
"""

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.fuzz.readers import EXAMPLE, READERS, node_list, small_plan, small_table

# Inputs for each test; more of them, and new ones each time, where a number is given.
MORE = int(os.environ.get("ARCHIPELAGO_FUZZ_EXAMPLES", "0"))
settings.register_profile(
    "fuzz",
    max_examples=MORE or 150,
    derandomize=not MORE,
    database=None,
    deadline=5000,  # [ms]; whatever somebody writes, reading it ends
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
)
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
)
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


def encoded(value: object) -> bytes:
    """As JSON; numbers and characters that JSON has no word for are written all the same."""
    return json.dumps(value).encode()


def as_yaml(value: object) -> bytes:
    """As YAML, with PyYAML's own words for what JSON lacks."""
    return yaml.safe_dump(value).encode(errors="surrogatepass")


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_understood(name: str) -> None:
    """Otherwise what follows would try the front door only."""
    assert [seed for seed in READERS[name].seeds() if not READERS[name](seed)] == []


@pytest.mark.parametrize("name", READERS)
@fuzz
@given(text=TOKENS | st.text())
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    READERS[name](text.encode(errors="surrogatepass"))


@pytest.mark.parametrize("name", READERS)
@fuzz
@given(data=st.binary())
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    READERS[name](data)


@pytest.mark.parametrize("name", ["resource", "plan", "table", "nodes", "trace"])
@fuzz
@given(value=VALUES)
def test_any_json_is_read_or_refused(name: str, value: object) -> None:
    READERS[name](encoded(value))


@fuzz
@given(value=changed(yaml.safe_load(EXAMPLE)))
def test_a_resource_that_is_almost_right(value: object) -> None:
    READERS["resource"](encoded(value))


@fuzz
@given(value=changed(yaml.safe_load(EXAMPLE)))
def test_a_resource_in_yaml_that_is_almost_right(value: object) -> None:
    READERS["resource"](as_yaml(value))


@fuzz
@given(value=changed(dict(small_plan())))
def test_a_plan_file_that_is_almost_right(value: object) -> None:
    READERS["plan"](encoded(value))


@fuzz
@given(value=changed(dict(small_table())))
def test_a_routing_table_that_is_almost_right(value: object) -> None:
    READERS["table"](encoded(value))


@fuzz
@given(value=changed(dict(node_list())))
def test_a_node_list_that_is_almost_right(value: object) -> None:
    READERS["nodes"](encoded(value))


ROWS = st.lists(st.lists(SCALARS.map(str), min_size=1, max_size=4).map(",".join), max_size=4)


@fuzz
@given(header=st.sampled_from(["", "input,output\n", "timestamp,output,input\n"]), rows=ROWS)
def test_a_trace_in_csv_that_is_almost_right(header: str, rows: list[str]) -> None:
    READERS["trace"]((header + "\n".join(rows)).encode(errors="surrogatepass"))


RECORDS = st.fixed_dictionaries(
    {"input_length": SCALARS, "output_length": SCALARS}, optional={"timestamp": SCALARS}
)


@fuzz
@given(records=st.lists(RECORDS, min_size=1, max_size=3))
def test_a_trace_in_json_lines_that_is_almost_right(records: list[dict[str, Any]]) -> None:
    READERS["trace"](b"\n".join(encoded(record) for record in records))


NUMBERS = st.from_regex(r"[-+]?[0-9]{0,12}(\.[0-9]{0,9})?(e[-+]?[0-9]{1,7})?", fullmatch=True)


@fuzz
@given(text=NUMBERS | st.decimals().map(str) | st.text(alphabet="0123456789.eE+-_x ٣", max_size=24))
@example("9" * 5000)
@example("1e999999")
def test_a_quantity_that_is_almost_right(text: str) -> None:
    READERS["quantity"](text.encode())


KINDS = st.sampled_from(
    ["pool=h100:", "price=h100:", "budget=", "rate=llama-8b:", "slo=llama-8b:tpot="]
)


@fuzz
@given(kind=KINDS, sign=st.sampled_from(["", "+", "-", "x"]), text=NUMBERS | TOKENS)
@example("pool=h100:", "", "1e999999")
@example("budget=", "x", "1e999999999")
@example("price=h100:", "+", "9" * 5000)
def test_a_change_that_is_almost_right(kind: str, sign: str, text: str) -> None:
    READERS["what-if"]((kind + sign + text).encode())


@pytest.mark.parametrize("name", ["resource", "plan", "table", "nodes"])
@pytest.mark.parametrize("depth", [30, 200])
@pytest.mark.slow
def test_aliases_that_stand_for_billions_cost_nothing(name: str, depth: int) -> None:
    """YAML's known bomb: each line holds the one before twice; 2^30 texts of 200 bytes of file."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, depth))]
    bomb = f"[*a{depth - 1}]"
    head = ["apiVersion: archipelago.dev/v1alpha1", f"kind: {bomb}", f"spec: {bomb}"]
    text = "\n".join([*lines, *head, f"items: {bomb}", f"metadata: {{name: {bomb}}}"])
    assert not READERS[name](text.encode()) or name == "table"


@pytest.mark.parametrize("name", ["resource", "plan", "table", "nodes", "trace"])
@pytest.mark.parametrize("bracket", ["[", '{"a":', "- ", "? "])
def test_brackets_without_end_are_refused(name: str, bracket: str) -> None:
    assert not READERS[name](bracket.encode() * 20_000)
