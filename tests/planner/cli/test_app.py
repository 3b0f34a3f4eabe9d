"""The command line: answers, exit codes, errors of one line each, and a quick ``--help``."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from archipelago.perfmodel.workload.lengths import Range
from archipelago.planner.cli import app, show_plan, terminal
from archipelago.planner.documents import content_hash, safe
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.plan import Pair, Route
from tests.support.planner.command import Runner
from tests.support.planner.handmade import LONG, PLAN, PLANNED, SHORT, problem, resource

ROOT = Path(__file__).parents[3]
MINIMAL = ROOT / "examples" / "02-minimal.yaml"
TRACES = ROOT.parent / "shared" / "data" / "traces"
COMMANDS = (
    (),
    ("plan",),
    ("verify",),
    ("diff",),
    ("explain",),
    ("plot",),
    ("manifests",),
    ("simulate",),
    ("pools",),
    ("templates",),
    ("workload",),
    ("workload", "from-trace"),
    ("workload", "show"),
    ("catalogue",),
    ("catalogue", "accelerators"),
    ("catalogue", "models"),
)


def small(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """The minimal example with changes to its spec."""
    body: dict[str, Any] = yaml.safe_load(MINIMAL.read_text())
    body["spec"].update(changes)
    return body


@pytest.fixture(scope="module")
def plan_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    done = CliRunner().invoke(app.cli, ["plan", "-q", "-f", str(MINIMAL), "-o", "json"])
    assert (done.exit_code, done.stderr) == (0, "")
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_screen_and_says_the_exit_codes(run: Runner, command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.status == 0
    assert len(result.out.splitlines()) < 60
    assert "1  the answer is no" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize(("old", "new"), app.RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one(run: Runner, old: str, new: str) -> None:
    result = run(old, "plan.json")
    assert (result.status, result.out) == (2, "")
    assert f"archipelago {new}" in result.err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['archipelago', '--help']\n"
        "from archipelago.planner.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    heavy = {"torch", "ax", "kopf", "kubernetes", "numpy", "scipy", "pydantic", "rich", "yaml",
             "highspy", "matplotlib", "asyncio"}  # fmt: skip
    assert "click" in loaded
    assert heavy & loaded == set()


def test_help_answers_in_a_third_of_a_second(
    record_property: Callable[[str, object], None],
) -> None:
    """The best of seven, each beside bare click: a machine under load slows down both."""

    def seconds(*command: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        return time.perf_counter() - started

    pairs = [
        (seconds("-m", "archipelago.planner", "--help"), seconds("-c", "import click"))
        for _ in range(7)
    ]
    took, bare = (min(times) for times in zip(*pairs, strict=True))
    record_property("seconds", took)
    assert took < max(0.3, 3 * bare)


def test_says_its_version(run: Runner) -> None:
    assert re.fullmatch(r"archipelago \d+\.\d+\.\d+\n", run("--version").out)


def test_plan_for_people(run: Runner) -> None:
    result = run("plan", "-f", MINIMAL)
    assert result.status == 0
    for part in (r"throughput +[\d,.]+ req/s", r"at most [\d,.]+ req/s is possible, gap 0\.\d+%",
                 r"H100 +8 of 8", r"routes of llama", r"templates? left out"):  # fmt: skip
        assert re.search(part, result.out), part
    assert max(map(len, result.out.splitlines())) <= 120


def test_plan_for_programs_verifies(run: Runner, plan_json: Path, tmp_path: Path) -> None:
    document = json.loads(plan_json.read_text())
    assert document["gap"] <= 1e-3
    result = run("verify", plan_json)
    assert result.status == 0
    assert len(re.findall(r"^ok ", result.out, re.MULTILINE)) == 15
    assert re.search(
        r"prices prove a gap of \d+\.\d{3}%; that it is 0\.\d{3}% is the solver", result.out
    )
    assert "the plan holds" in result.out
    as_yaml = tmp_path / "plan.yaml"
    as_yaml.write_text(run("plan", "-q", "-f", MINIMAL, "-o", "yaml").out)
    assert yaml.safe_load(as_yaml.read_text())["hash"] == document["hash"]
    assert run("verify", as_yaml).status == 0


def test_verify_says_what_is_taken_on_trust(run: Runner, plan_json: Path, tmp_path: Path) -> None:
    """Without its prices the whole gap is the solver's word, and the plan holds as well."""
    document = json.loads(plan_json.read_text())
    del document["pricedBound"]
    document["hash"] = content_hash(document)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document))
    result = run("verify", bare)
    assert result.status == 0
    assert re.search(r"no prices prove a bound; the gap of 0\.\d{3}% is the solver", result.out)
    assert json.loads(run("verify", bare, "-o", "json").out)["proof"]["byPrices"] is None


