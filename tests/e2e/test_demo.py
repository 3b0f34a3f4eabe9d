"""The demo comes true from start to end and leaves nothing running."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support.controlplane import Cluster, eventually
from tests.support.prometheus.provision import PrometheusMissing, locate

REPO = Path(__file__).parents[2]
DEMO = (sys.executable, "-m", "examples.demo")

pytestmark = pytest.mark.cluster


@pytest.fixture
def local(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("kind"):
        pytest.skip("on kind: the demo with --kind is tested")


@pytest.mark.usefixtures("local")
def test_the_demo_shows_plan_table_and_plot(tmp_path: Path) -> None:
    """Everything that a newcomer is promised, in one run."""
    done = subprocess.run(
        [*DEMO, "--once", "--directory", tmp_path],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ kubectl get splan" in done.stdout
    assert "bytes stored)" in done.stdout
    assert "KUBECONFIG" not in done.stdout  # nothing is left to play with
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "kubeconfig").exists()  # the cluster it led to is gone
    _nodes_were_lost_and_repaired(done.stdout)
    _the_table_followed_its_traffic(done.stdout)


def _nodes_were_lost_and_repaired(told: str) -> None:
    lost = re.search(r"until no island of the table is on it \.\.\. ([\d.]+) s", told)
    left = re.search(r"(\d+) of (\d+) islands stood on it; (\d+) serve", told)
    assert lost
    assert left
    assert float(lost[1]) <= 5
    on, before, after = map(int, left.groups())
    assert 0 < on <= before - after < before


def _the_table_followed_its_traffic(told: str) -> None:
    """The shift was seen, another table stored for it, and more is carried than before."""
    try:
        locate()
    except PrometheusMissing:
        assert "the change of traffic is left out" in told
        return
    taken = re.search(r"to the next table \.\.\. ([\d.]+) s", told)
    gained = re.search(r"gained: headroom ([\d.]+) -> ([\d.]+)", told)
    assert taken
    assert gained
    assert float(gained[2]) > float(gained[1])
    assert re.search(r"s after the change: (Safety|Gain), (Reroute|Flip|Reshape): ", told)
    levels = re.findall(r"^  [* ] (\w+) +([\d.]+|-)$", told, re.MULTILINE)
    assert {"Keep", "Reroute"} <= {name for name, _ in levels}


def test_the_demo_on_kind_serves_traffic_from_pods_and_loses_a_worker(
    kind: Cluster, image: str, tmp_path: Path
) -> None:
    """With a cluster of its own, from the image to a table without the lost worker."""
    del kind
    done = subprocess.run(
        [*DEMO, "--kind", "--once", "--directory", tmp_path],
        cwd=REPO,
        env=os.environ | {"IMAGE": image},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"headroom [\d.]+ times the traffic", done.stdout)
    on, before, after = map(
        int, re.findall(r"(\d+) of (\d+) islands stood on it; (\d+) serve", done.stdout)[0]
    )
    assert 0 < on < before
    assert after > 0
    assert "until the router sends by that table" in done.stdout


@pytest.mark.usefixtures("local")
def test_ctrl_c_ends_the_demo(tmp_path: Path) -> None:
    """The cluster goes with it, and the answer is 0: that is how it is meant to end."""
    kubeconfig = tmp_path / "kubeconfig"
    command = [*DEMO, "--directory", str(tmp_path)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE) as demo:
        eventually(lambda: kubeconfig.exists() and kubeconfig.read_text(), within=60)
        server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        assert _listens(server)
        demo.send_signal(signal.SIGINT)
        try:
            demo.communicate(timeout=30)
        finally:
            demo.kill()  # where it did not end, waiting for it would not end either
    assert demo.returncode == 0
    assert not _listens(server)
    assert not kubeconfig.exists()


def _listens(url: str) -> bool:
    address = urlsplit(url)
    with suppress(OSError), socket.create_connection((address.hostname, address.port), timeout=2):
        return True
    return False
