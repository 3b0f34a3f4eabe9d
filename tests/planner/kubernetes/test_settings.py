"""Settings of engines in pods: what the plan says is written once, and nothing contradicts it."""

from __future__ import annotations

from typing import Any

import pytest

from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.kubernetes.engine_flags import Engine, settings, switches, variables
from archipelago.planner.kubernetes.labels import role_of
from archipelago.planner.servingplan.engine import Engine as Stated
from archipelago.planner.started import FACTS, started_facts, started_text
from archipelago.planner.table.validate import validate_content
from tests.planner.kubernetes.test_workloads import engine, island, one, options, spec

EVERY = {
    "kvDtype": "fp8",
    "memoryShare": "0.85",
    "chunkTokens": "4096",
    "prefixCaching": "on",
    "draftTokens": "3",
}
STARTED = started_text(EVERY)

VLLM = {
    "--kv-cache-dtype", "--gpu-memory-utilization", "--max-num-batched-tokens",
    "--enable-prefix-caching", "--no-enable-prefix-caching", "--speculative-config",
}  # fmt: skip
"""Names in vLLM 0.12 and main: config/cache.py (cache_dtype, gpu_memory_utilization,
enable_prefix_caching), scheduler.py (max_num_batched_tokens) and speculative.py, as arg_utils.py
turns them into arguments."""
SGLANG = {
    "--kv-cache-dtype", "--mem-fraction-static", "--chunked-prefill-size", "--disable-radix-cache",
    "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens",
}  # fmt: skip
"""Names in SGLang 0.5 and main: fields of ServerArgs in srt/server_args.py."""


def pods(args: list[str] | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """The container of an island's engine, whose template has these arguments."""
    container = {"name": "engine", "image": "x", **({"args": args} if args is not None else {})}
    template = {"spec": {"containers": [container | more.pop("container", {})]}}
    table = island("llama-0", "h100", 4, "gpu-7", started=more.pop("started", STARTED))
    return engine(one(table, of=more.pop("of", spec()), template=template)["spec"]["template"])


@pytest.mark.parametrize("kind", [Engine.VLLM, Engine.SGLANG])
def test_names_are_those_of_the_engines(kind: Engine) -> None:
    known = VLLM if kind is Engine.VLLM else SGLANG
    opposites = {*filter(None, switches(kind, EVERY)), *switches(kind, EVERY).values()}
    written = {name.partition(".")[0] for name in settings(kind, EVERY)} | opposites
    assert written == known


def test_a_plan_is_written_as_arguments_of_vllm() -> None:
    assert pods()["args"] == [
        "--tensor-parallel-size=4",
        "--max-num-seqs=64",
        "--kv-cache-dtype=fp8",
        "--gpu-memory-utilization=0.85",
        "--max-num-batched-tokens=4096",
        "--speculative-config.num_speculative_tokens=3",
        "--enable-prefix-caching",
    ]


def test_a_plan_is_written_as_arguments_of_sglang() -> None:
    """Three drafted tokens and the one that is always checked: four draft tokens."""
    assert pods(of=spec(metrics="sglang"))["args"][2:] == [
        "--max-running-requests=64",
        "--kv-cache-dtype=fp8_e4m3",
        "--mem-fraction-static=0.85",
        "--chunked-prefill-size=4096",
        "--speculative-num-steps=3",
        "--speculative-eagle-topk=1",
        "--speculative-num-draft-tokens=4",
    ]


def test_any_other_engine_gets_variables() -> None:
    container = pods(of=spec(metrics="dynamo"))
    assert not container.get("args")
    given = {item["name"]: item["value"] for item in container["env"]}
    assert {f"ARCHIPELAGO_{name}": value for name, value in variables(EVERY).items()}.items() <= (
        given.items()
    )


def test_what_is_not_stated_is_the_templates_to_say() -> None:
    args = ["--gpu-memory-utilization=0.95", "--no-enable-prefix-caching"]
    assert pods(args, started="")["args"] == [
        *args,
        "--tensor-parallel-size=4",
        "--max-num-seqs=64",
    ]


def test_the_name_of_the_engine_decides_about_arguments() -> None:
    assert "--tp-size=4" in pods(of=spec(metrics="dynamo"), started="name=sglang")["args"]
    assert not pods(started="name=tensorrt-llm").get("args")


SAME = [
    "--kv-cache-dtype", "fp8", "--gpu_memory_utilization=.850", "--max-num-batched-tokens=4096",
    '--speculative-config={"method": "eagle3", "model": "x", "num_speculative_tokens": 3}',
    "--enable-prefix-caching",
]  # fmt: skip


def test_what_the_template_says_alike_is_not_written_again() -> None:
    ours = ["--tensor-parallel-size=4", "--max-num-seqs=64"]
    assert pods(SAME)["args"] == [*SAME, *ours]
    command = {"command": ["sh", "-c", f"vllm serve m {' '.join(SAME[:4])} # {SAME[4]}"]}
    found = pods(container=command)["args"]
    assert found == [
        *ours, "--speculative-config.num_speculative_tokens=3", "--enable-prefix-caching",
    ]  # fmt: skip


def test_a_template_may_say_what_drafts() -> None:
    """The engine makes one JSON argument of the parts of a dotted name."""
    args = ["--speculative-config.method=eagle3", "--speculative-config.model=x"]
    assert "--speculative-config.num_speculative_tokens=3" in pods(args)["args"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--kv-cache-dtype=auto"], "--kv-cache-dtype is auto, the plan is made with fp8"),
        (["--kv_cache_dtype", "auto"], "--kv-cache-dtype is auto"),
        (["--gpu-memory-utilization", "0.95"], "is 0.95, the plan is made with 0.85"),
        (["--max-num-batched-tokens"], "is not there, the plan is made with 4096"),
        (["--no-enable-prefix-caching"], "--no-enable-prefix-caching contradicts the plan"),
        (['--speculative-config={"num_speculative_tokens": 5}'], "is 5, the plan is made with 3"),
        (["--speculative-config={}"], "its num_speculative_tokens. is not there"),
        (["--speculative-config=3"], "its num_speculative_tokens. is not there"),
    ],
)
def test_a_template_that_contradicts_the_plan_is_refused(args: list[str], said: str) -> None:
    with pytest.raises(PlanFileError, match=said):
        pods(args)
    with pytest.raises(PlanFileError, match=said):
        pods(container={"command": ["vllm", "serve", *args]})


