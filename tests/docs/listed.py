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
RELEASED = "needs a released image and its registry"
RELEASE = (".github/workflows/release.yml", "cosign")
CI = (".ci/run", "make setup")
KIND = "needs Docker and kind; `make e2e KIND=1` does the same"
ON_KIND = ("tests/e2e/test_kind.py", "def test_")

DRAWN = ("tests/benchmarks/test_drawn_specs.py", "test_one_command_plans_writes_rows")

OWN_MODEL = Listed(
    "reads a file of the reader's",
    by=("tests/e2e/test_own.py", "test_a_model_and_a_gpu_of_ones_own"),
)
IN_CLUSTER = Listed(
    "needs a plan in a cluster",
    by=("tests/e2e/test_knowledge.py", "test_a_calibration_file_is_read_checked"),
)
FOLDERS = Listed("is part of `make test`")

# Of each `make` line `make -n` is run too: the target exists and its recipe can be expanded.
COMMANDS = {
    "pip install .": Listed("installs into the environment; CI installs the wheel", by=CI),
    "make test": Listed("is this run", by=(".ci/run", "make test")),
    "make demo": Listed(
        "starts a control plane of its own, minutes where nothing is cached",
        by=("tests/e2e/test_demo.py", "test_the_demo_shows_plan_table_and_plot"),
    ),
    "make demo KIND=1": Listed(
        "needs Docker and kind", by=("tests/e2e/test_demo.py", "test_the_demo_on_kind")
    ),
    "make docs": Listed("builds the site, which CI does", by=(".ci/run", "make docs")),
    "make bench": Listed(
        "minutes; its figures want a machine of their own",
        by=(
            "tests/benchmarks/test_benchmarks.py",
            "test_one_command_prints_the_table_and_the_summary",
        ),
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
    "kind create cluster --name archipelago-e2e "
    "--config tests/support/controlplane/kind.yaml": Listed(
        KIND, by=("tests/support/controlplane/kind.py", '"create"')
    ),
    "kind load docker-image archipelago-operator:0.1.0 --name archipelago-e2e": Listed(
        KIND, by=("tests/support/controlplane/kind.py", '"load"')
    ),
    "kubectl -n archipelago-system rollout status deployment/archipelago-operator": Listed(
        "a Deployment gets pods only where there are nodes",
        by=("tests/support/e2e/deployments.py", "rollout"),
    ),
    "make image": Listed(DOCKER, by=IMAGE),
    "make image EXTRAS=bayes TORCH_INDEX=ADDRESS": Listed(DOCKER, by=IMAGE),
    "make image-offline": Listed(DOCKER, by=IMAGE),
    "make image IMAGE=archipelago-operator:0.1.0": Listed(DOCKER, by=IMAGE),
    "cosign verify IMAGE --certificate-oidc-issuer https://token.actions.githubusercontent.com "
    "--certificate-identity https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml"
    "@refs/tags/v0.1.0": Listed(RELEASED, by=RELEASE),
    "gh attestation verify oci://IMAGE --repo OWNER/REPOSITORY": Listed(RELEASED, by=RELEASE),
    "docker buildx imagetools inspect IMAGE --format '{{json .SBOM}}'": Listed(
        RELEASED, by=RELEASE
    ),
    "docker buildx imagetools inspect python:3.13-slim --format '{{.Manifest.Digest}}'": Listed(
        "asks the registry of images", by=RELEASE
    ),
    "make sbom": Listed(
        "asks the registry for every wheel",
        by=("tests/deploy/test_image.py", "test_the_list_of_materials_is_what_is_pinned"),
    ),
    "docker run --rm --entrypoint cat archipelago-operator:0.1.0 /opt/archipelago/sbom.cdx.json"
    " > sbom.json": Listed(DOCKER, by=("deploy/image/Dockerfile", "/opt/archipelago")),
    ".venv/bin/python -m benchmarks.run --only 'cost-*' fleet-1k": Listed(
        "a busy machine misses bars; one small instance by each of its two patterns",
        instead=".venv/bin/python -m benchmarks.run --only 'h200-16-*' l40s-8-llama8b",
    ),
    ".venv/bin/python -m benchmarks.run --repeats 3 --markdown docs/evidence/benchmarks.md": Listed(
        "three times all instances, minutes; one instance on a copy of the page",
        instead=".venv/bin/python -m benchmarks.run --repeats 1"
        " --markdown docs/evidence/benchmarks.md --only l40s-8-llama8b",
    ),
    "make drawn": Listed("minutes; its figures want a machine of their own", by=DRAWN),
    ".venv/bin/python -m benchmarks.drawn --seed 202611 --markdown docs/evidence/drawn.md"
    " --plot docs/evidence/drawn.svg": Listed(
        "seven minutes; one spec on a copy of the page",
        instead=".venv/bin/python -m benchmarks.drawn --seed 202611 --markdown "
        "docs/evidence/drawn.md --plot docs/evidence/drawn.svg --count 1 --seconds 3",
    ),
    ".venv/bin/python -m benchmarks.drawn --seed 202611 --seconds 60": Listed(
        "half an hour; its arguments are read",
        instead=".venv/bin/python -m benchmarks.drawn --seed 202611 --seconds 60 --help",
    ),
    ".venv/bin/python -m benchmarks.drawn --from-specs build/specs": Listed(
        "seven minutes; its arguments are read",
        instead=".venv/bin/python -m benchmarks.drawn --from-specs build/specs --help",
    ),
    ".venv/bin/python -m benchmarks.drawn --compare build/drawn/202611-10s.jsonl "
    "build/drawn/202611-60s.jsonl --plot build/drawn/both.svg": Listed(
        "the second run takes half an hour; one run with itself",
        instead=".venv/bin/python -m benchmarks.drawn --compare build/drawn/202611-3s.jsonl "
        "build/drawn/202611-3s.jsonl --plot build/drawn/both.svg",
    ),
    "archipelago calibrate result.json --accelerator H100 --engine vllm --model Llama-3.1-70B"
    " --precision fp8 --tp 4": Listed(
        "reads what a benchmark of a serving engine wrote, and none is here",
        by=("tests/perfmodel/calibration/test_measurements.py", "json"),
    ),
    "make setup EXTRAS=bayes": Listed("downloads gigabytes", by=(".ci/run", "EXTRAS=bayes")),
    "python -m benchmarks.compare --out benchmarks/results/comparison.json": Listed(
        "half an hour, and needs the extra bayes; its arguments are read",
        instead="python -m benchmarks.compare --out benchmarks/results/comparison.json --help",
    ),
    "python -m pytest tests/perfmodel/catalogue tests/planner/kubernetes -q": FOLDERS,
    "python -m pytest tests/perfmodel/catalogue -q": FOLDERS,
    "python -m pytest tests/operator/traffic tests/planner/kubernetes -q": FOLDERS,
    "python -m pytest tests/planner/strategies -q": FOLDERS,
    "kubectl create configmap my-engines --from-file=calibration.yaml": IN_CLUSTER,
    "kubectl create configmap my-8b --from-file=config.json": OWN_MODEL,
    "kubectl patch splan chat --type=merge"
    """ -p '{"spec":{"calibration":{"configMap":"my-engines"}}}'""": IN_CLUSTER,
    "python -m pytest tests/operator/resources tests/operator/kubectl -q": FOLDERS,
    "kubectl patch splan/llama-on-two-pools --type=merge"
    """ -p '{"spec": {"replanning": {"approve": "HASH"}}}'""": Listed(
        "needs the hash of a proposal, which traffic over minutes makes",
        by=("tests/planner/service/test_replan.py", 'approved=proposal["hash"]'),
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
    "docs/how-to/bring-your-own.md": {"csv": "runs.csv"},
    "docs/how-to/calibrate.md": {"csv": "runs.csv", "yaml": "chat.yaml"},
}

# Commands in code marks; of the others each name and option exists, and kubectl's are run.
MENTIONS = {
    "pip install 'archipelago-serving[operator]'": Listed(
        "installs into the environment; CI installs the wheel with the extra",
        by=(".ci/wheel", "[operator]"),
    ),
    "docker build .": Listed(DOCKER, by=IMAGE),
}

# Pages whose YAML is part of a file of the repository, or includes it.
EXCERPTS = {
    "docs/how-to/add-a-gpu.md": "perfmodel/catalogue/data/accelerators.yaml",
    "docs/how-to/add-a-model.md": "perfmodel/catalogue/data/models.yaml",
    "docs/how-to/add-an-engine.md": "operator/traffic/signals.yaml",
    "docs/reference/chart.md": "deploy/chart/values.yaml",
}

DRAWINGS = {
    "docs/explanation/architecture.md": "the layers, drawn; import-linter enforces them",
    "docs/designs/0004-live-inventory.md": "how the modules of live inventory fit, drawn",
    "docs/designs/0007-replanning-decision.md": "who calls whom, drawn",
    "docs/designs/0009-live-operator.md": "the way from what is known to a stored table, drawn",
    "docs/reference/kubectl-splan.md": "a decision as shown; tests/operator/kubectl/test_watch.py",
    "docs/explanation/performance-model.md": "a formula; tests/perfmodel compute it",
    "docs/explanation/planning.md": "tests/planner/milp/test_planning_page.py computes its rows",
    "docs/reference/python.md": "what the program of the page prints; tests/docs/test_pages.py",
    "docs/explanation/threat-model.md": "the boundaries, drawn",
    "benchmarks/closedloop/README.md": "how the loop is started; examples/demo/shift.py does",
    "tests/faults/README.md": "what stands where, drawn",
}
"""Pages with blocks of ``text``."""

PYTHON = {
    "docs/reference/python.md": "tests/docs/test_pages.py",
    "docs/reference/routing-table.md": "tests/planner/table/test_write.py",
    "benchmarks/closedloop/README.md": "tests/scenarios/test_closed_loop.py",
    "tests/support/controlplane/README.md": "tests/docs/test_typed_on_a_cluster.py",
    "tests/faults/README.md": "tests/faults/test_writes.py",
}
"""Pages with blocks of Python, and the tests that run them."""

EXIT_CODES = {
    "archipelago diff at-48-dollars.json at-60-dollars.json": 1,  # they differ
    "kubectl get nodes -o json | archipelago pools -f -": 1,  # of an unknown type
    "kubectl get nodes -o json | archipelago pools -f - --model Llama-3.1-8B"
    " | archipelago plan -f -": 1,  # the same, by pipefail
    "kubectl splan doctor": 1,  # a check failed
}
"""What the pages say of these; 0 for all others."""
