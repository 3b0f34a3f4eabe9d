"""Write an engine's parallelism: arguments of vLLM and SGLang, variables for any other engine.

Flags are those of vLLM 0.12 (``vllm serve --help``: nnodes, node-rank, master-addr, headless) and
SGLang 0.5 (``python -m sglang.launch_server --help``). In a LeaderWorkerSet the controller sets
``LWS_LEADER_ADDRESS`` and ``LWS_WORKER_INDEX`` (0.6 and later), and the kubelet expands
``$(LWS_WORKER_INDEX)`` in arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

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

    ``max_batch``: most sequences of the whole island. ``pods``: one per node.
    """

    phase: Phase
    parallelism: Parallelism
    max_batch: int
    pods: int


def arguments(engine: Engine, start: Start, *, follows: bool = False) -> list[str]:
    """Return the arguments of a pod; ``follows``: of a worker, not the first pod."""
    if engine is Engine.VLLM:
        return _vllm(start, follows=follows)
    return _sglang(start) if engine is Engine.SGLANG else []


def obstacle(engine: Engine, start: Start) -> str | None:
    """Return why the engine cannot be started like that; None if it can."""
    split = start.parallelism
    if engine is Engine.SGLANG and start.pods > 1 and split.dp > 1 and split.ep == 1:
        return "SGLang spreads data-parallel copies over several nodes with expert parallelism only"
    return None


def _vllm(start: Start, *, follows: bool) -> list[str]:
    split = start.parallelism
    flags = [f"--tensor-parallel-size={split.tp}"]
    flags += [f"--pipeline-parallel-size={split.pp}"] if split.pp > 1 else []
    flags += [f"--data-parallel-size={split.dp}"] if split.dp > 1 else []
    flags += ["--enable-expert-parallel"] if split.ep > 1 else []
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
    if start.phase is not Phase.MIXED:
        flags.append(f"--disaggregation-mode={start.phase}")
    if start.phase is not Phase.PREFILL:
        most = start.max_batch if spread else max(start.max_batch // split.dp, 1)
        flags.append(f"--max-running-requests={most}")
    if start.pods > 1:
        address = f"--dist-init-addr={LEADER}:{SGLANG_PORT}"
        flags += [f"--nnodes={start.pods}", f"--node-rank={RANK}", address]
    return flags
