"""`archipelago calibrate`: a file of runs in, values and intervals out, and a calibration file."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from archipelago.perfmodel.calibration.benches import Deployment
from archipelago.perfmodel.capacity.closed_loop import ClosedLoop, collocated_tpot
from archipelago.perfmodel.catalogue.accelerators import from_facts
from archipelago.perfmodel.catalogue.architectures import from_config
from archipelago.perfmodel.catalogue.efficiency import EngineFit, engine_fit
from archipelago.perfmodel.model import PerformanceModel
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.cli.commands.own import read_resource
from archipelago.planner.formats.plan_file import read_stored
from archipelago.planner.problem import Phase
from archipelago.planner.service.messages import PlanReply, PlanRequest
from archipelago.planner.service.new_spec import plan_request
from archipelago.planner.templates.build import performance_model
from archipelago.planner.templates.shapes import shapes
from tests.support.perfmodel import LLAMA_1B
from tests.support.planner.command import Runner

RUNS = """\
model,precision,tp,input,output,clients,ttft_ms,tpot_ms
Llama-3.1-70B,fp8,2,1024,1024,4,121.3,17.4
Llama-3.1-70B,fp8,2,1024,1024,64,415.1,28.8
Llama-3.1-70B,fp8,8,8192,1024,4,300.8,10.2
Llama-3.1-70B,fp8,8,8192,1024,64,1150.3,34.5
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(RUNS)
    return path


def test_runs_become_a_calibration_file(run: Runner, runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "calibration.yaml"
    result = run("calibrate", runs, "--accelerator", "H100", "--engine", "vllm", "-c", target)
    assert result.status == 0
    assert "vllm on H100: Llama-3.1-70B" in result.out
    assert "90 % interval" in result.out
    (row,) = yaml.safe_load(target.read_text())["calibrations"]
    assert (row["accelerator"], row["engine"], row["source"]) == ("H100", "vllm", "runs.csv")
    assert 0.5 < row["values"]["fp8.mbu"] < 1.0


def test_two_runs_are_said_to_be_few(run: Runner, runs: Path) -> None:
    runs.write_text("".join(RUNS.splitlines(keepends=True)[:3]))
    result = run("calibrate", runs, "--accelerator", "H100", "--engine", "vllm")
    assert result.status == 0
    assert "2 runs are few" in result.err


def test_what_the_file_lacks_is_asked_for(run: Runner, runs: Path) -> None:
    result = run("calibrate", runs, "--engine", "vllm")
    assert result.status == 2
    assert "row 1: no accelerator; state it in a column or as --accelerator" in result.err


CONFIG = {**LLAMA_1B, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336}
OTHER = {**CONFIG, "num_hidden_layers": 40}
MODELS = {"me/M-8B": CONFIG, "me/M-10B": OTHER}
GPU = {
    "name": "H100-64GB",
    "like": "H100",
    "memoryGibibytes": "64",
    "memoryGigabytesPerSecond": "2000",
}
CARD = from_facts("H100-64GB", {"memory": 64 * 2.0**30, "bandwidth": 2e12}, "H100")
FIT = engine_fit(CARD, "vllm")
SLOWER = 1.4
"""What the own engine's times are multiples of: those of the roofline."""


def tpot(island: PerformanceModel, fit: EngineFit, clients: float, length: float) -> float:
    """What a benchmark with 256 tokens out measures of an island, per token [s]."""
    loop = ClosedLoop(*(np.array([x]) for x in (clients, length, 256.0)))
    return float(collocated_tpot(island, loop, fit.overheads.interference)[0])


def own_runs(gpu: str, *models: str, slower: float = SLOWER) -> str:
    """Eight runs of each model, by the roofline for an H100 with 64 GiB and 2,000 GB/s."""
    lines = ["accelerator,engine,model,tp,input,output,clients,tpot_ms"]
    for model, tp, length, clients in product(models, (1, 2), (512.0, 4096.0), (1.0, 48.0)):
        deployment = Deployment(CARD, from_config(MODELS[model], model), Parallelism(tp=tp))
        ms = 1e3 * slower * tpot(deployment.roofline(FIT), FIT, clients, length)
        lines.append(f"{gpu},vllm,{model.upper()},{tp},{length:g},256,{clients:g},{ms:.5g}")
    return "\n".join([*lines, ""])


def own_plan(**model: object) -> dict[str, Any]:
    """Decode on eight of the own GPUs, with times per token that matter."""
    lengths = {"logNormal": {"median": 800, "sigma": "1", "max": 4096}}
    workload = {**lengths, "outputTokens": {"mean": "200"}, "ranges": {"count": 4}}
    engine = {"name": "vllm"}
    demand = {"name": "m", "architecture": "me/M-8B", "engine": engine, "workload": workload}
    pool = {"name": "own", "accelerator": "H100-64GB", "count": 8, "gpusPerNode": 8}
    return {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "mine"},
        "spec": {
            "models": [demand | {"slo": {"tpotMilliseconds": 40}} | model],
            "pools": [pool],
        },
    }


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    """Two GPUs and two models of one's own."""
    models = [{"name": name, "config": {"inline": config}} for name, config in MODELS.items()]
    gpus = [GPU, {"name": "H100-48GB", "like": "H100", "memoryGibibytes": "48"}]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"accelerators": gpus, "models": models}))
    return path


