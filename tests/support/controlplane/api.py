"""The API server as its administrator sees it, without kubectl: a request takes milliseconds."""

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from tests.support.controlplane.cluster import Cluster

JSON = "application/json"
MERGE = "application/merge-patch+json"
SECONDS = 30


class Refused(Exception):  # noqa: N818  # the server's answer, not a defect
    """The server said no; ``status`` is its code."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(f"{status}: {answer.get('message', answer)}")
        self.status = status


@dataclass(frozen=True)
class Api:
    """Requests as the administrator: ``identity`` are the headers that say so, if any do."""

    host: str
    port: int
    context: ssl.SSLContext
    identity: Mapping[str, str]

    @classmethod
    def of(cls, cluster: Cluster) -> "Api":
        """The API server of a cluster."""
        return cls.by(cluster.kubeconfig)

    @classmethod
    def by(cls, kubeconfig: Path) -> "Api":
        """The API server of a kubeconfig: with a token as ours, with a certificate as kind's."""
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        identity = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        if not identity:
            _show_certificate(context, user)
        url = urlsplit(cluster["server"])
        return cls(str(url.hostname), url.port or 443, context, identity)

    @contextmanager
    def sent(
        self,
        method: str,
        path: str,
        body: object = None,
        kind: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer, to be read as it comes."""
        connection = http.client.HTTPSConnection(
            self.host, self.port, context=self.context, timeout=SECONDS
        )
        headers = {**self.identity, "Content-Type": kind}
        target = path + (f"?{urlencode(query)}" if query else "")
        with closing(connection):
            connection.request(method, target, json.dumps(body) if body else None, headers)
            yield connection.getresponse()

    def __call__(
        self, method: str, path: str, body: object = None, kind: str = JSON, **query: str
    ) -> dict[str, Any]:
        """An answer as a whole.

        Raises:
            Refused: the server said no.
        """
        with self.sent(method, path, body, kind, query) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            if answer.status >= http.client.BAD_REQUEST:
                raise Refused(answer.status, found)
            return found


def _show_certificate(context: ssl.SSLContext, user: Mapping[str, str]) -> None:
    """Have connections show the client certificate of a kubeconfig, as kind writes it."""
    parts = (user["client-certificate-data"], user["client-key-data"])
    with NamedTemporaryFile(suffix=".pem") as pem:  # ssl reads certificates from files only
        pem.write(b"".join(map(base64.b64decode, parts)))
        pem.flush()
        context.load_cert_chain(pem.name)
