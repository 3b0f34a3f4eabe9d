"""GPUs that pods hold: as the scheduler counts them, and whose they are."""

from typing import Any

import pytest

from archipelago.operator.gpupods import PLAN_LABEL, GpuPod, gpu_pod, held_by_others, requested
from archipelago.operator.manifests import Key

GPU = "nvidia.com/gpu"


def container(gpus: int, **more: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {GPU: str(gpus), "cpu": "4"}}, **more}


def pod(gpus: int = 2, *, phase: str = "Running", **spec: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "metadata": {"namespace": "team", "name": "p", "uid": "u", "labels": {PLAN_LABEL: "chat"}},
        "spec": {"nodeName": "n1", "containers": [container(gpus)], **spec},
        "status": {"phase": phase},
    }


def test_a_running_pod_holds_its_gpus_for_the_plan_of_its_own_namespace() -> None:
    assert gpu_pod(pod()) == GpuPod("u", "n1", 2, Key("team", "chat"))
    foreign = pod()
    del foreign["metadata"]["labels"]
    assert gpu_pod(foreign) == GpuPod("u", "n1", 2, None)


@pytest.mark.parametrize(
    "nothing",
    [pod(0), pod(phase="Succeeded"), pod(phase="Failed"), pod(nodeName=None)],
    ids=["no GPUs", "done", "failed", "not placed"],
)
def test_what_holds_no_gpu_is_not_kept(nothing: dict[str, Any]) -> None:
    assert gpu_pod(nothing) is None


def test_a_pod_on_its_way_out_still_holds_its_gpus() -> None:
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert gpu_pod(leaving) is not None


@pytest.mark.parametrize(
    ("init", "containers", "expected"),
    [
        ([], [1, 2], 3),  # they run together
        ([(4, "")], [1, 2], 4),  # an init container runs alone, and is the larger
        ([(4, ""), (3, "")], [1], 4),  # one after the other
        ([(1, "Always")], [2], 3),  # a sidecar stays
        ([(1, "Always"), (4, "")], [2], 5),  # and is there while the next one runs
        ([(4, ""), (1, "Always")], [2], 4),  # but not while the one before it does
    ],
)
def test_requests_are_summed_as_the_scheduler_does(
    init: list[tuple[int, str]], containers: list[int], expected: int
) -> None:
    spec = {
        "initContainers": [container(n, **({"restartPolicy": p} if p else {})) for n, p in init],
        "containers": [container(n) for n in containers],
    }
    assert requested(spec) == expected


def test_a_request_beside_its_limit_counts_once() -> None:
    both = {"resources": {"limits": {GPU: "2"}, "requests": {GPU: "2"}}}
    assert requested({"containers": [both]}) == 2


def test_a_namesake_in_another_namespace_is_a_stranger() -> None:
    """A label alone takes no GPUs from a plan's books: anybody can write one."""
    ours, theirs = Key("team", "chat"), Key("other", "chat")
    pods = [GpuPod("a", "n1", 2, ours), GpuPod("b", "n1", 1, theirs), GpuPod("c", "n2", 4, None)]
    assert held_by_others(pods, ours) == {"n1": 1, "n2": 4}
    assert held_by_others(pods, theirs) == {"n1": 2, "n2": 4}