def test_verify_says_what_is_wrong(run: Runner, plan_json: Path, tmp_path: Path) -> None:
    document = json.loads(plan_json.read_text())
    document["theta"] *= 1.01
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    result = run("verify", broken)
    assert result.status == 1
    assert re.search(r"^fail promise against evaluation$", result.out, re.MULTILINE)
    assert re.search(r"throughput: [\d.]+ req/s stated, theta gives", result.out)
    listed = json.loads(run("verify", broken, "-o", "json").out)
    assert listed["ok"] is False
    assert {c["subject"]: c["ok"] for c in listed["checks"]}["inventory and budget"] is True
    assert listed["proof"]["byPrices"] > listed["proof"]["gap"] == document["gap"]


@pytest.mark.slow
def test_same_file_from_standard_input_gives_the_same_plan(run: Runner, plan_json: Path) -> None:
    """A process of its own has another order of sets."""
    done = subprocess.run(
        [sys.executable, "-m", "archipelago.planner", "plan", "-f", "-", "-o", "json"],
        input=MINIMAL.read_text(), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert json.loads(done.stdout)["hash"] == json.loads(plan_json.read_text())["hash"]
    assert run("verify", "-", stdin=done.stdout).status == 0


def test_infeasible_is_an_answer(run: Runner, tmp_path: Path) -> None:
    body = small()
    body["spec"]["models"][0]["slo"] = {"ttftMilliseconds": 1}
    path = tmp_path / "hopeless.yaml"
    path.write_text(yaml.safe_dump(body))
    result = run("plan", "-f", path)
    assert result.status == 1
    assert "no plan" in result.out
    assert "would make a plan possible" in result.out
    document = json.loads(run("plan", "-f", path, "-o", "json").out)
    assert document["kind"] == "Infeasible"
    assert document["relaxations"]
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(document))
    refused = run("verify", answer)
    assert (refused.status, "no plan to verify" in refused.err) == (2, True)


