"""`archipelago calibrate`: a file of runs in, values and intervals out, and a calibration file."""

from pathlib import Path

import pytest
import yaml

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
