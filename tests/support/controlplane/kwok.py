"""Nodes that live: KWOK plays their kubelets, and Kubernetes' own controllers run pods on them.

Beside a control plane, for as long as a test wants them: KWOK for nodes that carry ``LABEL``, the
scheduler, and the controllers that make pods of Deployments and find nodes whose kubelet is silent.
What is applied is then placed, started, ended and lost as on a cluster; no container runs.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tests.support.controlplane import binaries
from tests.support.controlplane.errors import StartFailed
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import Processes

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


@contextmanager
def kubelets(plane: ControlPlane, lease_seconds: int = LEASE_SECONDS) -> Iterator[None]:
    """Nodes with the label live and run pods until the end of the block.

    Raises:
        BinariesMissing: a program is not there.
        StartFailed: one of the processes has ended by itself.
    """
    programs = binaries.locate(PROGRAMS)
    account = f"--kubeconfig={plane.kubeconfig}"
    alone = (account, "--leader-elect=false", "--secure-port=0")
    ours = ",".join(f"{label}={value}" for label, value in LABEL.items())
    with closing(Processes.open(plane.directory.parent)) as processes:
        processes.start(
            "kwok",
            programs["kwok"],
            account,
            f"--config={STAGES}",
            f"--manage-nodes-with-label-selector={ours}",
            f"--node-lease-duration-seconds={lease_seconds}",
            "--cidr=10.64.0.0/16",
            "-v=WARN",
        )
        processes.start("kube-scheduler", programs["kube-scheduler"], *alone)
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
