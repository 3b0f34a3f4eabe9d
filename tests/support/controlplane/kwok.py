"""Nodes that live: KWOK plays their kubelets, and Kubernetes' own controllers run pods on them.

Beside a control plane, for as long as a test wants them: KWOK for nodes that carry ``LABEL``, the
scheduler, and the controllers that make pods of Deployments and find nodes whose kubelet is silent.
What is applied is then placed, started, ended and lost as on a cluster; no container runs.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tests.controlplane import binaries
from tests.controlplane.errors import BinariesMissing, StartFailed
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Processes

PROGRAMS: Final = ("kwok", "kube-scheduler")
LABEL: Final = {"kwok.x-k8s.io/node": "fake"}
"""Nodes that carry it have a kubelet; one from which it is taken falls silent."""
MANAGER: Final = "kube-controller-manager"
STAGES: Final = Path(__file__).with_name("kwok.yaml")
CONTROLLERS: Final = ("deployment-controller", "node-lifecycle-controller", "replicaset-controller")
LEASE_SECONDS: Final = 4
"""Of a node; its kubelet renews it four times in that time (Kubernetes: 40)."""
GRACE: Final = 2
"""Leases for which a node may be silent before it is taken for lost (Kubernetes: 1.25)."""


def programs() -> Mapping[str, Path]:
    """The programs that this needs, from the PATH or the cache.

    Raises:
        BinariesMissing: one is in neither; the message says how to get it.
    """
    cached = binaries.find(PROGRAMS)
    found = {name: shutil.which(name) or cached.get(name) for name in PROGRAMS}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        command = f"{binaries.ENSURE} {' '.join(missing)}"
        raise BinariesMissing(f"no {' and '.join(missing)} on the PATH or in the cache: {command}")
    return {name: Path(path) for name, path in found.items() if path is not None}


@contextmanager
def kubelets(plane: ControlPlane, lease_seconds: int = LEASE_SECONDS) -> Iterator[None]:
    """Nodes with the label live and run pods until the end of the block.

    Raises:
        BinariesMissing: a program is not there.
        StartFailed: one of the processes has ended by itself.
    """
    found = programs()
    account = f"--kubeconfig={plane.kubeconfig}"
    alone = (account, "--leader-elect=false", "--secure-port=0")
    ours = ",".join(f"{label}={value}" for label, value in LABEL.items())
    with closing(Processes.open(plane.directory.parent)) as processes:
        processes.start(
            "kwok",
            found["kwok"],
            account,
            f"--config={STAGES}",
            f"--manage-nodes-with-label-selector={ours}",
            f"--node-lease-duration-seconds={lease_seconds}",
            "--cidr=10.64.0.0/16",
            "-v=WARN",
        )
        processes.start("kube-scheduler", found["kube-scheduler"], *alone)
        processes.start(
            MANAGER,
            plane.programs[MANAGER],
            *alone,
            f"--controllers={','.join(CONTROLLERS)}",
            f"--node-monitor-grace-period={GRACE * lease_seconds}s",
            "--node-monitor-period=1s",
        )
        yield
        for name, code in processes.returncodes().items():
            if code is not None:
                raise StartFailed(f"{name} ended with {code}:\n{processes.log(name).read_text()}")
