"""The only module that calls the API server; all its failures become errors of ``operator.errors``.

The folder ``cluster`` imports ``inventory``, ``metrics`` and ``resources``. Others use
``ApiCluster``, ``Informer``, ``Resync`` and the prerequisites. It decides nothing. Each method is
one request, without retries: the queue retries.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from archipelago.planner.documents import read_json
from archipelago.planner.errors import PlanFileError

from ..errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    Retryable,
    SettingsError,
)
from ..resources.manifests import review_manifest
from ..resources.names import (
    CLAIMS,
    DEVICES_GROUP,
    GROUP,
    MANAGER,
    PLURAL,
    SELECTOR,
    SLICES,
    VERSION,
    Key,
    Manifest,
    Permission,
)
from ..resources.reading import Body, read_version, reading
from ..resources.workloads import APIS
from .lease import LEASE_GROUP, LEASES
from .libraries import ApiException, client, config

KUBECONFIG = "KUBECONFIG"
STATUS_MANAGER = "archipelago-status"
ISLANDS_MANAGER = "archipelago-islands"
KEEPING_MANAGER = "archipelago-kept"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Asks for the metadata of an object alone."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
SMALL = "kube-root-ca.crt"
TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
CORE = "/api/v1"
PLANS = f"/apis/{GROUP}/{VERSION}"
DEVICES = f"/apis/{DEVICES_GROUP}/v1"
LEASE_API = f"/apis/{LEASE_GROUP}/v1"
PAGE = 50  # objects of one list request: a table may have 900 KiB
VERSIONS_PAGE = 2500
LARGE_PAGE = 500  # nodes and pods have about 10 kB
NOT_OVER = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods: an ended pod holds no GPUs, and its object may stay for weeks."""
LONGEST_MESSAGE = 1000
"""Characters of a refusal that are kept."""
LONGEST_DELAY = 60.0
"""Longest delay that a server may ask for [s]."""
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


_OF_ANY_REPLICA: Final = tuple(
    f"/apis/{group}/" for group in (LEASE_GROUP, "authorization.k8s.io", "authentication.k8s.io")
)
"""Part of the paths that a replica may write to without leading; no name has a slash."""


