"""Credentials of metric sources: whose they are, and who gets them."""

import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from archipelago.operator import sources as configuration
from archipelago.operator.prometheus import Client
from archipelago.planner.livedemand.faults import Reason
from tests.operator.badsource import LOCAL, answering, fault_of, ok, source, vector


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of prometheus.example that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=prometheus.example",
         "-addext", "subjectAltName=DNS:prometheus.example",
         "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return files


def tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


async def test_a_token_goes_to_its_source_alone_and_is_read_anew(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two sources at once: one has a token, which is replaced as the kubelet does, one has none."""
    token = tmp_path / "token"
    token.write_text("first-token\n")
    async with (
        answering(ok(vector([])), tls(certificate)) as mine,
        answering(ok(vector([])), tls(certificate)) as other,
    ):
        shared: dict[str, Any] = {
            "caFile": str(certificate[0]),
            "serverName": "prometheus.example",
            "allowAddresses": LOCAL,
        }
        with_token = source(f"https://127.0.0.1:{mine.port}", tokenFile=str(token), **shared)
        clients = Client(with_token), Client(source(f"https://127.0.0.1:{other.port}", **shared))
        for client in clients:
            await client.query("up")
        token.write_text("second-token")
        await clients[0].query("up")
        for client in clients:
            await client.close()
    sent = [re.findall(r"(?i)authorization: (.*)\r", head) for head in mine.heads]
    assert sent == [["Bearer first-token"], ["Bearer second-token"]]
    assert [head for head in other.heads if "authorization" in head.lower()] == []
    assert len(other.heads) == 1


async def test_a_server_that_cannot_prove_who_it_is_gets_no_token(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Unknown authority; known, and another name than the one that was configured."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    async with answering(ok(vector([])), tls(certificate)) as got:
        for more, why in (
            ({}, "self-signed certificate"),
            ({"caFile": str(certificate[0]), "serverName": "other.example"}, "Hostname mismatch"),
        ):
            address = f"https://127.0.0.1:{got.port}"
            client = Client(source(address, tokenFile=str(token), allowAddresses=LOCAL, **more))
            reason, detail = await fault_of(client)
            assert reason is Reason.SOURCE_FAILED
            assert why in detail
        assert got.heads == []


async def test_the_service_accounts_token_is_never_sent(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it is named, not by a link, not by a link that changed after the start."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("of-the-account")
    monkeypatch.setattr(configuration, "SERVICE_ACCOUNT", account)
    link = tmp_path / "link"
    link.symlink_to(account / "token")
    for path in (account / "token", link):
        with pytest.raises(ValidationError, match="own token for the API server"):
            source("https://x", tokenFile=str(path))
    link.unlink()
    (tmp_path / "own").write_text("mine")
    link.symlink_to(tmp_path / "own")
    async with answering(ok(vector([])), tls(certificate)) as got:
        client = Client(
            source(f"https://127.0.0.1:{got.port}", tokenFile=str(link), allowAddresses=LOCAL)
        )
        link.unlink()
        link.symlink_to(account / "token")
        assert await fault_of(client) == (
            Reason.SOURCE_FAILED,
            "tokenFile leads to the operator's own token, which is not sent",
        )
        assert got.heads == []


@pytest.mark.parametrize("content", ["", "two words", "a\r\nX-Other: b", "é", "x" * 20_000])
async def test_a_token_file_that_holds_no_token_sends_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content, newline="")
    client = Client(
        source("https://127.0.0.1:1", tokenFile=str(tmp_path / "token"), allowAddresses=LOCAL)
    )
    reason, detail = await fault_of(client)
    assert reason is Reason.SOURCE_FAILED
    assert detail in {"tokenFile does not hold one token", "tokenFile cannot be read"}
