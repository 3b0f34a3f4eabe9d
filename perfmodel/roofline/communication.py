"""Communication by the alpha-beta model: latency plus bytes over the usable share of the link.

Constants are data (``data/links.yaml``), measured on custom all-reduce, DeepEP and send/recv.
Every function is vectorised over the bytes or tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..catalogue import read
from ..catalogue.accelerators import Accelerator
from ..model import FloatArray

_NODE = 8
"""GPUs of a node; a larger domain is a rack of them (NVL72)."""


@dataclass(frozen=True)
class Network:
    """The links of one island: ``local`` GPUs reach each other without leaving the domain.

    What an engine adds to the kernels alone: ``wait`` at an all-reduce for each doubling of ranks
    and ``dispatch_wait`` at either way of an all-to-all [s], and the share ``link`` of the usable
    bandwidth.
    """

    accelerator: Accelerator
    local: int
    wait: float = 0.0
    dispatch_wait: float = 0.0
    link: float = 1.0

    def all_reduce(self, size: FloatArray, gpus: int) -> FloatArray:
        """Return seconds [s] to sum ``size`` [B] over GPUs: alpha + 2 (n - 1) / n size / beta.

        A ring: each GPU sends 2 (n - 1) / n of the message. alpha is the latency measured for that
        many GPUs and log2(n) waits, because the slowest of more ranks is later; beta the usable
        share of the link [B/s]. Beyond the domain the NIC is the link, and each doubling of domains
        adds two network latencies. One GPU takes 0 s. Valid without overlap with computation.

        Source: docs/explanation/performance-model.md#times-the-roofline; measurements in
        ``data/links.yaml`` (aiconfigurator @ 095f58a).

        Args:
            size: Message of one GPU [B], any shape.
            gpus: n, GPUs that sum [GPUs], at least 1.
        """
        if gpus == 1:
            return 0.0 * size
        volume = 2.0 * (gpus - 1) / gpus * size
        rows: dict[str, dict[str, Any]] = _links()["all_reduce"]
        row = rows.get(self.accelerator.family, rows["other"])
        if self.accelerator.scale_up is None:
            row = rows["pcie"]
        # The latency at the smallest measured size that covers the GPUs, else at the last.
        sizes, inside = sorted(row["latency"]), min(gpus, self.local)
        covering = next((size for size in sizes if size >= inside), sizes[-1])
        latency = self.wait * math.log2(gpus) + row["latency"][covering]
        if gpus <= self.local:
            return _line(
                latency, volume, self.link * row["share"] * self.accelerator.local_bandwidth
            )
        remote = _links()["scale_out"]
        steps = (-(-gpus // self.local) - 1).bit_length()
        bandwidth = self.link * remote["share"] * self.accelerator.scale_out_bandwidth
        return _line(latency + 2 * steps * remote["latency"], volume, bandwidth)

    def all_to_all(self, local: FloatArray, remote: FloatArray, mode: str) -> FloatArray:
        """Return seconds [s] of one way: wait + latency + max(local / b_local, remote / b_remote).

        The two links work side by side, so the slower one counts. Valid without overlap with
        computation.

        Source: docs/explanation/performance-model.md#times-the-roofline; DeepEP in
        ``data/links.yaml`` (aiconfigurator @ 095f58a).

        Args:
            local: Bytes that each GPU sends inside its domain [B], any shape.
            remote: Bytes that each GPU sends out of it [B], same shape.
            mode: ``low_latency`` (decode) or ``normal`` (prefill), DeepEP's two kinds of kernels.
        """
        rows = _links()["all_to_all"]
        family = self.accelerator.family
        rack = f"{family} rack" if self.local > _NODE else family
        row = rows.get(rack) or rows.get(family) or rows["other"]
        inside = local / (row["local_share"][mode] * self.accelerator.local_bandwidth)
        outside = remote / (row["remote_share"] * self.accelerator.scale_out_bandwidth)
        latency = row["remote_latency"] if np.any(remote > 0) else row["local_latency"]
        moving = np.maximum(inside, outside) / self.link
        seconds: FloatArray = self.dispatch_wait + latency + moving
        return seconds

    def send(self, size: FloatArray, span: int) -> FloatArray:
        """Return seconds [s] to send ``size`` [B] to the next stage: alpha + size / beta.

        The local link joins stages if ``span`` [GPUs], the GPUs of the island, fits into the
        domain.

        Source: docs/explanation/performance-model.md#times-the-roofline; microsoft/vidur @ 7d47513
        in ``data/links.yaml``.
        """
        row = _links()["send"]
        if span <= self.local:
            bandwidth = row["local_share"] * self.accelerator.local_bandwidth
        else:
            bandwidth = row["remote_share"] * self.accelerator.scale_out_bandwidth
        return _line(row["latency"], size, bandwidth)

    def send_out(self, size: FloatArray, receiver: Network) -> FloatArray:
        """Return seconds [s] to send ``size`` [B] to a GPU of another section: alpha + size / beta.

        beta is the bandwidth of the slower of the two NICs [B/s].

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        row = _links()["send"]
        ends = (self.accelerator, receiver.accelerator)
        bandwidth = row["remote_share"] * min(end.scale_out_bandwidth for end in ends)
        return _line(row["latency"], size, bandwidth)


def expert_copies(
    gpus: int,
    local: int,
    per_token: int,
    groups_per_token: int | None,
    mode: str,
) -> tuple[float, float]:
    """Return the copies of a token that its GPU sends inside and outside its domain [copies].

    With n GPUs in g domains of m GPUs and k experts per token:

    * low latency, one copy per expert: k (m - 1) / n inside, k (n - m) / n outside.
    * normal, one copy per domain that holds any of the experts, forwarded inside to each GPU that
      does: outside (g - 1) / g min(groups, g (1 - (1 - 1/g)^k)), inside n (1 - (1 - 1/n)^k) (m - 1)
      / m.

    Valid for experts that are drawn evenly and independently.

    Source: deepseek-ai/DeepEP, README; docs/explanation/performance-model.md#times-the-roofline.

    Args:
        gpus: n, GPUs that hold the experts [GPUs].
        local: GPUs of a domain [GPUs]; m = min(local, n).
        per_token: k, routed experts per token [experts].
        groups_per_token: Most domains that routing by groups allows [domains]; None without a
            limit.
        mode: ``low_latency`` or ``normal``.
    """
    domain = min(local, gpus)
    domains = gpus / domain
    if mode == "low_latency":
        return per_token * (domain - 1) / gpus, per_token * (gpus - domain) / gpus
    visited = domains * (1 - (1 - 1 / domains) ** per_token)
    visited = min(visited, groups_per_token or visited)
    inside = gpus * (1 - (1 - 1 / gpus) ** per_token) * (domain - 1) / domain
    return inside, visited * (domains - 1) / domains


def communicating() -> float:
    """Return the share of multiprocessors [1] that only communicate while two batches overlap.

    Source: DeepSeek-V3 (arXiv:2412.19437), section 3.2.1, in ``data/links.yaml``.
    """
    return float(_links()["overlap"]["reserved"])


def _line(alpha: float, size: FloatArray, beta: float) -> FloatArray:
    """Return seconds [s] by the alpha-beta model: latency [s] plus bytes over bandwidth [B/s]."""
    return np.asarray(alpha + size / beta)


def _links() -> dict[str, Any]:
    return read.read("roofline/data/links.yaml")
