"""A real Kubernetes control plane for tests: see README.md beside this file.

A package, unlike the folders around it, because its users import these names from it.
"""

from tests.controlplane.audit import AuditEvent
from tests.controlplane.cluster import Cluster
from tests.controlplane.errors import ControlPlaneError
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import eventually

__all__ = ["AuditEvent", "Cluster", "ControlPlane", "ControlPlaneError", "eventually"]
