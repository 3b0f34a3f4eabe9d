"""What all tests share: the cluster and Prometheus fixtures."""

pytest_plugins = [
    "tests.controlplane.fixtures",
    "tests.faults.options",
    "tests.prometheus.fixtures",
]
