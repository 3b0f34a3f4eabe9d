"""The test that tests/faults/README.md shows for a fault of one's own is run."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.operators import small
from tests.faults.bench import Bench
from tests.faults.invariants import Allowance
from tests.faults.rules import Rule, lose, writes_of

pytestmark = pytest.mark.cluster


def test_the_block_of_the_page_is_a_test_that_passes(bench: Bench) -> None:
    page = (Path(__file__).parent / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        "Allowance": Allowance, "Bench": Bench, "Rule": Rule, "lose": lose, "small": small,
        "writes_of": writes_of,
    }  # fmt: skip
    exec(block, names)  # noqa: S102  # ours
    (test,) = re.findall(r"^def (\w+)", block, re.MULTILINE)
    names[test](bench)