def test_runs_of_ones_own_model_and_gpu_become_the_times_of_its_plans(
    run: Runner, runs: Path, catalogue: Path, tmp_path: Path
) -> None:
    """On the command line and in the planner process of an operator.

    The file is also of a model and of a GPU that the plan does not have, and the plan's catalogue
    gives it only what it uses.
    """
    rows = own_runs("h100-64gb", *MODELS), own_runs("H100-48GB", "me/M-8B").partition("\n")[2]
    runs.write_text("".join(rows))
    target, plan, made = (tmp_path / name for name in ("times.yaml", "plan.yaml", "made.json"))
    plan.write_text(yaml.safe_dump(own_plan()))
    result = run("calibrate", runs, "--catalogue", catalogue, "-c", target)
    assert result.status == 0, result.err
    here, there = yaml.safe_load(target.read_text())["calibrations"]
    assert (here["accelerator"], here["models"]) == ("H100-64GB", ["me/M-8B", "me/M-10B"])
    assert (there["accelerator"], there["models"]) == ("H100-48GB", ["me/M-8B"])

    planning = ("plan", "-q", "-o", "json", "-f", plan, "--catalogue", catalogue)
    bare = json.loads(run(*planning).out)
    result = run(*planning, "--calibration", target)
    assert result.status == 0, result.err
    made.write_text(result.out)
    document = json.loads(result.out)
    assert document["performanceModel"] == "calibrated roofline"
    assert [each["accelerator"] for each in document["calibrations"]] == ["H100-64GB"]
    assert document["theta"] < 0.9 * bare["theta"]
    assert run("verify", made).status == 0

    problem = read_stored(document).problem
    fitted = problem.calibrations[0].fit(CARD)
    measured = (Parallelism(tp=1), Parallelism(tp=2))
    islands = [s for s in shapes(problem) if s.phase is Phase.DECODE and s.parallelism in measured]
    assert len(islands) == 2
    for shape in islands:
        plain, slow = (performance_model(shape, c)[0] for c in ((), problem.calibrations))
        for run_of in ((4.0, 2048.0), (24.0, 1024.0)):  # neither was measured
            expected = SLOWER * tpot(plain, FIT, *run_of)
            assert tpot(slow, fitted, *run_of) == pytest.approx(expected, rel=0.05)

    resource = read_resource(plan.read_text(), str(plan), str(catalogue))
    body = resource.model_dump(mode="json", by_alias=True, exclude_none=True)
    body["spec"]["calibration"] = {"configMap": "times"}
    reply = plan_request(PlanRequest(resource=body, calibration=target.read_text()))
    assert isinstance(reply, PlanReply)
    assert float(reply.summary["throughput"]) == pytest.approx(document["theta"], rel=0.01)


