"""Trace files: three real ones, small ones of each form, and what is said of broken ones."""

from pathlib import Path

import pytest

from archipelago.perfmodel.errors import TraceError
from archipelago.perfmodel.workload.traces import read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = """{"timestamp": 500, "input_length": 4808, "output_length": 10, "hash_ids": [1]}

{"timestamp": 2000, "input_length": 3180, "output_length": 8, "hash_ids": []}
"""
TRACES = Path(__file__).parents[3] / "../shared/data/traces"


@pytest.mark.skipif(not TRACES.exists(), reason="../shared/data is absent")
@pytest.mark.parametrize(
    ("name", "requests", "inputs", "outputs", "minutes"),
    [
        ("azure_2023/AzureLLMInferenceTrace_code.csv", 8_819, 2048, 27.9, 57),
        ("azure_2023/AzureLLMInferenceTrace_conv.csv", 19_366, 1155, 211, 58),
        ("mooncake/traces/conversation_trace.jsonl", 12_031, 12_035, 343, 59),
    ],
)
def test_real_traces_have_their_published_sizes(
    name: str, requests: int, inputs: float, outputs: float, minutes: float
) -> None:
    trace = read_trace(TRACES / name)
    assert len(trace.inputs) == requests
    assert trace.inputs.mean() == pytest.approx(inputs, rel=5e-4)
    assert trace.outputs.mean() == pytest.approx(outputs, rel=2e-3)
    assert trace.timestamps is not None
    assert trace.timestamps[-1] / 60 == pytest.approx(minutes, abs=1)


@pytest.mark.parametrize(
    "text",
    [
        HEADER + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,3180,8\n",
        HEADER
        + "2024-05-10 00:00:00.009930+00:00,4808,10\n2024-05-10 00:00:01.509930+00:00,3180,8\n",
        MOONCAKE,
        "4808,10,7\n3180,8,8.5\n",
        "\ufeffid, output_tokens, prompt_tokens, arrival\na,10,4808,0\nb,8,3180,1.5\n",
    ],
    ids=["azure 2023", "azure 2024", "mooncake", "bare", "named"],
)
def test_every_form_is_distinguished(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text, encoding="utf-8")
    inputs, outputs, timestamps = read_trace(file)
    assert inputs.tolist() == [4808, 3180]
    assert outputs.tolist() == [10, 8]
    assert timestamps is not None
    assert timestamps.tolist() == pytest.approx([0, 1.5], abs=1e-6)


def test_arrivals_are_optional(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("input,output\n5,6\n")
    assert read_trace(file).timestamps is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("input,output\n", "no request below it"),
        ("a,b\n1,2\n", "line 1: no column for input and output.*header"),
        ("input,output\n5,6\n7\n", "line 3: only 1 columns"),
        ("input,output\n5,six\n", "line 2: output is 'six'; it must be a number"),
        ("input,output\n5.5,6\n", "line 2: input is '5.5'; a length is a whole number"),
        ("input,output\n-5,6\n", "line 2: input is '-5'; a length is a whole number"),
        ("input,output,time\n5,6,noon\n", "line 2: arrival 'noon' is neither seconds nor a date"),
        ('{"input_length": 5}\n', "line 1: needs the fields input_length and output_length"),
        ('{"input_length": 5, "output_length": 1}\n{"input', "line 2: not JSON"),
        ('{"input_length": null, "output_length": 1}\n', "line 1: input_length is None"),
        ('{"input_length": 1, "output_length": Infinity}\n', "line 1: output_length is inf"),
    ],
)
def test_a_broken_trace_names_the_line_and_the_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(file)


def test_a_binary_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.gz"
    file.write_bytes(b"\x1f\x8b\x08\xff\xfe")
    with pytest.raises(TraceError, match="cannot be read as text"):
        read_trace(file)
    with pytest.raises(TraceError, match="cannot be read as text"):
        read_trace(tmp_path / "absent")


@pytest.mark.parametrize(
    "arrival",
    [
        "now",
        "",
        "NaT",
        "nan",
        "inf",
        "1066-10-14 09:00:00",
        "2023-11-16 18:17:03+02:00",
        "2023-02-30 00:00",
    ],
)
def test_an_arrival_that_is_no_date_is_refused(tmp_path: Path, arrival: str) -> None:
    """By itself numpy would take some of them for dates and count with them."""
    file = tmp_path / "trace"
    file.write_text(f"input,output,arrival\n1,1,{arrival}\n")
    with pytest.raises(TraceError, match=r"line 2: arrival"):
        read_trace(file)


@pytest.mark.parametrize(
    "text",
    ["1,1\n" + "9" * 5000 + ",1\n", '{"input_length": 1' + "0" * 400 + ', "output_length": 1}\n',
     '{"input_length": ' + "9" * 5000 + ', "output_length": 1}\n', '"' + "x" * 140_000 + '",1\n',
     '{"a":' * 100_000],
    ids=["digits", "beyond a float", "beyond Python", "field", "depth"],
)  # fmt: skip
def test_huge_numbers_and_deep_nesting_in_a_trace_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(TraceError, match=r"line \d"):
        read_trace(file)