def test_other_settings_are_other_pods() -> None:
    roles = [
        role_of(island("llama-0", "h100", 4, "gpu-7", **more), "llama")
        for more in ({}, {"started": STARTED}, {"started": "kvDtype=fp8"})
    ]
    assert len({*roles}) == 3


def test_facts_of_a_table_are_read_or_refused() -> None:
    assert started_facts(STARTED) == EVERY
    assert started_facts("") == {}
    for wrong in (
        "kvDtype=int4", "kvDtype", "chunkTokens=1;chunkTokens=1", "a=b", "kvDtype=fp8;",
        "kvDtype=fp8;chunkTokens=1", "memoryShare=0.9\n", "draftTokens=-1",
    ):  # fmt: skip
        with pytest.raises(PlanFileError, match="started: "):
            started_facts(wrong)
        content = {"groups": [], "islands": [island("l", "h100", 4, started=wrong)], "models": []}
        header = {"lengthUnit": "tokens", "unknownLength": "Longest", "affinityKey": None}
        assert any("started: " in line for line in validate_content({**header, **content}))
        with pytest.raises(InputError):
            one(
                island("llama-0", "h100", 4, "gpu-7", started=wrong),
                template=options().templates[""],
            )


def test_every_fact_of_a_spec_is_one_of_a_table() -> None:
    engine = Stated.model_validate(
        {
            "name": "sglang", "metrics": "sglang", "version": "0.5", "kvDtype": "bf16",
            "memoryShare": "0.000001", "chunkTokens": 16_777_216, "prefixHitShare": "0.25",
            "speculation": {"draftTokens": 64, "acceptance": "0.5"}, "twoBatchOverlap": True,
        }
    )  # fmt: skip
    assert started_facts(engine.started).keys() == FACTS.keys()
    assert Stated.model_validate({"version": None, "prefixHitShare": "0"}).started == ""