class ApiCluster:
    """The API server of KUBECONFIG, else of the pod's service account."""

    def __init__(self, settings: client.Configuration) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._check_lead)
        # The token goes to the API server only, whatever proxy the environment names.
        settings.client_session_kwargs = {"trust_env": False, "trace_configs": [trace]}
        self._api = client.ApiClient(settings)
        self._waiting: dict[object, float] = {}  # since when each request waits [monotonic s]
        self.token = str(settings.api_key.get("BearerToken", ""))
        """The bearer token, if there is one."""
        self.on_refusal: Callable[[], None] = lambda: None
        """Called after each refused request."""
        self.may_write: Callable[[], bool] = lambda: True
        """Asked just before a write is sent; without it nothing is written."""

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
        return cls(settings)

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
        return cls(settings), chosen["context"].get("namespace", "default")

    async def read(self, path: str) -> Mapping[str, Any]:
        """Read any object, for the kubectl plugin; the operator never calls it."""
        return await self._send("GET", path)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    def longest_wait(self, now: float) -> float:
        """Return for how long the oldest request has been waiting for its answer [s]."""
        return now - min(self._waiting.values(), default=now)

    async def probe(self, namespace: str) -> None:
        """Read the metadata of a small object that every namespace has, past every cache.

        Raises:
            Retryable: there is no answer.
        """
        await self._send("GET", _config_map(namespace, SMALL), accept=METADATA)

    async def apply_table(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a ConfigMap under our field manager; return it as stored.

        The server demands ``create`` beside ``patch`` if none exists yet.

        Raises:
            Conflict: its resource version is not the stored one.
        """
        return await self._apply(_config_map(*_key(manifest)), manifest, MANAGER)

    async def apply_shard(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store over a shard; return its metadata alone. Raises as ``apply_table``."""
        path = _config_map(*_key(manifest))
        return await self._apply(path, manifest, MANAGER, accept=METADATA)

    async def create_shard(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a new shard; return its metadata alone. It takes half as long as an apply.

        Raises:
            Conflict: it exists already.
        """
        path = _path(CORE, "configmaps", _key(manifest)[0])
        query = {"fieldManager": MANAGER}
        return await self._send("POST", path, query, manifest, accept=METADATA)

    async def apply_status(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a ServingPlan's status; return the ServingPlan. Raises as ``apply_table``."""
        namespace, name = _key(manifest)
        path = f"{_path(PLANS, PLURAL, namespace)}/{name}/status"
        return await self._apply(path, manifest, STATUS_MANAGER)

    async def merge_config_map(self, key: Key, parts: Manifest) -> Mapping[str, Any]:
        """Merge parts into a ConfigMap of ours; None removes a name.

        Raises:
            Conflict: the parts state a resource version, and another one is stored.
        """
        query = {"fieldManager": KEEPING_MANAGER}
        return await self._send("PATCH", _config_map(*key), query, parts, MERGE)

    async def remove_config_map(self, key: Key, uid: str, resource_version: str) -> None:
        """Delete exactly this version of a ConfigMap.

        Raises:
            Conflict: another version is stored.
            NotFound: it was deleted.
        """
        await self._remove(_config_map(*key), uid, resource_version)

    async def _remove(self, path: str, uid: str, resource_version: str, **more: str) -> None:
        """Delete exactly this version of an object; ``more``: other fields of DeleteOptions."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        await self._send("DELETE", path, body={**options, **more})

    async def read_table(self, key: Key) -> Mapping[str, Any]:
        """Read a ConfigMap of any owner.

        Raises:
            NotFound: it does not exist.
        """
        return await self._send("GET", _config_map(*key))

    async def read_plan(self, key: Key) -> Mapping[str, Any] | None:
        """Read one ServingPlan; None if there is none. It needs no right but to list."""
        path, name = _path(PLANS, PLURAL, key.namespace), f"metadata.name={key.name}"
        async for page in self.pages(path, {"fieldSelector": name}):
            if page["items"]:
                body: Mapping[str, Any] = page["items"][0]
                return body
        return None

    async def read_lease(self, key: Key) -> Mapping[str, Any]:
        """Read a Lease.

        Raises:
            NotFound: it does not exist.
        """
        return await self._send("GET", _lease(key))

    async def create_lease(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a new Lease; return it as stored.

        Raises:
            Conflict: it exists already.
        """
        path = _path(LEASE_API, LEASES, _key(manifest)[0])
        return await self._send("POST", path, body=manifest)

    async def update_lease(self, manifest: Manifest) -> Mapping[str, Any]:
        """Store a Lease over the version that it names; return it as stored.

        Raises:
            Conflict: another version is stored.
            NotFound: it was deleted.
        """
        return await self._send("PUT", _lease(Key(*_key(manifest))), body=manifest)

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

    def slices(self) -> AsyncIterator[Mapping[str, Any]]:
        """List all ResourceSlices, page by page."""
        return self.pages(_path(DEVICES, SLICES, None), {})

    def claims(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all ResourceClaims, page by page; None: of the whole cluster."""
        return self.pages(_path(DEVICES, CLAIMS, namespace), {}, LARGE_PAGE)

    def workloads(self, kind: str, namespace: str) -> AsyncIterator[Mapping[str, Any]]:
        """List the metadata alone of workloads that carry our label, page by page."""
        path, query = _workloads(kind, namespace), {"labelSelector": SELECTOR}
        return self.pages(path, query, VERSIONS_PAGE, accept=METADATA_LIST)

    async def apply_workload(self, kind: str, manifest: Manifest) -> None:
        """Store a workload under a field manager of its own. Raises as ``apply_table``."""
        namespace, name = _key(manifest)
        path = f"{_workloads(kind, namespace)}/{name}"
        await self._apply(path, manifest, ISLANDS_MANAGER, accept=METADATA)

    async def remove_workload(self, kind: str, key: Key, uid: str, resource_version: str) -> None:
        """Delete exactly this version of a workload, and then its pods.

        Raises:
            Conflict: another version is stored.
            NotFound: it was deleted.
        """
        path = f"{_workloads(kind, key.namespace)}/{key.name}"
        await self._remove(path, uid, resource_version, propagationPolicy="Background")

    def versions(self, kind: str, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List the metadata alone of what a watch of the kind shows, page by page."""
        path = {
            PLURAL: _path(PLANS, PLURAL, namespace),
            "configmaps": _path(CORE, "configmaps", namespace),
            "pods": _path(CORE, "pods", namespace),
            "nodes": _path(CORE, "nodes", None),
            SLICES: _path(DEVICES, SLICES, None),
            CLAIMS: _path(DEVICES, CLAIMS, namespace),
        }[kind]
        query = {"configmaps": {"labelSelector": SELECTOR}, "pods": {"fieldSelector": NOT_OVER}}
        return self.pages(path, query.get(kind, {}), VERSIONS_PAGE, accept=METADATA_LIST)

    async def may(self, right: Permission, namespace: str | None) -> bool:
        """Return whether the operator has a permission, in a namespace or (None) in all.

        Every authenticated user may ask.
        """
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return read_allowed(await self._send("POST", path, body=review_manifest(right, namespace)))

    async def user_of(self, token: str) -> Mapping[str, Any] | None:
        """Return whose token it is (TokenReview: username, groups, ...); None: nobody's."""
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        return read_user(await self._send("POST", path, body=review))

    async def may_get(self, user: Mapping[str, Any], path: str) -> bool:
        """Return whether a user of ``user_of`` may read a path that belongs to no resource."""
        about = {"user" if name == "username" else name: value for name, value in user.items()}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**about, "nonResourceAttributes": {"path": path, "verb": "get"}},
        }
        reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return read_allowed(await self._send("POST", reviews, body=review))

    async def serves_plans(self) -> bool:
        """Return whether the API server serves ServingPlans."""
        return await self._serves(PLANS, PLURAL)

    async def serves_devices(self) -> bool:
        """Return whether the API server serves ResourceSlices, as Kubernetes does from 1.34 on."""
        return await self._serves(DEVICES, SLICES)

    async def _serves(self, api: str, plural: str) -> bool:
        try:
            return plural in read_resources(await self._send("GET", api))
        except NotFound:
            return False

    async def pages(
        self, path: str, query: Mapping[str, str], objects: int = PAGE, accept: str = JSON
    ) -> AsyncIterator[Mapping[str, Any]]:
        """List a path in pages of so many objects."""
        query, token = {**query, "limit": str(objects)}, ""
        while True:
            more = {"continue": token} if token else {}
            page = await self._send("GET", path, query | more, accept=accept)
            if page.get("items", ()) is None:  # how an empty list of metadata is written
                page = {**page, "items": []}
            token = read_page(page)
            yield page
            if not token:
                return

    async def _check_lead(
        self, _session: object, _context: object, params: aiohttp.TraceRequestHeadersSentParams
    ) -> None:
        """Refuse to send a write of a replica that does not lead: the connection is open already.

        Nothing is waited for between here and the write to the socket.
        """
        of_any_replica = any(part in params.url.path for part in _OF_ANY_REPLICA)
        if params.method != "GET" and not of_any_replica and not self.may_write():
            raise NotLeading(f"{params.method} {params.url.path}: not sent, for the lease is over")

    async def _apply(
        self, path: str, manifest: Manifest, manager: str, accept: str = JSON
    ) -> Mapping[str, Any]:
        query = {"fieldManager": manager, "force": "true"}
        return await self._send("PATCH", path, query, manifest, APPLY, accept=accept)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
        *,
        accept: str = JSON,
    ) -> Mapping[str, Any]:
        """Send a request, wait for the answer and translate every error."""
        prepared = await self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        request = f"{method} {path}"
        ticket = object()
        self._waiting[ticket] = time.monotonic()
        try:
            response = await self._api.call_api(*prepared, _request_timeout=TIMEOUT)
            await response.read()  # type: ignore[no-untyped-call]
            answer: Any = self._api.response_deserialize(response, {"2XX": "object"})
        except ApiException as error:
            said = read_refusal(error.body) or str(error.reason)
            message = f"{request}: {error.status} {said[:LONGEST_MESSAGE]}"
            kind = _BY_STATUS.get(error.status)
            if kind is Forbidden:
                self.on_refusal()
            if kind is not None:
                raise kind(message) from error
            raise Retryable(
                message, read_delay((error.headers or {}).get("Retry-After"))
            ) from error
        except (TimeoutError, asyncio.IncompleteReadError, OSError, aiohttp.ClientError) as error:
            raise Retryable(f"{request}: no answer: {error!r}") from error
        except (ValueError, RecursionError) as error:  # truncated, or not from an API server
            raise Retryable(f"{request}: an answer that cannot be read: {error}") from error
        finally:
            del self._waiting[ticket]
        document: Any = answer.data
        if not isinstance(document, dict):
            form = type(document).__name__
            raise Retryable(f"{request}: an answer that cannot be read: no JSON object but {form}")
        return document


