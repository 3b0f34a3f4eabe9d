"""A window goes to a planner process as JSON and comes back as it was."""

import json
import subprocess
import sys
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.scraped import Latency, Scraped
from archipelago.operator.windowdoc import (
    from_document,
    to_document,
    window_document,
    window_models,
)
from archipelago.planner.livedemand.buckets import Buckets
from archipelago.planner.livedemand.faults import Fault, Reason
from archipelago.planner.livedemand.window import Flow, Window

NUMBER = st.floats(allow_nan=False)
NUMBERS = st.lists(NUMBER, max_size=5).map(tuple)
BUCKETS = st.lists(st.builds(Buckets, NUMBERS, NUMBERS, st.none() | NUMBER), max_size=3).map(tuple)
FAULTS = st.lists(
    st.builds(Fault, st.sampled_from(Reason), st.text(max_size=9), st.text(max_size=9)), max_size=3
).map(tuple)
LATENCY = st.none() | st.builds(Latency, NUMBERS, NUMBERS, NUMBER)
FLOW = st.builds(Flow, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, st.none() | NUMBER)
WINDOW = st.builds(Window, FLOW, BUCKETS, BUCKETS, FAULTS)
SCRAPED = st.builds(Scraped, WINDOW, LATENCY, LATENCY, st.none() | NUMBER)


@given(SCRAPED)
def test_a_window_round_trips_exactly_through_strict_json(seen: Scraped) -> None:
    text = json.dumps(to_document(seen), allow_nan=False)
    again = from_document(json.loads(text))
    assert again == seen
    assert json.dumps(to_document(again), allow_nan=False) == text


def test_the_form_by_hand() -> None:
    """Two buckets, the last without an end; 60 requests with 900 tokens in 30 s."""
    flow = Flow(30.0, 60.0, 4.0, -1.0, 1.0)
    inputs = (Buckets((0.0, 11.0, inf), (0.0, 60.0), 900.0),)
    faults = (Fault(Reason.MISSING_ISLAND, "b"),)
    seen = Scraped(
        Window(flow, inputs, (), faults), None, Latency((0.05, inf), (59.0, 1.0), 1.8), 0.5
    )
    document = window_document({"m": seen}, 60.0)
    assert document == {
        "seconds": 60.0,
        "models": {
            "m": {
                "flow": {
                    "seconds": 30.0,
                    "completed": 60.0,
                    "insideChange": 4.0,
                    "queueChange": -1.0,
                    "queue": 1.0,
                    "arrived": None,
                },
                "inputs": [{"edges": [0.0, 11.0, "inf"], "counts": [0.0, 60.0], "total": 900.0}],
                "outputs": [],
                "faults": [{"reason": "MissingIsland", "where": "b", "detail": ""}],
                "ttft": None,
                "tpot": {"bounds": [0.05, "inf"], "counts": [59.0, 1.0], "total": 1.8},
                "kvUse": 0.5,
            }
        },
    }
    assert window_models(document) == {"m": seen}


def test_making_windows_needs_no_numpy() -> None:
    """The main process makes them; numpy, which takes 30 MB and 0.2 s, is the planner's."""
    code = (
        "import sys, archipelago.operator.windowdoc; "
        "print([m for m in ('numpy', 'scipy', 'kubernetes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
