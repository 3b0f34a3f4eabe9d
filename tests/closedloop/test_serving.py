"""The fleet as a server: a list of pods to scrape, and a page for each."""

import json
import threading
from urllib.request import urlopen

from tests.closedloop.fleet import Fleet
from tests.closedloop.scenario import FOLDER, load
from tests.closedloop.serving import Serving, server


def test_every_target_has_a_page_and_the_labels_of_its_pod() -> None:
    scenario = load(FOLDER / "a-day-of-noise.yaml")
    serving = Serving(
        Fleet(scenario.world, scenario.content), scenario.traffic(), "noise", "default"
    )
    serving.tick(20.0)
    http = server(serving)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        with urlopen(f"http://127.0.0.1:{http.server_port}/targets", timeout=5) as reply:
            targets = json.load(reply)
        assert len(targets) == 12
        for target in targets:
            labels = target["labels"]
            url = f"http://{target['targets'][0]}{labels['__metrics_path__']}"
            with urlopen(url, timeout=5) as reply:
                assert 'vllm:num_requests_running{engine="0",model_name="llama-8b"}' in (
                    reply.read().decode()
                )
            assert labels["archipelago_dev_plan"] == "noise"
            assert labels["archipelago_dev_island"] in serving.fleet.islands
    finally:
        http.shutdown()
        http.server_close()
