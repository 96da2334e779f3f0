"""NodePrepareResources and NodeUnprepareResources, in DRAPlugin v1 and v1beta1; the driver's registration.

The versions differ only in the share id that v1beta1 lacks. A response has exactly one entry per claim of the
request; an error is the claim's own and leaves the others alone. A batch holds the claims of one pod, which
are fetched concurrently: the kubelet allows 45 s for the call, and a request to the API server times out
after 15 s. A call that the kubelet has given up is not carried out: its Unprepare may have come and gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from koordra.api import names
from koordra.errors import KoordraError
from koordra.inert import inert
from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.dra.health import HEALTH_VERSIONS
from koordra.kubelet_plugin.dra.plugin_metrics import PluginMetrics
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.logs import get_logger
from koordra.node_state.claim_ref import ClaimRef
from koordra.process.progress import watched

log = get_logger(__name__)

_T = TypeVar("_T")

PLUGIN_TYPE: Final = "DRAPlugin"
SUPPORTED_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH_VERSIONS)
"""gRPC services as registration names them, preferred first."""

CALLS_AT_ONCE: Final = 128
"""Threads of the DRA socket. A kubelet has 110 pods, whose Prepares all wait while an API server does not
answer; Unprepares, which ask nobody, and probes have room beside them."""

SIDE_BY_SIDE: Final = 8
"""Claims of one batch that are read from the API at the same time."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Carries out the calls for single claims and reports them to `metrics` and to `on_done`, with the call's
    name and whether it succeeded."""

    state: DeviceState
    metrics: PluginMetrics
    on_done: Callable[[str, bool], None]

    def attempt(self, call: str, step: Callable[[ClaimRef], _T], ref: ClaimRef) -> tuple[_T | None, str]:
        """The result of the step, and the error's text, empty for success."""
        try:
            return self._observed(call, step, ref), ""
        except KoordraError as error:
            log.warning("claim_refused", claim=str(ref), uid=ref.uid, error=str(error))
            return None, str(error)
        except Exception as error:
            # An unexpected error in one claim must not fail the batch, or the server.
            event = "prepare_failed" if call == "prepare" else "unprepare_failed"
            log.exception(event, claim=str(ref), uid=ref.uid)
            return None, inert(f"{ref}: internal error: {type(error).__name__}: {error}")

    def _observed(self, call: str, step: Callable[[ClaimRef], _T], ref: ClaimRef) -> _T:
        done = False
        try:
            with watched(f"{call} {ref}"), self.metrics.observe_call(call):
                result = step(ref)
            done = True
        finally:
            self.on_done(call, done)
        return result


@dataclass(frozen=True, slots=True)
class DraService:
    """One version of the service over the node's state. `messages` is the generated module of the version."""

    calls: Calls
    messages: Any
    with_share_id: bool

    def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  the service's name
        response = self.messages.NodePrepareResourcesResponse()
        refs = _claims(request)
        step = partial(self.calls.state.prepare, awaited=context.is_active)
        with ThreadPoolExecutor(
            max(1, min(len(refs), SIDE_BY_SIDE)), thread_name_prefix="prepare"
        ) as threads:
            answers = list(threads.map(partial(self.calls.attempt, "prepare", step), refs))
        for ref, (record, error) in zip(refs, answers, strict=True):
            response.claims[ref.uid].error = error
            response.claims[ref.uid].devices.extend(self._devices(record) if record else ())
        return response

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = self.messages.NodeUnprepareResourcesResponse()
        step = partial(self.calls.state.unprepare, awaited=context.is_active)
        for ref in _claims(request):
            _, error = self.calls.attempt("unprepare", step, ref)
            response.claims[ref.uid].error = error
        return response

    def _devices(self, record: ClaimRecord) -> Iterator[Any]:
        for device, cdi_id in zip(record.devices, claim_spec.device_ids(record), strict=True):
            message = self.messages.Device(
                request_names=[device.request],
                pool_name=record.pool_of(device),
                device_name=device.device,
                cdi_device_ids=[cdi_id],
            )
            if self.with_share_id and device.share_id:
                message.share_id = device.share_id
            yield message


@dataclass(frozen=True, slots=True)
class RegistrationService:
    endpoint: Path

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  the service's name
        return pluginregistration_pb2.PluginInfo(
            type=PLUGIN_TYPE,
            name=names.DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=SUPPORTED_VERSIONS,
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A refusal is only logged: the kubelet retries."""
        if request.plugin_registered:
            log.info("registered_with_kubelet", driver=names.DRIVER)
        else:
            log.error("kubelet_refused_registration", driver=names.DRIVER, error=request.error)
        return pluginregistration_pb2.RegistrationStatusResponse()


def add_services(calls: Calls, server: Any) -> None:
    v1, v1beta1 = DraService(calls, dra_v1_pb2, True), DraService(calls, dra_v1beta1_pb2, False)
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(v1, server)  # type: ignore[no-untyped-call]
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(v1beta1, server)  # type: ignore[no-untyped-call]


def add_registration(endpoint: Path, server: Any) -> None:
    pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(RegistrationService(endpoint), server)  # type: ignore[no-untyped-call]


def _claims(request: Any) -> list[ClaimRef]:
    claims = (ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in request.claims)
    return list({claim.uid: claim for claim in claims}.values())
