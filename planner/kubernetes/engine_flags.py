"""How an engine is told its parallelism: arguments of vLLM and SGLang, variables for any other.

Flags are those of vLLM 0.12 (``vllm serve --help``: nnodes, node-rank, master-addr, headless) and
SGLang 0.5 (``python -m sglang.launch_server --help``). In a LeaderWorkerSet its controller sets
``LWS_LEADER_ADDRESS`` and ``LWS_WORKER_INDEX`` (0.6 and later), and the kubelet puts them where
an argument says ``$(LWS_WORKER_INDEX)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.parallelism import Parallelism

LEADER, RANK = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
SGLANG_PORT = 5000
"""Where SGLang's nodes meet; any free port of the pod does."""


class Engine(StrEnum):
    """Whose arguments are written; ENV: none, the variables say everything."""

    VLLM = "vllm"
    SGLANG = "sglang"
    ENV = "env"


@dataclass(frozen=True)
class Start:
    """What an island starts as.

    ``max_batch``: sequences that the whole island runs at most. ``pods``: of one node each.
    """

    phase: Phase
    parallelism: Parallelism
    max_batch: int
    pods: int


def arguments(engine: Engine, start: Start, *, follows: bool = False) -> list[str]:
    """Arguments for every pod of the island; ``follows``: for those beside the first."""
    if engine is Engine.VLLM:
        return _vllm(start, follows=follows)
    return _sglang(start) if engine is Engine.SGLANG else []


def obstacle(engine: Engine, start: Start) -> str | None:
    """Why the engine cannot be started like that; None: it can."""
    split = start.parallelism
    if engine is Engine.SGLANG and start.pods > 1 and split.dp > 1 and split.ep == 1:
        return "SGLang spreads data-parallel copies over several nodes with expert parallelism only"
    return None


def _vllm(start: Start, *, follows: bool) -> list[str]:
    split = start.parallelism
    found = [f"--tensor-parallel-size={split.tp}"]
    found += [f"--pipeline-parallel-size={split.pp}"] if split.pp > 1 else []
    found += [f"--data-parallel-size={split.dp}"] if split.dp > 1 else []
    found += ["--enable-expert-parallel"] if split.ep > 1 else []
    if start.phase is not Phase.PREFILL:
        found.append(f"--max-num-seqs={max(start.max_batch // split.dp, 1)}")  # of one copy
    if start.pods > 1:
        found += [f"--nnodes={start.pods}", f"--node-rank={RANK}", f"--master-addr={LEADER}"]
    return [*found, "--headless"] if follows else found


def _sglang(start: Start) -> list[str]:
    """With expert parallelism SGLang counts all GPUs of a stage as tp, and dp as a part of them."""
    split = start.parallelism
    spread = split.ep > 1
    found = [f"--tp-size={split.stage_gpus if spread else split.tp}"]
    found += [f"--pp-size={split.pp}"] if split.pp > 1 else []
    found += [f"--dp-size={split.dp}"] if split.dp > 1 else []
    found += ["--enable-dp-attention"] if spread and split.dp > 1 else []
    found += [f"--ep-size={split.ep}"] if spread else []
    if start.phase is not Phase.MIXED:
        found.append(f"--disaggregation-mode={start.phase}")
    if start.phase is not Phase.PREFILL:
        most = start.max_batch if spread else max(start.max_batch // split.dp, 1)
        found.append(f"--max-running-requests={most}")
    if start.pods > 1:
        meet = f"--dist-init-addr={LEADER}:{SGLANG_PORT}"
        found += [f"--nnodes={start.pods}", f"--node-rank={RANK}", meet]
    return found