def read_page(page: Body) -> str:
    """Check one page of a list: a version and objects; return the token of the next, or "".

    Raises:
        Unreadable: it is none.
    """
    with reading("List", page) as item:
        meta = item.field("metadata")
        read_version(meta)
        for entry in item.field("items").items():
            entry.mapping()
        token = meta.optional("continue")
        return token.text() if token else ""


def read_allowed(review: Body) -> bool:
    """Return the verdict of an access review.

    Raises:
        Unreadable: it has none.
    """
    with reading("SelfSubjectAccessReview", review) as item:
        return item.field("status").field("allowed").truth()


def read_user(review: Body) -> Body | None:
    """Return whose token a TokenReview is about; None: nobody's.

    Raises:
        Unreadable: it says neither.
    """
    with reading("TokenReview", review) as item:
        status = item.field("status")
        authenticated = status.optional("authenticated")
        return status.field("user").mapping() if authenticated and authenticated.truth() else None


def read_resources(group: Body) -> frozenset[str]:
    """Return the plural names of the kinds of an API group.

    Raises:
        Unreadable: it is no list of kinds.
    """
    with reading("APIResourceList", group) as item:
        return frozenset(kind.field("name").text() for kind in item.field("resources").items())


def read_refusal(body: object) -> str:
    """Return the message of a ``Status``, else the whole text; empty if there is none."""
    try:
        return read_json(body).field("message").text()
    except PlanFileError:
        return body if isinstance(body, str) else ""


def read_delay(header: object) -> float | None:
    """Return ``Retry-After`` in seconds, at most a minute; None without one, or with a date."""
    text = str(header)
    return min(float(text), LONGEST_DELAY) if text.isascii() and text.isdigit() else None


def _path(api: str, plural: str, namespace: str | None) -> str:
    """Return the path of a kind; None: in the whole cluster."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{api}{where}/{plural}"


def _workloads(kind: str, namespace: str) -> str:
    api, plural = APIS[kind]
    return _path(f"/apis/{api}", plural, namespace)


def _config_map(namespace: str, name: str) -> str:
    return f"{_path(CORE, 'configmaps', namespace)}/{name}"


def _lease(key: Key) -> str:
    return f"{_path(LEASE_API, LEASES, key.namespace)}/{key.name}"


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]
