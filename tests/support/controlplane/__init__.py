"""A real Kubernetes control plane for tests: see README.md beside this file.

A package, unlike the folders around it, because its users import these names from it.
"""

from tests.support.controlplane.audit import AuditEvent
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.errors import ControlPlaneError
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.waiting import eventually

__all__ = ["AuditEvent", "Cluster", "ControlPlane", "ControlPlaneError", "eventually"]
