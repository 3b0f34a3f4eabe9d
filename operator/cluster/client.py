"""The only module that calls the API server; all its failures become errors of ``operator.errors``.

The folder ``cluster`` imports ``inventory``, ``metrics``, ``queue`` and ``resources``. Others use
``ApiCluster`` (also its protocols ``Cluster`` and ``Access``), ``Informer``, ``Resync`` and the
prerequisites. It decides nothing. Each method is one request, without retries: the queue retries.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from ..errors import ClusterError, Conflict, Forbidden, Invalid, NotFound, Retryable, SettingsError
from ..resources.manifests import review_manifest
from ..resources.names import GROUP, PLURAL, SELECTOR, VERSION, Key, Manifest, Permission

KUBECONFIG = "KUBECONFIG"
MANAGER = "archipelago"
STATUS_MANAGER = "archipelago-status"
APPLY = "application/apply-patch+yaml"
TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
PAGE = 50  # objects of one list request: a table may have 900 KiB
LARGE_PAGE = 500  # nodes and pods have about 10 kB
NOT_OVER = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods: an ended pod holds no GPUs, and its object may stay for weeks."""


class Cluster(Protocol):
    """The requests of the operator about plans and tables."""

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a ConfigMap under our field manager; return it as stored.

        Raises:
            Conflict: its resource version is not the stored one.
        """

    async def apply_status(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a ServingPlan's status; return the ServingPlan. Raises as ``apply_table``."""

    async def remove_shard(self, key: Key, uid: str, resource_version: str) -> None:
        """Delete exactly this version of a ConfigMap.

        Raises:
            Conflict: another version is stored.
            NotFound: it was deleted.
        """

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        """Read a ConfigMap of any owner.

        Raises:
            NotFound: it does not exist.
        """

    async def create_event(self, manifest: Manifest) -> None:
        """Store an event."""

    def plans(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all ServingPlans, page by page; None: of the whole cluster."""

    def tables(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all ConfigMaps that carry our label, page by page."""


class Access(Protocol):
    """The requests of the operator about its prerequisites."""

    async def may(self, right: Permission, namespace: str | None) -> bool:
        """Return whether the operator has a permission, in a namespace or (None) in all."""

    async def serves_plans(self) -> bool:
        """Return whether the API server serves ServingPlans."""


class ApiCluster:
    """The API server of KUBECONFIG, else of the pod's service account."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self.on_refusal: Callable[[], None] = lambda: None
        """Called after each refused request."""

    @classmethod
    async def connect(cls) -> ApiCluster:
        """Read the credentials; send nothing yet.

        Raises:
            SettingsError: there are none, or they cannot be read.
        """
        settings = client.Configuration()
        kubeconfig = os.environ.get(KUBECONFIG)
        try:
            if kubeconfig:
                _refuse_missing(kubeconfig)
                await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise SettingsError(_unusable(kubeconfig, error)) from error
        # The token goes to the API server only, whatever proxy the environment names.
        settings.client_session_kwargs = {"trust_env": False}
        return cls(client.ApiClient(settings))

    @classmethod
    async def connect_as_user(cls, context: str | None) -> tuple[ApiCluster, str]:
        """Read a user's kubeconfig; return the cluster and the context's namespace.

        Raises:
            SettingsError: there is no kubeconfig, or no such context in it.
        """
        settings = client.Configuration()
        try:
            await config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]
            contexts, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise SettingsError(f"kubeconfig: {error}; set KUBECONFIG or --context") from None
        named = next((item for item in contexts if item["name"] == context), current)
        return cls(client.ApiClient(settings)), named["context"].get("namespace", "default")

    async def read(self, path: str) -> Mapping[str, Any]:
        """Read any object, for the kubectl plugin; the operator never calls it."""
        return await self._send("GET", path)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        """See ``Cluster``. The server demands ``create`` beside ``patch`` where none exists yet."""
        meta = manifest["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/configmaps/{meta['name']}"
        return await self._apply(path, manifest, MANAGER)

    async def apply_status(self, manifest: Manifest) -> Mapping[str, Any]:
        """See ``Cluster``."""
        meta = manifest["metadata"]
        path = f"{_plans(meta['namespace'])}/{meta['name']}/status"
        return await self._apply(path, manifest, STATUS_MANAGER)

    async def remove_shard(self, key: Key, uid: str, resource_version: str) -> None:
        """See ``Cluster``."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        path = f"/api/v1/namespaces/{key.namespace}/configmaps/{key.name}"
        await self._send("DELETE", path, body=options)

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        """See ``Cluster``."""
        return await self._send("GET", f"/api/v1/namespaces/{key.namespace}/configmaps/{key.name}")

    async def create_event(self, manifest: Manifest) -> None:
        """See ``Cluster``."""
        namespace = manifest["metadata"]["namespace"]
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        await self._send("POST", path, body=manifest)

    async def plans(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """See ``Cluster``."""
        async for page in self.pages(_plans(namespace), {}):
            yield page

    async def tables(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """See ``Cluster``."""
        where = f"/namespaces/{namespace}" if namespace else ""
        async for page in self.pages(f"/api/v1{where}/configmaps", {"labelSelector": SELECTOR}):
            yield page

    async def nodes(self) -> AsyncIterator[Mapping[str, Any]]:
        """See ``resync.NodeSource``."""
        async for page in self.pages("/api/v1/nodes", {}, LARGE_PAGE):
            yield page

    async def pods(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """See ``resync.NodeSource``."""
        where = f"/namespaces/{namespace}" if namespace else ""
        query = {"fieldSelector": NOT_OVER}
        async for page in self.pages(f"/api/v1{where}/pods", query, LARGE_PAGE):
            yield page

    async def may(self, right: Permission, namespace: str | None) -> bool:
        """See ``Access``. Every authenticated user has this permission."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._send("POST", path, body=review_manifest(right, namespace))
        return bool(answer["status"]["allowed"])

    async def serves_plans(self) -> bool:
        """See ``Access``."""
        try:
            group = await self._send("GET", f"/apis/{GROUP}/{VERSION}")
        except NotFound:
            return False
        return any(resource["name"] == PLURAL for resource in group["resources"])

    async def _apply(self, path: str, manifest: Manifest, manager: str) -> Mapping[str, Any]:
        query = {"fieldManager": manager, "force": "true"}
        return await self._send("PATCH", path, query, manifest, APPLY)

    async def pages(
        self, path: str, query: Mapping[str, str], objects: int = PAGE
    ) -> AsyncIterator[Mapping[str, Any]]:
        """List a path in pages of so many objects."""
        query = {**query, "limit": str(objects)}
        page = await self._send("GET", path, query)
        yield page
        while token := page["metadata"].get("continue"):
            page = await self._send("GET", path, {**query, "continue": token})
            yield page

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Mapping[str, Any]:
        prepared = self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            return await _translated(self._call(await prepared), f"{method} {path}")
        except Forbidden:
            self.on_refusal()
            raise

    async def _call(self, prepared: tuple[Any, ...]) -> Mapping[str, Any]:
        method, url, headers, body, form = prepared
        response = await self._api.call_api(
            method, url, headers, body, form, _request_timeout=TIMEOUT
        )
        await response.read()  # type: ignore[no-untyped-call]
        answer: Any = self._api.response_deserialize(response, {"2XX": "object"})
        document: dict[str, Any] = answer.data
        if not isinstance(document, dict):
            raise ValueError(f"no JSON object but {type(document).__name__}")  # noqa: TRY004  # as above
        return document


def _refuse_missing(kubeconfig: str) -> None:
    """Raise if all files of KUBECONFIG are missing; some may, as for kubectl."""
    if not any(Path(name).exists() for name in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("no such file")


def _unusable(kubeconfig: str | None, error: Exception) -> str:
    """Return one sentence; the libraries raise any kind of error for a broken file."""
    why = " ".join(str(error).split()) or type(error).__name__
    if kubeconfig:
        return f"{KUBECONFIG}={kubeconfig!r} is not a readable kubeconfig file: {why}"
    return (
        f"there is no API server to talk to: set {KUBECONFIG}, or run in a pod with a service "
        f"account token ({why})"
    )


def _plans(namespace: str | None) -> str:
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{where}/{PLURAL}"


async def _translated(call: Awaitable[Mapping[str, Any]], what: str) -> Mapping[str, Any]:
    """Wait for the answer; translate every error."""
    try:
        return await call
    except ApiException as error:
        raise _error(error, what) from error
    except (TimeoutError, asyncio.IncompleteReadError, OSError, aiohttp.ClientError) as error:
        raise Retryable(f"{what}: no answer: {error!r}") from error
    except ValueError as error:  # truncated, or not from an API server
        raise Retryable(f"{what}: an answer that cannot be read: {error}") from error


_BY_STATUS: dict[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    410: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


def _error(error: ApiException, what: str) -> ClusterError:
    message = f"{what}: {error.status} {_message(error)}"
    kind = _BY_STATUS.get(error.status)
    return kind(message) if kind else Retryable(message, _retry_after(error))


def _message(error: ApiException) -> str:
    """Return the message of the server's ``Status``, else the text of its answer."""
    try:
        text = json.loads(error.body or "")["message"]
    except (TypeError, ValueError, KeyError):
        text = error.body
    return str(text or error.reason)[:1000]


def _retry_after(error: ApiException) -> float | None:
    text = (error.headers or {}).get("Retry-After", "")
    return min(float(text), 60.0) if str(text).isdigit() else None
