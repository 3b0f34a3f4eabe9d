"""ResourceSlices and ResourceClaims as drivers and the scheduler write them.

Names, types and values of attributes are those that the drivers' projects publish:

- NVIDIA: site/content/docs/reference/resourceslice-attributes.md and view-resources.md of
  kubernetes-sigs/dra-driver-nvidia-gpu at 9593204 (2026-08-07);
- AMD: docs/driver-attributes.md, docs/demo.md of ROCm/k8s-gpu-dra-driver at 2622427 (2025-10-06);
- Intel: doc/gaudi/USAGE.md of intel/intel-resource-drivers-for-kubernetes at 1da939f (2026-08-11);
- counters of dynamic MIG: API of ResourceSlice, "partitionable devices" (KEP-4815).
"""

from collections.abc import Sequence
from typing import Any

API = "resource.k8s.io/v1"
NVIDIA = "gpu.nvidia.com"
AMD = "gpu.amd.com"
INTEL = "gaudi.intel.com"
H100 = ("NVIDIA H100 80GB HBM3", "81559Mi")


def gpu(index: int, product: str = H100[0], memory: str = H100[1], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """A whole GPU of NVIDIA."""
    return {
        "name": f"gpu-{index}",
        "attributes": {
            "architecture": {"string": "Hopper"},
            "brand": {"string": "Nvidia"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "580.126.20"},
            "productName": {"string": product},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:64"},
            "type": {"string": "gpu"},
            "uuid": {"string": f"GPU-2fa81118-5a5f-aa66-7660-47{index:010}"},
        },
        "capacity": {"memory": {"value": memory}},
        **more,
    }


def mig(gpu_index: int, number: int, profile: str = "1g.10gb", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """A slice of a GPU of NVIDIA, which has the product of the GPU."""
    made = gpu(gpu_index)
    made["name"] = f"gpu-{gpu_index}-mig-{profile.replace('.', '-')}-{number}"
    made["attributes"] |= {
        "type": {"string": "mig"},
        "profile": {"string": profile},
        "parentUUID": made["attributes"]["uuid"],
    }
    made["capacity"] = {"memory": {"value": "9856Mi"}, "multiprocessors": {"value": "16"}}
    return made | more


def of_one_gpu(device: dict[str, Any], gpu_index: int) -> dict[str, Any]:
    """The device, taking from the counters of a GPU: it or others of that GPU, not both."""
    taken = {"counterSet": f"gpu-{gpu_index}", "counters": {"memory": {"value": "1Gi"}}}
    return device | {"consumesCounters": [taken]}


def vfio(index: int) -> dict[str, Any]:
    """A GPU of NVIDIA for a virtual machine."""
    made = gpu(index)
    made["attributes"]["type"] = {"string": "vfio"}
    return made | {"name": f"gpu-vfio-{index}", "capacity": {}}


def mi300x(index: int, kind: str = "amdgpu", profile: str = "spx_nps1") -> dict[str, Any]:
    """A GPU of AMD, or a partition of one."""
    return {
        "name": f"gpu-{index}-{128 + index}",
        "attributes": {
            "cardIndex": {"int": index},
            "driverVersion": {"version": "6.12.12"},
            "family": {"string": "AI"},
            "partitionProfile": {"string": profile},
            "productName": {"string": "AMD_Instinct_MI300X_OAM"},
            "type": {"string": kind},
        },
        "capacity": {"computeUnits": {"value": "304"}, "memory": {"value": "196592Mi"}},
    }


def gaudi(index: int, model: str = "Gaudi3") -> dict[str, Any]:
    """An accelerator of Intel; its driver states neither type nor memory."""
    return {
        "name": f"0000-{0xA0 + index:x}-00-0-0x1060",
        "attributes": {"healthy": {"bool": True}, "model": {"string": model}},
    }


def device_slice(
    node: str,
    devices: Sequence[dict[str, Any]],
    version: int = 1,
    *,
    name: str = "",
    driver: str = NVIDIA,
    generation: int = 1,
    count: int = 1,
) -> dict[str, Any]:
    """A ResourceSlice of a node; ``count``: slices of its pool in this generation."""
    return {
        "apiVersion": API,
        "kind": "ResourceSlice",
        "metadata": {
            "name": name or f"{node}-{driver}-4lpks",
            "uid": f"uid-{name or node}-{driver}",
            "resourceVersion": str(version),
        },
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def claim(
    name: str,
    node: str,
    devices: Sequence[str],
    version: int = 1,
    *,
    pod: str = "",
    driver: str = NVIDIA,
    admin: bool = False,
) -> dict[str, Any]:
    """A ResourceClaim that has devices of a node; ``pod``: uid of the pod that it is for."""
    results = [
        {"request": "gpu", "driver": driver, "pool": node, "device": device}
        | ({"adminAccess": True} if admin else {})
        for device in devices
    ]
    users = [{"resource": "pods", "name": "engine", "uid": pod}] if pod else []
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        },
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": driver}}]}
        },
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": users},
    }
