"""What all tests share: the cluster fixtures."""

pytest_plugins = ["tests.controlplane.fixtures", "tests.faults.options"]
