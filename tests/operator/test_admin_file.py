"""The administrator's file: what is read, how mistakes are named, and what stays in use."""

import logging
import os
import re
from pathlib import Path

import pytest
import yaml
from pydantic.alias_generators import to_camel

from archipelago.operator.admin_file import AdminFile, read_admin_file
from archipelago.operator.errors import SettingsError
from archipelago.operator.traffic.config import MetricSource

GOOD = """\
sources:
  - name: cluster
    kind: prometheus
    address: https://prometheus.monitoring.svc:9090/base/
    tokenFile: /etc/archipelago/token
    timeoutSeconds: 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sources.yaml"
    path.write_text(GOOD)
    return path


def test_a_source_is_read_with_its_defaults(file: Path) -> None:
    (entry,) = read_admin_file(file).sources
    assert (entry.name, entry.address) == ("cluster", "https://prometheus.monitoring.svc:9090/base")
    assert (entry.timeout_seconds, entry.stale_after_seconds) == (5, 120)
    labels = (entry.namespace_label, entry.plan_label, entry.island_label)
    assert labels == ("namespace", "archipelago_dev_plan", "archipelago_dev_island")
    assert entry.allow_addresses == ()


def claim(**fields: str) -> str:
    """A file with one rule about nodes."""
    rule = {"namespaces": "[a]"} | fields
    return f"nodeClaims: [{{{', '.join(f'{name}: {text}' for name, text in rule.items())}}}]"


WRONG = [
    ("sources:", "source:", "source: no such setting; there are sources, nodeClaims, tellNamesp"),
    (GOOD, "", "the document: Input should be"),
    (GOOD, "nodeClaims: [{}]", "nodeClaims[0].namespaces: Field required"),
    (GOOD, claim(namespaces="[Team]"), "nodeClaims[0].namespaces[0]: use names of namespaces"),
    (GOOD, claim(maxGpus="-1"), "nodeClaims[0].maxGpus: write a number of GPUs from 0 to"),
    (GOOD, claim(maxGpus="{H100: many}"), "nodeClaims[0].maxGpus: write a number of GPUs"),
    (GOOD, claim(maxGpus="{H1000: 8}"), "nodeClaims[0].maxGpus: "),
    (GOOD, claim(maxPriority=".inf"), "nodeClaims[0].maxPriority: Input should be a valid int"),
    (GOOD, claim(nodeSelector="{-: x}"), "nodeClaims[0].nodeSelector.-.[key]: use labels of"),
    (GOOD, claim(nodeSelector="{pool: 3}"), "nodeClaims[0].nodeSelector.pool: Input should be"),
    (GOOD, claim(maxGPUs="3"), "nodeClaims[0].maxGPUs: no such setting; there are namespaces, no"),
    ("name: cluster", "name: Cluster", "sources[0].name: use a DNS label"),
    ("name: cluster", "name: 3", "sources[0].name: Input should be a valid string"),
    ("kind: prometheus", "kind: influx", "sources[0].kind: Input should be 'prometheus'"),
    ("https://", "ftp://", "sources[0].address: begin it with https:// or http://"),
    ("https://", "https://u:s3cret@", "sources[0].address: leave out the user and password"),
    ("/base/", "/base?x=1", "sources[0].address: leave out what follows the path"),
    ("https://", "http://", "sources[0]: tokenFile, caFile, clientCertFile and serverName need"),
    ("/etc/", "etc/", "sources[0].tokenFile: write an absolute path"),
    (
        "/etc/archipelago/",
        "/var/run/secrets/kubernetes.io/serviceaccount/",
        "sources[0].tokenFile: this is the operator's own token for the API server",
    ),
    ("Seconds: 5", "Seconds: 30", "sources[0].timeoutSeconds: Input should be less than or equal"),
    ("Seconds: 5", "Seconds: .nan", "sources[0].timeoutSeconds: Input should be"),
    ("timeoutSeconds", "timeout", "sources[0].timeout: no such setting; there are name, kind,"),
    ("timeoutSeconds: 5", "islandLabel: a-b", "sources[0].islandLabel: use a Prometheus label"),
    ("timeoutSeconds: 5", "allowAddresses: [x]", "sources[0].allowAddresses[0]: 'x' does not"),
    ("timeoutSeconds: 5", "allowedNamespaces: [A]", "sources[0].allowedNamespaces[0]: String sh"),
    ("timeoutSeconds: 5", "allowedNamespaces: chat", "sources[0].allowedNamespaces: Input should"),
    ("timeoutSeconds: 5", "clientCertFile: /x", "sources[0]: give clientCertFile and clientKeyF"),
    (GOOD, "a: [", "not YAML"),
    (GOOD, "a: !!python/object:os.system {}", "not YAML"),
    (
        GOOD,
        GOOD + GOOD.removeprefix("sources:\n"),
        "the document: cluster is there twice; give each",
    ),
    (GOOD, "#" * (1 << 20) + GOOD, "larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_mistake_is_named_with_file_place_and_remedy(
    file: Path, old: str, new: str, message: str
) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(SettingsError, match=re.escape(f"{file}: {message}")) as raised:
        read_admin_file(file)
    assert "s3cret" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.yaml: No such file or directory; mount"):
        AdminFile(tmp_path / "none.yaml")
    assert AdminFile(None).sources() == {}


def replaced(file: Path, text: str) -> None:
    """As the kubelet replaces a mounted ConfigMap: another file under the same name."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_a_new_file_is_used_and_a_broken_one_is_not(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = AdminFile(file)
    with caplog.at_level(logging.INFO, "archipelago"):
        first = sources.sources()
        assert sources.sources() is first  # not read again while it is the same
        replaced(file, GOOD.replace("cluster", "other"))
        assert list(sources.sources()) == ["other"]
        problems = [sources.problem]
        replaced(file, "sources: [{}]")
        for _ in range(3):
            assert list(sources.sources()) == ["other"]
        assert sources.problem == (
            f"{file}: sources[0].name: Field required; what was read before stays in use"
        )
        file.unlink()
        assert list(sources.sources()) == ["other"]
        replaced(file, "sources: []")
        assert sources.sources() == {}
        problems.append(sources.problem)
    assert problems == [None, None]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # once for each file that is broken, not at each look