def test_every_mistake_gets_one_line_with_its_place(run: Runner, tmp_path: Path) -> None:
    body = small(bogus=1)
    body["spec"]["pools"][0]["count"] = -1
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(body))
    result = run("plan", "-f", tmp_path / "bad.yaml")
    assert result.status == 2
    lines = result.err.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    assert any("spec.bogus" in line for line in lines)
    assert any("spec.pools[0].count" in line for line in lines)
    assert result.out == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("plan",), "Missing option '-f'"),
        (("plan", "-f", "gone.yaml"), "gone.yaml: No such file or directory"),
        (("plan", "-f", "."), "Is a directory"),
        (("verify", "gone.json"), "gone.json: No such file"),
        (("verify", str(MINIMAL)), "kind: 'ServingPlan': write 'Plan'"),
        (("plan", "-f", str(MINIMAL), "-o", "xml"), "'xml' is not one of"),
        (("plan", "-f", str(MINIMAL), "--strategy", "luck"), "'luck' is unknown; choose one of"),
        (("plan", "-f", str(MINIMAL), "--time-limit", "0"), "0 is not in the range 1<=x<=900"),
        (("plan", "-f", str(MINIMAL), "--plot", "x.pdf"), "must end in .png or .svg"),
        (("plan", "-f", str(MINIMAL), "--plot", "/no/x.png"), "its folder does not exist"),
        (("workload", "from-trace", "gone.csv"), "gone.csv"),
        (("workload", "show", str(ROOT / "pyproject.toml")), "pyproject.toml: line 2: not YAML"),
        (("bogus",), "No such command 'bogus'"),
    ],
)
def test_bad_usage_exits_with_2_and_says_what_to_do(
    run: Runner, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(*arguments)
    assert result.status == 2
    assert expected in result.err
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


def test_junk_is_refused_by_name(run: Runner, tmp_path: Path) -> None:
    junk = tmp_path / "junk.json"
    junk.write_bytes(b"\xff\xfe\x00")
    assert "byte 0 is not UTF-8" in run("verify", junk).err
    junk.write_text('{"kind": "Plan", "apiVersion": "archipelago.dev/v1alpha1"}')
    err = run("verify", junk).err
    assert f"{junk}: name: required" in err
    assert "and 15 more errors" in err


def test_overrides_become_part_of_the_problem(run: Runner) -> None:
    result = run("plan", "-q", "-f", MINIMAL, "--time-limit", 9, "-o", "json")
    planner = json.loads(result.out)["problem"]["planner"]
    assert (planner["strategy"], planner["timeLimitSeconds"]) == ("exact", 9)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain name-1, 64 GPUs, µs", "plain name-1, 64 GPUs, µs"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth\u2028line\x85", "zero\\u200bwidth\\u2028line\\x85"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_written_out(text: str, escaped: str) -> None:
    assert safe(text) == escaped


EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e"


def test_no_file_can_send_control_characters_to_the_terminal(
    run: Runner, plan_json: Path, tmp_path: Path
) -> None:
    """Names in plans, in specs and of files reach the terminal escaped."""
    document = json.loads(plan_json.read_text())
    document["islands"][0]["nodes"] = [EVIL]
    document["groups"][0]["binding"] = EVIL
    evil_file = tmp_path / f"evil{EVIL}.json"
    evil_file.write_text(json.dumps(document))
    named = tmp_path / "named.json"
    named.write_text(json.dumps({**document, "name": EVIL}))
    outputs = [
        run("verify", evil_file),
        run("verify", named),
        run("plan", "-f", evil_file),
        run("plan", "-f", f"gone{EVIL}"),
        run(EVIL),
        run("workload", "show", evil_file),
        run("workload", "from-trace", evil_file),
    ]
    assert [result.status for result in outputs] == [1, 2, 2, 2, 2, 2, 2]
    for result in outputs:
        text = (result.out + result.err).replace("\n", "")
        assert [char for char in text if safe(char) != char] == []


def test_markup_in_names_is_not_interpreted() -> None:
    out = Console(width=100, force_terminal=False, markup=False, highlight=False)
    with out.capture() as capture:
        out.print(terminal.grid("NAME"))
        out.print(safe("[bold red]x[/]"))
    assert "[bold red]x[/]" in capture.get()


def test_templates_lists_rates_and_every_exclusion(run: Runner) -> None:
    catalogue = json.loads(run("templates", "-f", MINIMAL, "-o", "json").out)
    first = catalogue["templates"][0]
    assert first["requestsPerSecond"] > 0
    assert {"phase", "gpus", "parallelism", "maxBatch", "share"} <= set(first)
    text = run("templates", "-f", MINIMAL).out
    for item in catalogue["exclusions"]:
        assert f"{item['template']}: {item['reason']}" in text


def test_catalogue_lists_names_that_a_plan_can_use(run: Runner) -> None:
    models = {
        row["name"]: row
        for row in json.loads(run("catalogue", "models", "-o", "json").out)["models"]
    }
    assert len(models) >= 100
    assert round(models["DeepSeek-V3"]["billionParameters"]) == 671
    assert models["DeepSeek-V3"]["date"] == "2024-12-26"
    assert models["DeepSeek-V3"]["confidence"] == "high"
    assert "config.json" in models["DeepSeek-V3"]["source"]
    assert "nvidia/Llama-3.1-70B-Instruct-FP8" in models["Llama-3.1-70B"]["names"]
    assert "H200" in run("catalogue", "accelerators").out


def _spec(tmp_path: Path, accelerator: str, precision: str) -> Path:
    """The minimal spec on other hardware and in another precision."""
    text = MINIMAL.read_text().replace("accelerator: H100", f"accelerator: {accelerator}")
    named = "architecture: Llama-3.1-8B"
    path = tmp_path / "spec.yaml"
    path.write_text(text.replace(named, f"{named}\n    precision: {precision}"))
    return path


@pytest.mark.parametrize(
    ("accelerator", "precision", "said"),
    [
        ("H100", "fp4", "fp4 weights are unpacked and multiplied in bf16: H100 has no FP4 units"),
        ("V100", "bf16", "bf16 is served as fp16: V100-32GB has no BF16 units"),
    ],
)
def test_a_plan_says_what_a_precision_becomes_on_the_hardware(
    run: Runner, tmp_path: Path, accelerator: str, precision: str, said: str
) -> None:
    path = _spec(tmp_path, accelerator, precision)
    assert said in run("plan", "-q", "-f", path).out
    assert said in run("explain", "-f", path).out


def test_what_no_engine_serves_is_no_plan_and_says_whose_word_that_is(
    run: Runner, tmp_path: Path
) -> None:
    found = run("plan", "-q", "-f", _spec(tmp_path, "V100", "fp4"))
    assert "no engine serves fp4 weights on V100-32GB (vLLM" in found.out + found.err
    assert found.status == 1


def test_the_catalogue_says_how_sure_a_row_is_and_fits_100_columns(run: Runner) -> None:
    lines = run("catalogue", "accelerators").out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("L2 ") and line.rstrip().endswith("low") for line in lines)
    rows = json.loads(run("catalogue", "accelerators", "-o", "json").out)["accelerators"]
    assert all(row["source"] and row["date"] for row in rows)
    (h100,) = (row for row in rows if row["name"] == "H100")
    assert "3g.40gb" in h100["slices"]


