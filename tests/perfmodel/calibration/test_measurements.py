"""Loaders: what each rule drops or corrects, on rows written here; a user's own files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.perfmodel.calibration import measurements
from archipelago.perfmodel.calibration.benches import loop_benches, served_model
from archipelago.perfmodel.calibration.from_runs import calibrate
from archipelago.perfmodel.calibration.measurements import (
    EnginePoint,
    Loaded,
    clean,
    grouped,
    read_csv,
    read_points,
)
from archipelago.perfmodel.catalogue.accelerators import from_facts
from archipelago.perfmodel.catalogue.architectures import architecture, from_config
from archipelago.perfmodel.errors import MeasurementError, UnknownName
from archipelago.perfmodel.roofline.parallelism import Parallelism
from benchmarks.accuracy import inference_bench, splitwise
from tests.support.perfmodel import LLAMA_1B

DATA = Path(__file__).parents[3] / "../shared/data"
HEADER = (
    "backend,backend_version,model_path,system,precision,mode,isl,osl,tp_size,pp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms,concurrency"
)
DENSE = "vllm,,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,1024,1024,2,1.0,1.0,2,1,121.3,17.4,4.0"
R1 = "trtllm,1.1,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,1024,8192,{tp},1.0,{dp},8,{ep},{t},{c}"
GPT = "{engine},{v},openai/gpt-oss-120b,h200_sxm,fp4,agg,1024,1024,{tp},1.0,1.0,{m},{m},{t},{c}"
QWEN = "vllm,0.12,Qwen/Qwen3-235B-A22B-FP8,h200_sxm,fp8,agg,2000,500,{tp},1.0,,{m},{ep},{t},{c}"


def points(folder: Path, *rows: str) -> Loaded[measurements.EnginePoint]:
    path = folder / measurements.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((HEADER, *rows)) + "\n")
    return measurements.load(folder)


def test_a_plain_row_is_read_in_seconds(tmp_path: Path) -> None:
    (found,) = points(tmp_path, DENSE).rows
    assert found.series == ("H100", "vllm", "Llama-3.1-70B", "fp8")
    assert found.parallelism == Parallelism(tp=2)
    assert (found.inputs, found.outputs, found.clients) == (1024, 1024, 4)
    assert (found.ttft, found.tpot) == pytest.approx((0.1213, 0.0174))


def test_repeats_that_differ_in_the_last_digit_count_once_with_the_lower_tp(tmp_path: Path) -> None:
    wide = DENSE.replace(",2,1.0,1.0,2,1,121.3,17.4,", ",4,1.0,1.0,4,1,121.30000001,17.400000002,")
    loaded = points(tmp_path, wide, DENSE)
    assert [point.parallelism.tp for point in loaded.rows] == [2]
    assert loaded.dropped["repeat of the same measurement"] == 1


def test_dropped_rows_are_counted_by_rule(tmp_path: Path) -> None:
    apart = DENSE.replace(",agg,", ",disagg,")
    silent = DENSE.replace("17.4,4.0", "17.5,")
    stray = R1.format(tp="8.0", dp="1.0", ep="8.0", t="377.8,32.164", c="64.0")
    loaded = points(tmp_path, apart, silent, stray, DENSE)
    assert len(loaded.rows) == 1
    assert sorted(loaded.dropped.values(), reverse=True) == [1, 1, 1, 0, 0]


def test_a_tp_size_of_64_is_corrected_to_8(tmp_path: Path) -> None:
    other = R1.replace("trtllm", "sglang")
    row = other.format(tp="64.0", dp="1.0", ep="8.0", t="671.1,19.252", c="32.0")
    copies = other.format(tp="1.0", dp="64.0", ep="8.0", t="5793.1,30.687", c="256.0")
    loaded = points(tmp_path, row, copies)
    assert {point.parallelism for point in loaded.rows} == {
        Parallelism(tp=8, ep=8),
        Parallelism(dp=8, ep=8),
    }
    assert loaded.corrected["tp_size is tp x ep"] == 1
    assert loaded.corrected["attention_dp 64 means 8"] == 1


def test_tp_2_with_ep_2_is_corrected_in_one_version_and_dropped_in_others(tmp_path: Path) -> None:
    meant = GPT.format(engine="trtllm", v="gpt-oss-dev", tp="4.0", m="2.0", t="99.1,8.7", c="16.0")
    hybrid = GPT.format(engine="trtllm", v="1.3.0rc1", tp="4.0", m="2.0", t="90.0,8.0", c="16.0")
    loaded = points(tmp_path, meant, hybrid)
    assert [point.parallelism for point in loaded.rows] == [Parallelism(tp=2, ep=2)]
    assert loaded.dropped["experts both sliced and spread"] == 1


def test_attention_dp_is_derived_from_the_split_of_experts(tmp_path: Path) -> None:
    row = QWEN.format(tp="2.0", m="4.0", ep="1.0", t="400.0,14.0", c="7.0")
    (found,) = points(tmp_path, row).rows
    assert found.parallelism == Parallelism(tp=2, dp=2, ep=4)


def test_a_full_server_is_recognised_by_steps_of_a_smaller_batch(tmp_path: Path) -> None:
    few = GPT.format(engine="vllm", v="0.18.0", tp="2.0", m="1.0", t="169.0,14.8", c="64.0")
    full = GPT.format(engine="vllm", v="", tp="2.0", m="1.0", t="23793.3,5.6", c="512.0")
    slower = GPT.format(engine="vllm", v="0.11.2", tp="2.0", m="1.0", t="462052.7,16.2", c="512.0")
    busy = GPT.format(engine="vllm", v="0.11.2", tp="2.0", m="1.0", t="23793.3,40.0", c="512.0")
    loaded = points(tmp_path, few, full, slower, busy)
    assert sorted(round(1e3 * point.tpot, 1) for point in loaded.rows) == [14.8, 40.0]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("a , b\n1,2\n")
    assert read_csv(path, ("a", "b")) == [{"a": "1", "b": "2"}]
    with pytest.raises(MeasurementError, match="no column c"):
        read_csv(path, ("a", "c"))
    with pytest.raises(MeasurementError, match="cannot be read"):
        read_csv(tmp_path / "absent.csv", ())


def test_a_row_counts_for_the_first_rule_that_drops_it() -> None:
    usable, dropped = clean(
        [1, 2, 3, 4, 5], {"even": lambda n: n % 2 == 0, "large": lambda n: n > 3}
    )
    assert (usable, dict(dropped)) == ([1, 3], {"even": 2, "large": 1})
    assert grouped("abcab", str) == [["a", "a"], ["b", "b"], ["c"]]


BENCH = "Hardware,Num of Hardware,Framework,Model,Input Output Length,Batch Size,Latency,Throughput"


def test_failed_runs_repeats_and_waves_of_batches(tmp_path: Path) -> None:
    """Weights of 16.06 GB, 1,000 times at 3.35 TB/s, are 4.79 s: 0.8 of that is the floor."""
    path = tmp_path / inference_bench.FILE
    path.parent.mkdir(parents=True)
    row = "Nvidia H100 GPU,1,vLLM,meta-llama/Meta-Llama-3-8B,{n},{b},{s},0"
    rows = [
        row.format(n=1000, b=1, s=8.0),
        row.format(n=1000, b=1, s=18.0),  # a repeat: the geometric mean is 12
        row.format(n=1000, b=16, s=3.5),
        row.format(n=2048, b=256, s=500.0),
        row.format(n=128, b=1, s=1.0).replace("vLLM", "llama.cpp"),
    ]
    path.write_text("\n".join((BENCH, *rows)) + "\n")
    loaded = inference_bench.load(tmp_path)
    (found,) = loaded.rows
    assert found.seconds == pytest.approx(12.0)
    assert found.deployment == "Llama-3-8B tp1"
    assert not found.large
    assert set(loaded.dropped.values()) == {1}
    assert len(loaded.dropped) == 4


def test_the_median_of_repeats_counts_in_splitwise(tmp_path: Path) -> None:
    path = tmp_path / splitwise.FILE
    path.parent.mkdir(parents=True)
    head = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"
    row = "llama2-70b,{gpu},512,{b},128,{p},50.0,2"
    rows = [row.format(gpu="a100-80gb", b=1, p=p) for p in (190.0, 200.0, 290.0)]
    rows += [row.format(gpu="a100-80gb", b=64, p=1.0), row.format(gpu="h100-80gb-pcap", b=1, p=9)]
    path.write_text("\n".join((head, *rows)) + "\n")
    loaded = splitwise.load(tmp_path)
    (found,) = loaded.rows
    assert (found.prefill, found.token, found.accelerator) == (0.2, 0.05, "A100-80GB")
    assert sorted(loaded.dropped.values()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("meta-llama/Llama-2-70b-hf", 68.98), ("bigscience/bloom", 176.2), ("Qwen2-7B", 7.616)],
)
def test_benchmarked_models_have_their_published_size(name: str, billions: float) -> None:
    """Parameters as the repositories state them."""
    assert architecture(name, "bf16").parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(UnknownName, match="Llama-2-7B"):
        architecture("Llama-2-7", "bf16")


def test_the_published_files_lose_the_rows_that_are_known_to_be_wrong() -> None:
    if not (DATA / measurements.FILE).exists():
        pytest.skip(f"no published measurements below {DATA}")
    loaded = measurements.load(DATA)
    assert {p.engine for p in loaded.rows if p.model == "DeepSeek-R1"} == {"sglang"}
    drafting = "servers that draft tokens, with an acceptance that is not stated"
    assert loaded.dropped[drafting] == 30
    assert loaded.corrected["tp_size is tp x ep"] == 35
    assert {p.kv for p in loaded.rows if "70B" in p.model} == {"fp8"}
    assert {p.drawn for p in loaded.rows if "8B" in p.model} == {1.0}
    runs = inference_bench.load(DATA)
    assert runs.dropped["below the physical floor: the run failed"] == 33
    assert (
        splitwise.load(DATA).dropped["Llama-2-70B TP2 batch 64: faster than the peak allows"] == 10
    )


OWN = "accelerator,engine,model,precision,tp,input,output,clients,ttft_ms,tpot_ms\n"


def test_a_users_csv_with_columns_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("input,output,clients,tpot_ms,tp\n1024,256,8,12.5,4\n")
    given = {"accelerator": "h100-sxm", "engine": "mine", "model": "Llama-3.1-8B", "tp": "2"}
    (found,) = read_points(path, given)
    assert found.accelerator == "H100"
    assert found.parallelism == Parallelism(tp=4)  # the file knows better
    assert served_model(found) == architecture("Llama-3.1-8B", "bf16")  # as it is published
    assert found.tpot == pytest.approx(0.0125)
    assert found.ttft != found.ttft  # nan: it was not measured


def test_runs_are_of_what_their_names_mean_to_the_caller(tmp_path: Path) -> None:
    """Two precisions of one name are two deployments, and one cache by two names is one."""
    path = tmp_path / "own.csv"
    rows = ("fp8,bf16", ",bf16", ",")
    lines = (f"mine,vllm,M,{row},1024,256,8,12.5" for row in rows)
    path.write_text(
        "\n".join(("accelerator,engine,model,precision,kv,input,output,clients,tpot_ms", *lines))
    )
    card = from_facts("Mine", {"memory": 64e9}, "H100")
    points = read_points(path, {}, lambda _: card, lambda _, p: from_config(LLAMA_1B, "m/M", p))
    assert {(point.accelerator, point.model) for point in points} == {("Mine", "m/M")}
    deployments = [bench.deployment for bench in loop_benches(points)]
    assert [each.accelerator for each in deployments] == [card, card]
    assert [each.model.precision.name for each in deployments] == ["fp8", "bf16"]
    (made, *rest) = calibrate(points)
    assert (made.accelerator, made.models, rest) == ("Mine", ("m/M",), [])


def test_the_cache_of_a_config_is_that_of_its_runs() -> None:
    """Unless the run states another."""
    fp8 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    fp8["quantization_config"]["kv_cache_quant_algo"] = "FP8"
    shape = from_config({**LLAMA_1B, **fp8}, "m/M")
    point = EnginePoint("H100", "vllm", "", "m/M", "", Parallelism(), 1, 1, 1, 1, 1, shape=shape)
    assert served_model(point).precision.kv == 1.0
    assert served_model(replace(point, kv="bf16")).precision.kv == 2.0


def test_results_of_a_serving_benchmark(tmp_path: Path) -> None:
    """100 requests of 102,400 tokens in and 25,600 out: 1,024 and 256 each."""
    result = {
        "completed": 100,
        "max_concurrency": 8,
        "total_input_tokens": 102_400,
        "total_output_tokens": 25_600,
        "mean_ttft_ms": 80.0,
        "mean_tpot_ms": 9.0,
    }
    path = tmp_path / "result.json"
    given = {"accelerator": "H100", "engine": "vllm", "model": "Llama-3.1-8B"}
    path.write_text(json.dumps(result))
    (found,) = read_points(path, given)
    assert (found.inputs, found.outputs, found.clients) == (1024, 256, 8)
    path.write_text("\n".join([json.dumps(result)] * 3))
    assert len(read_points(path, given)) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("H100,vllm,Llama-3.1-8B,bf16,1,1024,256,8,80,-1\n", "row 1: tpot_ms is '-1'"),
        ("H100,vllm,Llama-3.1-8B,bf16,1,1024,256,many,80,9\n", "clients is 'many'"),
        (",vllm,Llama-3.1-8B,bf16,1,1024,256,8,80,9\n", "no accelerator"),
        ("H1000,vllm,Llama-3.1-8B,bf16,1,1024,256,8,80,9\n", "row 1, accelerator: .*'H1000'"),
        ("H100,vllm,Llama-9,bf16,1,1024,256,8,80,9\n", "row 1, model: unknown model 'Llama-9'"),
        ("H100,vllm,Llama-3.1-8B,fp16,1,1024,256,8,80,9\n", "unknown precision 'fp16'"),
        ("H100,vllm,Llama-3.1-8B,bf16,1.5,1024,256,8,80,9\n", "tp is '1.5'; it must be a whole"),
        ("", "no measurement in it"),
    ],
)
def test_errors_in_a_users_csv_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(OWN + text)
    with pytest.raises((MeasurementError, UnknownName), match=says):
        read_points(path, {})


@pytest.mark.parametrize("text", ["{", "[1]", '{"completed": 3}'])
def test_other_json_is_refused_with_what_is_needed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(MeasurementError, match=r"JSON|needs completed|must be an object"):
        read_points(path, {})
