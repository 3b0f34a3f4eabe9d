"""Communication by the alpha-beta model: latency plus bytes over the usable share of the link.

Constants are data (``data/links.yaml``), measured on custom all-reduce, DeepEP and send/recv.
Every function is vectorised over the bytes or tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from archipelago.perfmodel import catalogue

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.efficiency import Overheads
    from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class Network:
    """The links of one island: ``local`` GPUs reach each other without leaving the domain.

    What an engine adds to the kernels alone: ``wait`` at an all-reduce and ``dispatch_wait`` at
    either way of an all-to-all [s], and the share ``link`` of the usable bandwidth.
    """

    accelerator: Accelerator
    local: int
    wait: float = 0.0
    dispatch_wait: float = 0.0
    link: float = 1.0

    def run_by(self, overheads: Overheads) -> Network:
        """The same links under an engine."""
        return replace(
            self,
            wait=overheads.all_reduce_wait,
            dispatch_wait=overheads.all_to_all_wait,
            link=overheads.link,
        )

    def all_reduce(self, size: FloatArray, gpus: int) -> FloatArray:
        """Seconds to sum ``size`` bytes over ``gpus`` GPUs.

        Ring: each GPU sends 2 (n - 1) / n of the message. Latency is the measured one of that
        many GPUs. Beyond the domain the NIC is the link and each doubling adds a network step.
        """
        if gpus == 1:
            return 0.0 * size
        volume = 2.0 * (gpus - 1) / gpus * size
        row = self._all_reduce_row()
        latency = self.wait + _latency(row["latency"], min(gpus, self.local))
        if gpus <= self.local:
            return _line(
                latency, volume, self.link * row["share"] * self.accelerator.local_bandwidth
            )
        remote = _links()["scale_out"]
        steps = (-(-gpus // self.local) - 1).bit_length()
        bandwidth = self.link * remote["share"] * self.accelerator.scale_out_bandwidth
        return _line(latency + 2 * steps * remote["latency"], volume, bandwidth)

    def _all_reduce_row(self) -> dict[str, Any]:
        rows: dict[str, dict[str, Any]] = _links()["all_reduce"]
        if self.accelerator.scale_up is None:
            return rows["pcie"]
        return rows.get(self.accelerator.family, rows["other"])

    def all_to_all(self, local: FloatArray, remote: FloatArray, mode: str) -> FloatArray:
        """Seconds for each GPU to send ``local`` bytes inside and ``remote`` outside the domain.

        The two links work side by side, so the slower one counts. ``mode`` is ``low_latency``
        (decode) or ``normal`` (prefill), DeepEP's two kinds of kernels.
        """
        row = _links()["all_to_all"]
        inside = local / (row["local_share"][mode] * self.accelerator.local_bandwidth)
        outside = remote / (row["remote_share"] * self.accelerator.scale_out_bandwidth)
        latency = row["remote_latency"] if np.any(remote > 0) else row["local_latency"]
        moving = np.maximum(inside, outside) / self.link
        seconds: FloatArray = self.dispatch_wait + latency + moving
        return seconds

    def send(self, size: FloatArray, span: int) -> FloatArray:
        """Seconds to hand ``size`` bytes to the next stage of a pipeline over ``span`` GPUs."""
        row = _links()["send"]
        if span <= self.local:
            bandwidth = row["local_share"] * self.accelerator.local_bandwidth
        else:
            bandwidth = row["remote_share"] * self.accelerator.scale_out_bandwidth
        return _line(row["latency"], size, bandwidth)

    def send_out(self, size: FloatArray, receiver: Network) -> FloatArray:
        """Seconds to hand ``size`` bytes to a GPU of another section: the slower NIC counts."""
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
    """Copies of one token that its GPU sends inside its domain and out of it.

    Low latency: one copy per chosen expert. Normal: one copy per domain that holds any of them,
    forwarded inside to each GPU that does (DeepEP README); routing that is limited to groups
    bounds the domains. Experts are taken as drawn evenly and independently.
    """
    domain = min(local, gpus)
    domains = gpus / domain
    if mode == "low_latency":
        return per_token * (domain - 1) / gpus, per_token * (gpus - domain) / gpus
    reached = domains * (1 - (1 - 1 / domains) ** per_token)
    reached = min(reached, groups_per_token or reached)
    inside = gpus * (1 - (1 - 1 / gpus) ** per_token) * (domain - 1) / domain
    return inside, reached * (domains - 1) / domains


def _line(alpha: float, size: FloatArray, beta: float) -> FloatArray:
    """The alpha-beta model: latency [s] plus bytes over bandwidth [B/s]."""
    return np.asarray(alpha + size / beta)


def _latency(measured: dict[int, float], gpus: int) -> float:
    """Latency at the smallest measured size that covers ``gpus``, else at the largest."""
    sizes = sorted(measured)
    return measured[next((size for size in sizes if size >= gpus), sizes[-1])]


def _links() -> dict[str, Any]:
    return catalogue.read("links.yaml")
