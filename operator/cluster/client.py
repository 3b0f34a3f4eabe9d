"""The only module that calls the API server; all its failures become errors of ``operator.errors``.

The folder ``cluster`` imports ``inventory``, ``metrics`` and ``resources``. Others use
``ApiCluster``, ``Informer``, ``Resync`` and the prerequisites. It decides nothing. Each method is
one request, without retries: the queue retries.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

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
CORE = "/api/v1"
PLANS = f"/apis/{GROUP}/{VERSION}"
PAGE = 50  # objects of one list request: a table may have 900 KiB
LARGE_PAGE = 500  # nodes and pods have about 10 kB
NOT_OVER = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods: an ended pod holds no GPUs, and its object may stay for weeks."""
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
            if not kubeconfig:
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            elif any(Path(name).exists() for name in kubeconfig.split(os.pathsep)):  # noqa: ASYNC240
                await config.load_kube_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:  # some files of KUBECONFIG may be missing, as for kubectl
                raise FileNotFoundError("no such file")  # noqa: TRY301
        except Exception as error:  # the libraries raise any kind of error for a broken file
            cause = " ".join(str(error).split()) or type(error).__name__
            raise SettingsError(
                f"{KUBECONFIG}={kubeconfig!r} is not a readable kubeconfig file: {cause}"
                if kubeconfig
                else f"there is no API server to talk to: set {KUBECONFIG}, or run in a pod with a "
                f"service account token ({cause})"
            ) from error
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
        chosen = next((item for item in contexts if item["name"] == context), current)
        return cls(client.ApiClient(settings)), chosen["context"].get("namespace", "default")

    async def read(self, path: str) -> Mapping[str, Any]:
        """Read any object, for the kubectl plugin; the operator never calls it."""
        return await self._send("GET", path)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a ConfigMap under our field manager; return it as stored.

        The server demands ``create`` beside ``patch`` if none exists yet.

        Raises:
            Conflict: its resource version is not the stored one.
        """
        return await self._apply(_config_map(*_key(manifest)), manifest, MANAGER)

    async def apply_status(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a ServingPlan's status; return the ServingPlan. Raises as ``apply_table``."""
        namespace, name = _key(manifest)
        path = f"{_path(PLANS, PLURAL, namespace)}/{name}/status"
        return await self._apply(path, manifest, STATUS_MANAGER)

    async def remove_shard(self, key: Key, uid: str, resource_version: str) -> None:
        """Delete exactly this version of a ConfigMap.

        Raises:
            Conflict: another version is stored.
            NotFound: it was deleted.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        await self._send("DELETE", _config_map(*key), body=options)

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        """Read a ConfigMap of any owner.

        Raises:
            NotFound: it does not exist.
        """
        return await self._send("GET", _config_map(*key))

    async def create_event(self, manifest: Manifest) -> None:
        """Store an event."""
        path = _path("/apis/events.k8s.io/v1", "events", manifest["metadata"]["namespace"])
        await self._send("POST", path, body=manifest)

    def plans(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all ServingPlans, page by page; None: of the whole cluster."""
        return self.pages(_path(PLANS, PLURAL, namespace), {})

    def tables(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all ConfigMaps that carry our label, page by page."""
        return self.pages(_path(CORE, "configmaps", namespace), {"labelSelector": SELECTOR})

    def nodes(self) -> AsyncIterator[Mapping[str, Any]]:
        """List all nodes, page by page."""
        return self.pages(_path(CORE, "nodes", None), {}, LARGE_PAGE)

    def pods(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all pods that are not over, page by page; None: of the whole cluster."""
        return self.pages(_path(CORE, "pods", namespace), {"fieldSelector": NOT_OVER}, LARGE_PAGE)

    async def may(self, right: Permission, namespace: str | None) -> bool:
        """Return whether the operator has a permission, in a namespace or (None) in all.

        Every authenticated user may ask.
        """
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._send("POST", path, body=review_manifest(right, namespace))
        return bool(answer["status"]["allowed"])

    async def serves_plans(self) -> bool:
        """Return whether the API server serves ServingPlans."""
        try:
            group = await self._send("GET", PLANS)
        except NotFound:
            return False
        return any(resource["name"] == PLURAL for resource in group["resources"])

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

    async def _apply(self, path: str, manifest: Manifest, manager: str) -> Mapping[str, Any]:
        query = {"fieldManager": manager, "force": "true"}
        return await self._send("PATCH", path, query, manifest, APPLY)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Mapping[str, Any]:
        """Send a request, wait for the answer and translate every error."""
        prepared = await self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        request = f"{method} {path}"
        try:
            response = await self._api.call_api(*prepared, _request_timeout=TIMEOUT)
            await response.read()  # type: ignore[no-untyped-call]
            answer: Any = self._api.response_deserialize(response, {"2XX": "object"})
        except ApiException as error:
            try:
                text = json.loads(error.body or "")["message"]  # of the server's ``Status``
            except (TypeError, ValueError, KeyError):
                text = error.body
            message = f"{request}: {error.status} {str(text or error.reason)[:1000]}"
            kind = _BY_STATUS.get(error.status)
            if kind is Forbidden:
                self.on_refusal()
            if kind is not None:
                raise kind(message) from error
            after = str((error.headers or {}).get("Retry-After", ""))
            delay = min(float(after), 60.0) if after.isdigit() else None
            raise Retryable(message, delay) from error
        except (TimeoutError, asyncio.IncompleteReadError, OSError, aiohttp.ClientError) as error:
            raise Retryable(f"{request}: no answer: {error!r}") from error
        except ValueError as error:  # truncated, or not from an API server
            raise Retryable(f"{request}: an answer that cannot be read: {error}") from error
        document: Any = answer.data
        if not isinstance(document, dict):
            form = type(document).__name__
            raise Retryable(f"{request}: an answer that cannot be read: no JSON object but {form}")
        return document


def _path(api: str, plural: str, namespace: str | None) -> str:
    """Return the path of a kind; None: in the whole cluster."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{api}{where}/{plural}"


def _config_map(namespace: str, name: str) -> str:
    return f"{_path(CORE, 'configmaps', namespace)}/{name}"


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]