def test_the_example_and_the_defaults_of_the_page(tmp_path: Path) -> None:
    """docs/how-to/metric-sources.md shows a file that is read, and every field with its default."""
    page = (Path(__file__).parents[2] / "docs/how-to/metric-sources.md").read_text()
    text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "sources.yaml").write_text(yaml.safe_load(text)["data"]["sources.yaml"])
    (shown,) = read_admin_file(tmp_path / "sources.yaml").sources
    assert (shown.name, shown.kind) == ("cluster", "prometheus")
    rows = page[page.index("| `name` |") : page.index("Files and credentials")]
    for name, field in MetricSource.model_fields.items():
        row = next(row for row in rows.splitlines() if f"`{to_camel(name)}`" in row)
        default = field.default
        if isinstance(default, float):
            assert f"| {default:g} |" in row
        elif isinstance(default, str):
            assert f"`{default}`" in row


def test_a_change_within_the_same_second_is_noticed(file: Path) -> None:
    sources = AdminFile(file)
    before = file.stat()
    file.write_text(GOOD.replace("cluster", "another"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert list(sources.sources()) == ["another"]


def test_the_example_of_the_page_on_sharing_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/share-a-cluster.md").read_text()
    text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    path = tmp_path / "sources.yaml"
    path.write_text(yaml.safe_load(text)["data"]["sources.yaml"])
    claims = AdminFile(path).claims()
    assert [*claims.of("research")] == [0, 2]
    assert [*claims.of("team-a")] == [1, 2]
    assert (claims.max_priority("research"), claims.max_priority("team-a")) == (100, 0)
    assert claims.rules[1].quota("H100") == ("H100", 64)
    assert claims.rules[1].quota("L4") == ("L4", 0)


def test_models_and_accelerators_of_the_administrator_are_read(tmp_path: Path) -> None:
    path = tmp_path / "admin.yaml"
    gpu = {"name": "H100-64GB", "like": "H100", "memoryGibibytes": "64"}
    model = {"name": "me/M", "config": {"inline": {"model_type": "llama"}}}
    path.write_text(yaml.safe_dump({"catalogue": {"accelerators": [gpu], "models": [model]}}))
    catalogue = AdminFile(path).catalogue()
    assert [each.name for each in catalogue.accelerators] == ["H100-64GB"]
    assert catalogue.models[0].config.inline == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("catalogue", "place"),
    [
        (
            {"accelerators": [{"name": "X"}]},
            "catalogue.accelerators[0].like: state memoryGibibytes",
        ),
        ({"accelerators": [{"name": "X", "like": "H100"}] * 2}, "accelerators[1].name: Duplicate"),
        (
            {"models": [{"name": "me/M", "config": {"configMap": "x"}}]},
            "catalogue.models[0].config",
        ),
        ({"gpus": []}, "catalogue.gpus: no such setting; there are accelerators, models"),
    ],
)
def test_a_wrong_entry_of_the_catalogue_is_refused_by_its_place(
    tmp_path: Path, catalogue: dict[str, object], place: str
) -> None:
    path = tmp_path / "admin.yaml"
    path.write_text(yaml.safe_dump({"catalogue": catalogue}))
    with pytest.raises(SettingsError, match=re.escape(place)):
        AdminFile(path)
