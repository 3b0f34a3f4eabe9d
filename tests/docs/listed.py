"""The one table of what the pages show and no test types as it stands, each with its reason.

Whatever is not in here is run: there is no other way past the tests of this folder.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Listed:
    """Why a command is not run as it stands; ``instead`` is what is run in its place, if anything.

    ``by`` names what runs it elsewhere: a file of the repository and a word that stands in it.
    """

    why: str
    instead: str | None = None
    by: tuple[str, str] | None = None


DOCKER = "needs Docker and a base image; what Docker is given is tested"
IMAGE = ("tests/deploy/test_image.py", "prepare")
CI = (".ci/run", "make setup")
KIND = "needs Docker and kind; `make e2e KIND=1` does the same"
ON_KIND = ("tests/e2e/test_kind.py", "def test_")

# Of each `make` line `make -n` is run too: the target exists and its recipe can be expanded.
COMMANDS = {
    "make setup": Listed("makes the environment that the tests run in", by=CI),
    "make test": Listed("is this run", by=(".ci/run", "make test")),
    "make demo": Listed(
        "starts a control plane of its own, minutes where nothing is cached",
        by=("tests/e2e/test_demo.py", "test_the_demo_shows_plan_table_and_plot"),
    ),
    "make bench": Listed(
        "minutes; its figures want a machine of their own",
        by=("tests/test_benchmarks.py", "test_one_command_prints_the_table_and_the_summary"),
    ),
    "make faults": Listed(
        "17 minutes; the same scenarios are played at a smaller scale",
        by=("tests/faults/test_scenarios.py", "scenario"),
    ),
    "make recovery": Listed(
        "20 minutes; the same scenarios are played at a smaller scale",
        by=("tests/faults/test_scenarios.py", "scenario"),
    ),
    "make e2e KIND=1": Listed(KIND, by=ON_KIND),
    "make e2e KIND=1 BASE_IMAGE=debian-with-python:12": Listed(KIND, by=ON_KIND),
    "make e2e KIND=1 IMAGE=archipelago-operator:0.1.0": Listed(KIND, by=ON_KIND),
    "make e2e KIND=1 KIND_IMAGE=node:v1.36.3 KIND_CONFIG=my.yaml": Listed(KIND, by=ON_KIND),
    "kind create cluster --name archipelago-e2e --config tests/controlplane/kind.yaml": Listed(
        KIND, by=("tests/controlplane/kind.py", '"create"')
    ),
    "kind load docker-image archipelago-operator:0.1.0 --name archipelago-e2e": Listed(
        KIND, by=("tests/controlplane/kind.py", '"load"')
    ),
    "kubectl -n archipelago-system rollout status deployment/archipelago-operator": Listed(
        "a Deployment gets pods only where there are nodes",
        by=("tests/e2e/deployments.py", "rollout"),
    ),
    "make image": Listed(DOCKER, by=IMAGE),
    "make image IMAGE=archipelago-operator:0.1.0": Listed(DOCKER, by=IMAGE),
    "make sbom": Listed(
        "asks the registry for every wheel",
        by=("tests/deploy/test_image.py", "test_the_list_of_materials_is_what_is_pinned"),
    ),
    "docker run --rm --entrypoint cat archipelago-operator:0.1.0 /opt/archipelago/sbom.cdx.json"
    " > sbom.json": Listed(DOCKER, by=("deploy/image/Dockerfile", "/opt/archipelago")),
    ".venv/bin/python -m benchmarks.run --only 'cost-*' fleet-1k": Listed(
        "a busy machine misses bars; one small instance by each of its two patterns",
        instead=".venv/bin/python -m benchmarks.run --only 'cost-h100-*' l40s-8-llama8b",
    ),
    ".venv/bin/python -m benchmarks.run --repeats 3 --markdown docs/benchmarks.md": Listed(
        "three times all instances, minutes; one instance on a copy of the page",
        instead=".venv/bin/python -m benchmarks.run --repeats 1 --markdown docs/benchmarks.md"
        " --only l40s-8-llama8b",
    ),
    "archipelago calibrate result.json --accelerator H100 --engine vllm --model Llama-3.1-70B"
    " --precision fp8 --tp 4": Listed(
        "reads what a benchmark of a serving engine wrote, and none is here",
        by=("tests/perfmodel/test_measurements.py", "json"),
    ),
    "uv pip install -c constraints.txt -c constraints-bayes.txt -e '.[bayes]'": Listed(
        "downloads gigabytes; both files and the extra are there",
        by=("pyproject.toml", "bayes = ["),
    ),
    "python -m benchmarks.compare --out benchmarks/results/comparison.json": Listed(
        "half an hour, and needs the extra bayes; its arguments are read",
        instead="python -m benchmarks.compare --out benchmarks/results/comparison.json --help",
    ),
    "kubectl patch splan/llama-on-two-pools --type=merge"
    """ -p '{"spec": {"replanning": {"approve": "HASH"}}}'""": Listed(
        "needs the hash of a proposal, which traffic over minutes makes",
        by=("tests/operator/test_liveanswer.py", 'approved=proposal["hash"]'),
    ),
    "python -m pytest tests/faults": Listed(
        "is part of `make test`; it finds tests",
        instead="python -m pytest tests/faults --collect-only -q",
    ),
    "python -m pytest tests/faults -k watches-410": Listed(
        "is part of `make test`; it finds the one",
        instead="python -m pytest tests/faults -k watches-410 --collect-only -q",
    ),
}

# Blocks that a page tells its readers to save, by language, and under which name.
SAVED = {
    "docs/calibration.md": {"csv": "runs.csv", "yaml": "chat.yaml"},
}

# Commands in code marks; of the others each name and option exists, and kubectl's are run.
MENTIONS = {
    "pip install .": Listed("installs into the environment; CI installs the wheel", by=CI),
    "pip install 'archipelago[operator]'": Listed(
        "installs into the environment; CI installs the wheel with the extra",
        by=(".ci/wheel", "[operator]"),
    ),
    "docker build .": Listed("what an old version did, told in the change log"),
}

DRAWINGS = {
    "docs/architecture.md": "the layers, drawn; import-linter holds them",
    "docs/designs/0004-live-inventory.md": "how the modules of live inventory fit, drawn",
    "docs/designs/0007-replanning-decision.md": "who calls whom, drawn",
    "docs/designs/0009-live-operator.md": "the way from what is known to a stored table, drawn",
    "docs/kubectl-plugin.md": "a decision as watch shows it; tests/operator/test_liveview.py",
    "docs/performance-model.md": "a formula; tests/perfmodel compute it",
    "docs/planning.md": "a formula; tests/planner/test_planning_page.py computes its rows",
    "docs/threat-model.md": "the boundaries, drawn",
    "tests/closedloop/README.md": "how the loop is started; tests/demo/shift.py does",
    "tests/faults/README.md": "what stands where, drawn",
}
"""Pages with blocks of ``text``."""

PYTHON = {
    "docs/routing-table.md": "tests/planner/test_table.py",
    "tests/closedloop/README.md": "tests/closedloop/test_page.py",
    "tests/controlplane/README.md": "tests/docs/test_typed_on_a_cluster.py",
    "tests/faults/README.md": "tests/faults/test_page.py",
}
"""Pages with blocks of Python, and the tests that run them."""

EXIT_CODES = {
    "archipelago diff at-48-dollars.json at-60-dollars.json": 1,  # they differ
    "kubectl get nodes -o json | archipelago inventory -f -": 1,  # of an unknown type
    "kubectl get nodes -o json | archipelago inventory -f - --model Llama-3.1-8B"
    " | archipelago plan -f -": 1,  # the same, by pipefail
    "kubectl splan doctor": 1,  # a check failed
}
"""What the pages say of these; 0 for all others."""