def _csv(path: Path) -> Path:
    rows = [f"{100 + 10 * i},{20 + i % 3}" for i in range(200)]
    path.write_text("\n".join(["input_tokens,output_tokens", *rows]) + "\n")
    return path


def test_workload_from_trace_is_what_a_plan_takes(run: Runner, tmp_path: Path) -> None:
    """200 requests of 100 to 2090 tokens in 20 bins of 10: the means are exact."""
    arguments = ("--bins", 20, "--ranges", 4, "--spacing", "Width")
    result = run("workload", "from-trace", _csv(tmp_path / "t.csv"), *arguments)
    assert result.status == 0
    assert re.search(r"^200 requests in 20 bins; error of the moments: E\[l\] [+-]0\.000%",
                     result.err, re.MULTILINE)  # fmt: skip
    workload = yaml.safe_load(result.out)["workload"]
    assert workload["ranges"] == {"count": 4, "spacing": "Width"}
    assert workload["histogram"]["bins"][0] == {
        "min": 100, "max": 200, "weight": 50_000, "inputMean": "145", "outputMean": "20.9",
        "outputMeanSquare": "437.5",
    }  # fmt: skip
    body = small()
    body["spec"]["models"][0]["workload"] = workload
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(body))
    assert run("plan", "-f", path).status == 0
    alone = tmp_path / "workload.yaml"
    alone.write_text(result.out)
    for source in (path, alone):
        shown = json.loads(run("workload", "show", source, "-o", "json").out)["models"][0]
        assert sum(item["share"] for item in shown["ranges"]) == pytest.approx(1.0)
        assert len(shown["ranges"]) == 4
    assert "OUTPUT TOKENS" in run("workload", "show", alone).out


@pytest.mark.parametrize("name", ["azure_2023/AzureLLMInferenceTrace_code.csv"])
def test_workload_from_the_azure_trace(run: Runner, name: str) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    result = run("workload", "from-trace", path)
    assert result.err.startswith("8,819 requests in 126 bins")
    bins = yaml.safe_load(result.out)["workload"]["histogram"]["bins"]
    assert sum(item["weight"] for item in bins) == 1_000_000