def test_a_plan_with_entries_of_its_own_is_a_catalogue_of_these(
    run: Runner, runs: Path, catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are the variable, and a model of the local cache without any."""
    runs.write_text(own_runs("H100-64GB", "me/M-8B"))
    expected = run("calibrate", runs, "--catalogue", catalogue, "-o", "yaml")
    assert expected.status == 0, expected.err
    plan = own_plan(config={"path": "config.json"})
    plan["spec"]["accelerators"] = [GPU]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert (
        run("calibrate", runs, "--catalogue", tmp_path / "plan.yaml", "-o", "yaml").out
        == expected.out
    )
    plan["spec"]["accelerators"] = [GPU | {"memoryGibibytes": "0"}]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    refused = run("calibrate", runs, "--catalogue", tmp_path / "plan.yaml")
    assert (refused.status, refused.out) == (2, "")
    assert f"{tmp_path / 'plan.yaml'}: spec.accelerators[0].memoryGibibytes" in refused.err

    monkeypatch.setenv("ARCHIPELAGO_CATALOGUE", str(tmp_path / "gpus.yaml"))
    (tmp_path / "gpus.yaml").write_text(yaml.safe_dump({"accelerators": [GPU]}))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "row 1, model: unknown model 'ME/M-8B'" in run("calibrate", runs).err
    repository = tmp_path / "hub" / "models--ME--M-8B"
    (repository / "snapshots" / "a").mkdir(parents=True)
    (repository / "snapshots" / "a" / "config.json").write_text(json.dumps(CONFIG))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a")
    cached = run("calibrate", runs, "-o", "yaml")
    assert cached.out == expected.out.replace("me/M-8B", "ME/M-8B")


def test_without_a_precision_weights_are_as_the_config_or_its_entry_says(
    run: Runner, runs: Path, tmp_path: Path
) -> None:
    """Only operands in which something is multiplied have values: FP8 or not."""
    runs.write_text(own_runs("H100", "me/M-8B"))
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    entry = {"name": "me/M-8B", "config": {"inline": CONFIG | fp8}}
    for row, options, quantised in (
        (entry, (), True),
        (entry | {"precision": "bf16"}, (), False),
        (entry | {"precision": "bf16"}, ("--precision", "fp8"), True),
    ):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"models": [row]}))
        result = run(
            "calibrate", runs, "--catalogue", tmp_path / "mine.yaml", "-o", "yaml", *options
        )
        (found,) = yaml.safe_load(result.out)["calibrations"]
        assert any(name.startswith("fp8") for name in found["values"]) == quantised


def test_an_entry_replaces_the_accelerator_of_its_name(
    run: Runner, runs: Path, tmp_path: Path
) -> None:
    """An H100 that has 2,000 GB/s reaches the usual share of them; of 3,350 it would be less."""
    rows = own_runs("H100", "me/M-8B", slower=1.0).replace("ME/M-8B", "Llama-3.1-8B")
    runs.write_text(rows)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"accelerators": [GPU | {"name": "H100"}]}))
    shares = []
    for options in ((), ("--catalogue", tmp_path / "mine.yaml")):
        (found,) = yaml.safe_load(run("calibrate", runs, "-o", "yaml", *options).out)[
            "calibrations"
        ]
        shares.append(found["values"]["bf16.mbu"])
    assert shares[1] == pytest.approx(FIT.bf16.mbu, rel=0.02)
    assert shares[0] < 0.8 * shares[1]


def test_an_unknown_name_is_refused_by_its_cell_with_the_remedy(
    run: Runner, runs: Path, catalogue: Path
) -> None:
    runs.write_text(own_runs("H100-64GB", "me/M-8B"))
    result = run("calibrate", runs)
    assert result.status == 2
    assert f"{runs}, row 1, accelerator: unknown accelerator 'H100-64GB'" in result.err
    assert "a GPU of your own is an entry of accelerators in --catalogue FILE" in result.err
    runs.write_text(own_runs("H100-64GB", "me/M-8B").replace("ME/M-8B,2", "me/M-9B,2"))
    result = run("calibrate", runs, "--catalogue", catalogue)
    assert result.status == 2
    assert f"{runs}, row 5, model: unknown model 'me/M-9B'" in result.err
    assert f"can be given by its config.json in --catalogue {catalogue}" in result.err
    wrong = {"name": "me/M-8B", "config": {"inline": CONFIG | {"hidden_size": "wide"}}}
    catalogue.write_text(yaml.safe_dump({"accelerators": [GPU], "models": [wrong]}))
    result = run("calibrate", runs, "--catalogue", catalogue)
    assert f"{runs}, row 1, model: config.json of me/M-8B: " in result.err
    assert "hidden_size" in result.err
