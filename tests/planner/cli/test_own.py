"""Models and accelerators of one's own on the command line: files, the model cache, a catalogue."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.perfmodel import LLAMA_1B
from tests.support.planner.command import Runner

WORKLOAD = {
    "logNormal": {"median": 500, "sigma": "1", "max": 4096},
    "outputTokens": {"mean": "100"},
}


def write(path: Path, model: dict[str, Any], accelerator: str = "H100") -> Path:
    """Write a ServingPlan with one model on eight GPUs."""
    pool = {"name": "gpus", "accelerator": accelerator, "count": 8, "gpusPerNode": 8}
    body = {
        "apiVersion": "archipelago.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "mine"},
        "spec": {"models": [{"name": "m", "workload": WORKLOAD, **model}], "pools": [pool]},
    }
    path.write_text(yaml.safe_dump(body))
    return path


def cached(folder: Path, owner: str, name: str, config: Mapping[str, Any]) -> Path:
    """Lay a config.json where huggingface_hub would."""
    repository = folder / f"models--{owner}--{name}"
    snapshot = repository / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0a1b")
    (snapshot / "config.json").write_text(json.dumps(config))
    return snapshot


def planned(run: Runner, *arguments: object) -> dict[str, Any]:
    """Plan into a file that needs nothing else, and return what it says."""
    result = run("plan", *arguments, "-o", "json", "-q")
    assert result.status == 0, result.err
    document: dict[str, Any] = json.loads(result.out)
    assert document["kind"] == "Plan"
    return document


def test_a_config_by_its_path_plans_as_the_same_config_inline(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))
    by_path = write(
        tmp_path / "a.yaml", {"architecture": "me/M", "config": {"path": "config.json"}}
    )
    inline = write(tmp_path / "b.yaml", {"architecture": "me/M", "config": {"inline": LLAMA_1B}})
    one, other = planned(run, "-f", by_path), planned(run, "-f", inline)
    assert one["hash"] == other["hash"]
    assert one["problem"]["models"][0]["config"]["inline"] == LLAMA_1B

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(one))
    (tmp_path / "config.json").unlink()  # the plan file has all of it
    assert run("verify", plan).status == 0
    assert "config.json in the ServingPlan" in run("explain", "-f", plan, "-q").out


def test_a_config_that_cannot_be_read_is_refused_by_its_place(run: Runner, tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", {"architecture": "me/M", "config": {"path": "config.json"}})
    assert "config.json" in run("plan", "-f", path).err
    (tmp_path / "config.json").write_text("[1]")
    assert "config.json" in run("plan", "-f", path).err
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_1B, "hidden_size": "wide"}))
    result = run("plan", "-f", path)
    assert result.status == 2
    assert "spec.models[0].config" in result.err
    assert "hidden_size" in result.err


def test_a_model_of_the_local_cache_is_found_by_its_identifier(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    path = write(tmp_path / "a.yaml", {"architecture": "me/M-1B"})
    refused = run("plan", "-f", path)
    assert refused.status == 2
    assert "unknown model 'me/M-1B'" in refused.err
    assert "config.json" in refused.err

    snapshot = cached(tmp_path / "hub", "me", "M-1B", LLAMA_1B)
    found = planned(run, "-f", path)
    assert found["problem"]["models"][0]["config"]["inline"] == LLAMA_1B
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (snapshot / "hf_quant_config.json").write_text(json.dumps(beside))
    quantised = planned(run, "-f", path)
    assert (
        quantised["problem"]["models"][0]["config"]["inline"]["quantization"]
        == beside["quantization"]
    )
    assert quantised["theta"] > found["theta"]


def test_a_catalogue_of_ones_own_gives_models_and_accelerators(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))
    catalogue = tmp_path / "catalogue.yaml"
    row = {"name": "H100-64GB", "like": "H100", "memoryGibibytes": "64"}
    model = {"name": "me/M", "config": {"path": "config.json"}}
    catalogue.write_text(yaml.safe_dump({"accelerators": [row], "models": [model]}))
    path = write(tmp_path / "a.yaml", {"architecture": "ME/m"}, "h100-64gb")
    assert run("plan", "-f", path).status == 2
    document = planned(run, "-f", path, "--catalogue", catalogue)
    assert document["problem"]["accelerators"][0]["name"] == "H100-64GB"
    plain = planned(run, "-f", write(tmp_path / "b.yaml", {"architecture": "Llama-3.2-1B"}))
    wide, narrow = document["thetaInterval"], plain["thetaInterval"]
    assert wide["high"] / wide["low"] > narrow["high"] / narrow["low"]

    of_the_operator = {"catalogue": {"accelerators": [row], "models": [model]}, "sources": []}
    catalogue.write_text(yaml.safe_dump(of_the_operator))
    assert planned(run, "-f", path, "--catalogue", catalogue)["hash"] == document["hash"]

    catalogue.write_text(yaml.safe_dump({"accelerators": [{"name": "X"}], "gpus": []}))
    refused = run("plan", "-f", path, "--catalogue", catalogue)
    assert refused.status == 2
    assert f"{catalogue}: gpus: unknown field" in refused.err
    catalogue.write_text(yaml.safe_dump({"accelerators": [{"name": "X"}]}))
    refused = run("plan", "-f", path, "--catalogue", catalogue)
    assert f"{catalogue}: accelerators[0].like: state memoryGibibytes" in refused.err


def test_how_a_config_is_read_is_shown(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    cached(tmp_path / "hub", "me", "M-1B", LLAMA_1B)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))
    named = ("catalogue", "models", tmp_path / "config.json", "me/M-1B", "Qwen/Qwen3-32B")
    file, found, known = json.loads(run(*named, "-o", "json").out)["models"]
    assert file == {**found, "name": str(tmp_path / "config.json")}
    assert (found["layers"], found["kvBytesPerToken"]) == (16, 16 * 2 * 8 * 64 * 2)
    assert known["name"] == "Qwen3-32B"
    refused = run("catalogue", "models", "me/Other")
    assert refused.status == 2
    assert "unknown model 'me/Other'" in refused.err
