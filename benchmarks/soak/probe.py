"""What a process takes, every few seconds: memory, file descriptors, tasks; how fast it grows."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression
from types import TracebackType
from typing import Self

from tests.support.e2e.operators import Operator

MIB = 1 << 20
HOUR = 3600.0


@dataclass(frozen=True)
class Sample:
    """``seconds`` since the start; ``writes`` so far."""

    seconds: float
    phase: str
    rss_mib: float
    descriptors: int
    tasks: int
    writes: int


@dataclass
class Probe:
    """A thread that looks at an operator until the end of the block."""

    operator: Operator
    every: float = 2.0
    phase: str = "start"
    samples: list[Sample] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stop, self._started = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.samples.append(self.look())
            except (OSError, AssertionError, StopIteration):
                continue  # it is being restarted, or stopped for a while

    def look(self) -> Sample:
        """One sample, now."""
        assert self.operator.process is not None
        home = Path(f"/proc/{self.operator.process.pid}")
        status = (home / "status").read_text()
        rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return Sample(
            seconds=time.monotonic() - self._started,
            phase=self.phase,
            rss_mib=int(rss.split()[1]) / 1024,
            descriptors=len(list((home / "fd").iterdir())),
            tasks=int(self.operator.metric("tasks")),
            writes=int(self.operator.metric("writes_total")),
        )


def slope(points: list[tuple[float, float]]) -> float:
    """Growth per hour by least squares; 0 of fewer than two points."""
    if len(points) < 2:
        return 0.0
    return HOUR * linear_regression(*zip(*points, strict=True)).slope
