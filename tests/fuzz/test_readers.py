"""Whatever is given to read, what comes out is a value or a documented error (B46).

Texts are made in three ways: of the characters that the formats give meaning to, of arbitrary JSON,
and from something valid with a few places changed, which gets furthest. Every run of the tests uses
the same inputs; ``make fuzz`` looks for new ones.
"""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.fuzz.grammar import BYTES, SCALARS, TOKENS, VALUES, changed, encoded, fuzz
from tests.support.fuzz.readers import EXAMPLE
from tests.support.fuzz.registry import ALL, almost_right, documents


def as_yaml(value: object) -> bytes:
    """As YAML, with PyYAML's own words for what JSON lacks."""
    return yaml.safe_dump(value).encode(errors="surrogatepass")


@pytest.mark.parametrize("name", ALL)
@fuzz
@given(data=BYTES)
def test_any_text_is_read_or_refused(name: str, data: bytes) -> None:
    ALL[name](data)


@pytest.mark.parametrize("name", ALL)
@fuzz
@given(value=VALUES)
def test_any_json_is_read_or_refused(name: str, value: object) -> None:
    ALL[name](encoded(value))


@pytest.mark.parametrize("name", [name for name in ALL if documents(ALL[name])])
@fuzz
@given(data=st.data())
def test_an_object_that_is_almost_right(name: str, data: st.DataObject) -> None:
    ALL[name](data.draw(almost_right(ALL[name])))


@fuzz
@given(value=changed(yaml.safe_load(EXAMPLE)))
def test_a_resource_in_yaml_that_is_almost_right(value: object) -> None:
    ALL["resource"](as_yaml(value))


ROWS = st.lists(st.lists(SCALARS.map(str), min_size=1, max_size=4).map(",".join), max_size=4)


@fuzz
@given(header=st.sampled_from(["", "input,output\n", "timestamp,output,input\n"]), rows=ROWS)
def test_a_trace_in_csv_that_is_almost_right(header: str, rows: list[str]) -> None:
    ALL["trace"]((header + "\n".join(rows)).encode(errors="surrogatepass"))


RECORDS = st.fixed_dictionaries(
    {"input_length": SCALARS, "output_length": SCALARS}, optional={"timestamp": SCALARS}
)


@fuzz
@given(records=st.lists(RECORDS, min_size=1, max_size=3))
def test_a_trace_in_json_lines_that_is_almost_right(records: list[dict[str, Any]]) -> None:
    ALL["trace"](b"\n".join(encoded(record) for record in records))


NUMBERS = st.from_regex(r"[-+]?[0-9]{0,12}(\.[0-9]{0,9})?(e[-+]?[0-9]{1,7})?", fullmatch=True)


@fuzz
@given(text=NUMBERS | st.decimals().map(str) | st.text(alphabet="0123456789.eE+-_x ٣", max_size=24))
@example("9" * 5000)
@example("1e999999")
def test_a_quantity_that_is_almost_right(text: str) -> None:
    ALL["quantity"](text.encode())


KINDS = st.sampled_from(
    ["pool=h100:", "price=h100:", "budget=", "rate=llama-8b:", "slo=llama-8b:tpot="]
)


@fuzz
@given(kind=KINDS, sign=st.sampled_from(["", "+", "-", "x"]), text=NUMBERS | TOKENS)
@example("pool=h100:", "", "1e999999")
@example("budget=", "x", "1e999999999")
@example("price=h100:", "+", "9" * 5000)
def test_a_change_that_is_almost_right(kind: str, sign: str, text: str) -> None:
    ALL["what-if"]((kind + sign + text).encode())


@pytest.mark.parametrize("name", ["resource", "plan", "table", "nodes"])
@pytest.mark.parametrize("depth", [30, 200])
@pytest.mark.slow
def test_aliases_that_stand_for_billions_cost_nothing(name: str, depth: int) -> None:
    """YAML's known bomb: each line holds the one before twice; 2^30 texts of 200 bytes of file."""
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, depth))]
    bomb = f"[*a{depth - 1}]"
    head = ["apiVersion: archipelago.dev/v1alpha1", f"kind: {bomb}", f"spec: {bomb}"]
    text = "\n".join([*lines, *head, f"items: {bomb}", f"metadata: {{name: {bomb}}}"])
    assert not ALL[name](text.encode()) or name == "table"


@pytest.mark.parametrize("name", ["resource", "plan", "table", "nodes", "trace"])
@pytest.mark.parametrize("bracket", ["[", '{"a":', "- ", "? "])
def test_brackets_without_end_are_refused(name: str, bracket: str) -> None:
    assert not ALL[name](bracket.encode() * 20_000)
