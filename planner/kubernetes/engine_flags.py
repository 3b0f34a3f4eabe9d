"""Write an engine's parallelism and settings: arguments of vLLM and SGLang, variables for others.

Flags are those of vLLM 0.12 (``vllm serve --help``: nnodes, node-rank, master-addr, headless) and
SGLang 0.5 (``python -m sglang.launch_server --help``). In a LeaderWorkerSet the controller sets
``LWS_LEADER_ADDRESS`` and ``LWS_WORKER_INDEX`` (0.6 and later), and the kubelet expands
``$(LWS_WORKER_INDEX)`` in arguments.

Settings are written if the spec states them; else the user's template and the engine decide. Their
flags stand in vLLM's ``vllm/engine/arg_utils.py`` and ``vllm/config/speculative.py``, and in
SGLang's ``python/sglang/srt/server_args.py``; no engine was started with them here. vLLM joins the
parts ``--speculative-config.KEY`` of one JSON argument, so that the template says what drafts.
SGLang counts the token that is always checked among the draft tokens; a chain of drafts has one
branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ..problem import Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.roofline.parallelism import Parallelism


LEADER, RANK = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
SGLANG_PORT = 5000
"""Port on which SGLang's nodes connect; any free port of the pod."""


class Engine(StrEnum):
    """Engine whose arguments are written; ENV: none, only variables."""

    VLLM = "vllm"
    SGLANG = "sglang"
    ENV = "env"


@dataclass(frozen=True)
class Start:
    """Parameters of an island's engine.

    ``max_batch``: most sequences of the whole island. ``pods``: one per node. ``facts``: what it
    is started with (``started.py``).
    """

    phase: Phase
    parallelism: Parallelism
    max_batch: int
    pods: int
    facts: Mapping[str, str] = field(default_factory=dict)


def arguments(engine: Engine, start: Start, *, follows: bool = False) -> list[str]:
    """Return the arguments of a pod; ``follows``: of a worker, not the first pod."""
    if engine is Engine.VLLM:
        return _vllm(start, follows=follows)
    return _sglang(start) if engine is Engine.SGLANG else []


KV_DTYPES: Final = {
    Engine.VLLM: {"bf16": "auto", "fp8": "fp8"},  # vLLM takes bfloat16 of some models only
    Engine.SGLANG: {"bf16": "bf16", "fp8": "fp8_e4m3"},
}
"""How each engine calls the number formats of the KV cache."""
NO_CACHE: Final = {
    Engine.VLLM: "--no-enable-prefix-caching",
    Engine.SGLANG: "--disable-radix-cache",
}
"""Arguments without which a prefix cache is on; a plan with hits cannot have them."""
VLLM_DRAFT: Final = "--speculative-config"


def settings(engine: Engine, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the stated settings of an engine, by argument: those that a template may have, too."""
    if engine is Engine.ENV:
        return {}
    vllm, flags = engine is Engine.VLLM, {}
    if kv_dtype := facts.get("kvDtype"):
        flags["--kv-cache-dtype"] = KV_DTYPES[engine][kv_dtype]
    if share := facts.get("memoryShare"):
        flags["--gpu-memory-utilization" if vllm else "--mem-fraction-static"] = share
    if chunk := facts.get("chunkTokens"):
        flags["--max-num-batched-tokens" if vllm else "--chunked-prefill-size"] = chunk
    if drafted := int(facts.get("draftTokens", 0)):
        if vllm:
            flags[f"{VLLM_DRAFT}.num_speculative_tokens"] = str(drafted)
        else:
            flags["--speculative-num-steps"] = str(drafted)
            flags["--speculative-eagle-topk"] = "1"
            flags["--speculative-num-draft-tokens"] = str(drafted + 1)
    return flags


def switches(engine: Engine, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments without a value that the settings need, each with its opposite."""
    if engine is Engine.ENV or "prefixCaching" not in facts:
        return {}
    on = "--enable-prefix-caching" if engine is Engine.VLLM else ""
    return {on: NO_CACHE[engine]}


def variables(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the stated settings for any engine, by the end of their variable's name."""
    names = {
        "name": "ENGINE",
        "kvDtype": "KV_DTYPE",
        "memoryShare": "MEMORY_SHARE",
        "chunkTokens": "CHUNK_TOKENS",
        "prefixCaching": "PREFIX_CACHING",
        "draftTokens": "DRAFT_TOKENS",
        "twoBatchOverlap": "TWO_BATCH_OVERLAP",
    }
    return {names[name]: value for name, value in facts.items()}


def obstacle(engine: Engine, start: Start) -> str | None:
    """Return why the engine cannot be started like that; None if it can."""
    split = start.parallelism
    if engine is Engine.SGLANG and start.pods > 1 and split.dp > 1 and split.ep == 1:
        return "SGLang spreads data-parallel copies over several nodes with expert parallelism only"
    return None


def _overlaps(start: Start) -> bool:
    """Return whether the island runs two batches: only transfers between copies are hidden."""
    split = start.parallelism
    return "twoBatchOverlap" in start.facts and split.ep > 1 and split.dp > 1


def _vllm(start: Start, *, follows: bool) -> list[str]:
    split = start.parallelism
    flags = [f"--tensor-parallel-size={split.tp}"]
    flags += [f"--pipeline-parallel-size={split.pp}"] if split.pp > 1 else []
    flags += [f"--data-parallel-size={split.dp}"] if split.dp > 1 else []
    flags += ["--enable-expert-parallel"] if split.ep > 1 else []
    flags += ["--enable-dbo"] if _overlaps(start) else []
    if start.phase is not Phase.PREFILL:
        flags.append(f"--max-num-seqs={max(start.max_batch // split.dp, 1)}")  # of one copy
    if start.pods > 1:
        flags += [f"--nnodes={start.pods}", f"--node-rank={RANK}", f"--master-addr={LEADER}"]
    return [*flags, "--headless"] if follows else flags


def _sglang(start: Start) -> list[str]:
    """Return the arguments; with expert parallelism tp counts all GPUs of a stage."""
    split = start.parallelism
    spread = split.ep > 1
    flags = [f"--tp-size={split.stage_gpus if spread else split.tp}"]
    flags += [f"--pp-size={split.pp}"] if split.pp > 1 else []
    flags += [f"--dp-size={split.dp}"] if split.dp > 1 else []
    flags += ["--enable-dp-attention"] if spread and split.dp > 1 else []
    flags += [f"--ep-size={split.ep}"] if spread else []
    flags += ["--enable-two-batch-overlap"] if _overlaps(start) else []
    if start.phase is not Phase.MIXED:
        flags.append(f"--disaggregation-mode={start.phase}")
    if start.phase is not Phase.PREFILL:
        most = start.max_batch if spread else max(start.max_batch // split.dp, 1)
        flags.append(f"--max-running-requests={most}")
    if start.pods > 1:
        address = f"--dist-init-addr={LEADER}:{SGLANG_PORT}"
        flags += [f"--nnodes={start.pods}", f"--node-rank={RANK}", address]
    return flags
