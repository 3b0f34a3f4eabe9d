"""The administrator's file of metric sources: read, refused with the place, read again."""

import logging
import os
import re
from pathlib import Path

import pytest
import yaml
from pydantic.alias_generators import to_camel

from archipelago.operator.errors import SettingsError
from archipelago.operator.sources import MetricSource, SourcesFile, read_sources

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
    (found,) = read_sources(file).values()
    assert (found.name, found.address) == ("cluster", "https://prometheus.monitoring.svc:9090/base")
    assert (found.timeout_seconds, found.stale_after_seconds) == (5, 120)
    labels = (found.namespace_label, found.plan_label, found.island_label)
    assert labels == ("namespace", "archipelago_dev_plan", "archipelago_dev_island")
    assert found.allow_addresses == ()


WRONG = [
    ("sources:", "source:", "sources: Field required"),
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


@pytest.mark.parametrize(("old", "new", "said"), WRONG)
def test_what_is_wrong_is_named_with_file_place_and_remedy(
    file: Path, old: str, new: str, said: str
) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(SettingsError, match=re.escape(f"{file}: {said}")) as raised:
        read_sources(file)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.yaml: No such file or directory; mount"):
        SourcesFile(tmp_path / "none.yaml")
    assert SourcesFile(None).current() == {}


def replaced(file: Path, text: str) -> None:
    """As the kubelet replaces a mounted ConfigMap: another file under the same name."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_a_new_file_is_used_and_a_broken_one_is_not(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = SourcesFile(file)
    with caplog.at_level(logging.INFO, "archipelago"):
        first = sources.current()
        assert sources.current() is first  # not read again while it is the same
        replaced(file, GOOD.replace("cluster", "other"))
        assert list(sources.current()) == ["other"]
        problems = [sources.problem]
        replaced(file, "sources: [{}]")
        for _ in range(3):
            assert list(sources.current()) == ["other"]
        assert sources.problem == (
            f"{file}: sources[0].name: Field required; the sources read before stay in use"
        )
        file.unlink()
        assert list(sources.current()) == ["other"]
        replaced(file, "sources: []")
        assert sources.current() == {}
        problems.append(sources.problem)
    assert problems == [None, None]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # once for each file that is broken, not at each look


def test_the_example_and_the_defaults_of_the_page(tmp_path: Path) -> None:
    """docs/operating.md shows a file that is read, and every field with its default."""
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "sources.yaml").write_text(yaml.safe_load(text)["data"]["sources.yaml"])
    (shown,) = read_sources(tmp_path / "sources.yaml").values()
    assert (shown.name, shown.kind) == ("cluster", "prometheus")
    rows = page[page.index("| `name` |") : page.index("Files and credentials")]
    for name, field in MetricSource.model_fields.items():
        row = next(row for row in rows.splitlines() if f"`{to_camel(name)}`" in row)
        default = field.default
        if isinstance(default, float):
            assert f"| {default:g} |" in row
        elif isinstance(default, str):
            assert f"`{default}`" in row


def test_a_change_within_the_same_second_is_seen(file: Path) -> None:
    sources = SourcesFile(file)
    before = file.stat()
    file.write_text(GOOD.replace("cluster", "another"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert list(sources.current()) == ["another"]