def test_progress_is_silent_below_a_second_and_speaks_after(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal.progress() as report:
        report("thinking", 0.5)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(terminal, "PATIENCE", 0.05)
    with terminal.progress() as report:
        report("thinking\x1b", 0.5)
        time.sleep(0.3)
    assert re.fullmatch(r"0 s: thinking\\x1b 50%\n", capsys.readouterr().err)
    with terminal.progress(quiet=True) as report:
        report("thinking", 0.5)
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_closed_pipe_is_no_error() -> None:
    """The reader goes away before anything is written, as ``head`` does."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "archipelago.planner", "catalogue", "models", "-o", "json"],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Neither the working folder nor HOME need be writable."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    done = subprocess.run(
        [sys.executable, "-m", "archipelago.planner", "plan", "-q", "-f", str(MINIMAL)],
        cwd=locked, env={**os.environ, "HOME": str(locked)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert list(locked.iterdir()) == []


def test_neighbours_with_the_same_groups_are_one_line() -> None:
    """Two large ranges to d, four rare ones that alternate, one large one to e."""
    to_d, to_e = (Pair("p", "d", 1_000_000),), (Pair("p", "e", 1_000_000),)
    rare = [Route("m", Range(200 + i, 201 + i), 0.005, (to_e, to_d)[i % 2]) for i in range(4)]
    large = [Route("m", SHORT, 0.4, to_d), Route("m", LONG, 0.3, to_d)]
    blocks = show_plan.condensed([*large, *rare, Route("m", Range(204, 300), 0.28, to_e)])
    spans = [(block[0].range.min, block[-1].range.max) for block in blocks]
    assert spans == [(0, 200), (200, 204), (204, 300)]


def test_table_of_a_plan_made_on_paper(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan.show_plan(terminal.console(), problem(), PLAN, plan_document(resource(), PLANNED))
    out = capsys.readouterr().out
    assert "throughput  8.00 req/s" in out
    assert "at most 8.00 req/s is possible, gap 0.050%" in out
    assert "2 prefill of 4 GPUs, 1 decode of 8 GPUs" in out
    assert re.search(r"0 - 99 +50\.0% +short +main 75%, spare 25%", out)
    assert "1 template left out: 1 too small for the weights" in out


def test_what_runs_is_kept_and_what_changes_is_said(run: Runner, tmp_path: Path) -> None:
    """The same problem again keeps every island where it is; one GPU fewer cannot."""
    path = tmp_path / "running.json"
    path.write_text(run("plan", "-f", MINIMAL, "-o", "json", "-q").out)
    islands = [island["name"] for island in json.loads(path.read_text())["islands"]]

    again = run("plan", "-f", MINIMAL, "-q", "--running", path)
    assert f"  kept     {len(islands)} islands\n" in again.out
    assert "  restart  0 GPUs" in again.out

    fewer = run(
        "plan", "-f", MINIMAL, "-q", "-o", "json", "--running", path, "--what-if", "pool=h100:7"
    )
    changes = json.loads(fewer.out)["plan"]["changes"]
    assert fewer.status == 0
    assert changes["stopped"]
    assert {*changes["kept"], *changes["stopped"], *changes["moved"]} == {*islands}


def test_what_runs_must_be_a_plan(run: Runner) -> None:
    result = run("plan", "-f", MINIMAL, "--running", ROOT / "README.md")
    assert result.status == 2
    assert "README.md" in result.err


SCHEDULE = {"schedule": [{"start": "0 8 * * 1-5", "durationSeconds": 36000, "factor": "3"}]}


@pytest.mark.parametrize(
    ("options", "rate", "said"),
    [
        ((), "12", "these rates are 3 times the stated ones, the largest factor; --at TIME plans"),
        (("--at", "2026-11-23T09:00"), "12", "these rates are 3 times the stated ones"),
        (("--at", "2026-11-23T09:00+02:00"), "4", "these rates are 1 times the stated ones"),
    ],
)
def test_rates_of_a_schedule_are_the_largest_or_those_at_a_time(
    run: Runner, tmp_path: Path, options: tuple[str, ...], rate: str, said: str
) -> None:
    """What they are is said, and the plan file carries them, so it verifies alone."""
    body = small(traffic=SCHEDULE)
    body["spec"]["models"][0]["requestsPerSecond"] = "4"
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(body))
    done = run("plan", "-q", "-f", file, "-o", "json", *options)
    document = json.loads(done.out)

    assert done.err.startswith(f"spec.traffic.schedule: {said}")
    assert document["problem"]["models"][0]["requestsPerSecond"] == rate
    assert "traffic" not in document["problem"]
    made = tmp_path / "plan.json"
    made.write_text(done.out)
    assert run("verify", made).status == 0
    assert "3 times" in run("explain", "-q", "-f", file).err


def test_a_time_needs_a_schedule_and_has_to_be_one(run: Runner, tmp_path: Path) -> None:
    body = small(traffic=SCHEDULE)
    body["spec"]["models"][0]["requestsPerSecond"] = "4"
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(body))
    none = run("plan", "-q", "-f", MINIMAL, "--at", "2026-11-23T09:00")
    wrong = run("plan", "-q", "-f", file, "--at", "nine")

    assert (none.status, wrong.status) == (2, 2)
    assert "the ServingPlan has no spec.traffic.schedule; leave --at out" in none.err
    assert "'nine' is no time: write 2026-11-24T09:00" in wrong.err
