"""The block of README.md: it is played, a tenth of it, with traffic that needs no trace."""

from functools import partial
from pathlib import Path
from typing import Any

from archipelago.operator.liveanswer import live_answer
from tests.closedloop.live import Live
from tests.closedloop.scenario import FOLDER, load
from tests.docs.blocks import page

SHARE = 0.1


def test_the_block_of_the_page_is_played() -> None:
    text = Path(__file__).with_name("README.md").read_text()
    (block,) = [found for found in page("README.md", text).blocks if found.language == "python"]
    played = block.text.replace("conversation-to-code", "short-output-surge")
    assert played != block.text
    names: dict[str, Any] = {"FOLDER": FOLDER, "Live": Live, "live_answer": live_answer}
    names["load"] = partial(load, scale=SHARE)
    exec(played, names)  # noqa: S102  # ours
    assert names["operator"].log
    served = names["outcome"].tally.served(*names["scenario"].shift)
    assert 0 < served <= names["best"].tally.served(*names["scenario"].shift) * 1.01
