"""How long a wait was, where the machine has other things to do."""

import time
from itertools import count

import pytest

from tests.controlplane.waiting import Stopwatch, eventually, wanting


@pytest.mark.parametrize(("per_core", "passed"), [(0.5, 3.0), (1.0, 3.0), (2.0, 1.5), (50.0, 0.75)])
def test_a_second_counts_as_much_as_the_machine_had_for_us(per_core: float, passed: float) -> None:
    seconds = count(10)
    watch = Stopwatch(lambda: float(next(seconds)), lambda: per_core)
    found = [watch.passed() for _ in range(3)]
    assert found == pytest.approx([passed / 3, passed * 2 / 3, passed])


def test_what_never_comes_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.3 s"):
        eventually(lambda: False, within=0.3)
    assert time.monotonic() - began >= 0.3


def test_what_comes_is_timed() -> None:
    began = time.monotonic()
    took = eventually(lambda: time.monotonic() - began > 0.25)
    assert 0 < took <= time.monotonic() - began


def test_the_machine_says_what_wants_a_core() -> None:
    assert wanting() > 0
