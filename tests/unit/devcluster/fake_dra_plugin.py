"""A tiny DRA driver behind real gRPC sockets: registers like any other, answers what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from koordra._proto.dra import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)

DRIVER = "gpu.example.com"


class FakeDriver:
    """`prepared`, `unprepared`: the requests, as lists of claim uids. `error`: what Prepare and Unprepare
    answer, if set."""

    def __init__(
        self,
        kubelet_root: Path,
        *,
        versions: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        type_: str = "DRAPlugin",
        name: str = DRIVER,
        suffix: str = "",
    ) -> None:
        self.prepared: list[list[str]] = []
        self.unprepared: list[list[str]] = []
        self.registrations: list[Any] = []
        self.error = ""
        self.used: list[str] = []
        self.requests: tuple[str, ...] = ("gpu",)
        self._endpoint = kubelet_root / f"dra{suffix}.sock"
        self._socket = kubelet_root / "plugins_registry" / f"{name}{suffix}-reg.sock"
        self._info = pluginregistration_pb2.PluginInfo(
            type=type_, name=name, endpoint=str(self._endpoint), supported_versions=versions
        )
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._dra = self._serve_dra()
        self._registrar = self._serve_registration()

    def stop(self) -> None:
        """Both sockets go, as on a clean shutdown."""
        for server, path in ((self._registrar, self._socket), (self._dra, self._endpoint)):
            server.stop(0).wait()
            path.unlink(missing_ok=True)

    def crash(self) -> None:
        """The connections end, the registration socket's file stays behind, as after kill -9."""
        for server in (self._registrar, self._dra):
            server.stop(0).wait()

    def _serve_dra(self) -> grpc.Server:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Service(self, dra_v1_pb2, "v1"), server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(
            _Service(self, dra_v1beta1_pb2, "v1beta1"), server
        )
        self._endpoint.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{self._endpoint}")
        server.start()
        return server

    def _serve_registration(self) -> grpc.Server:
        server = grpc.server(futures.ThreadPoolExecutor(1))
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(_Registrar(self, self._info), server)
        self._socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{self._socket}")
        server.start()
        return server


class _Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: FakeDriver, info: Any) -> None:
        self._driver = driver
        self._info = info

    def GetInfo(self, request: Any, context: Any) -> Any:
        return self._info

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        self._driver.registrations.append(request)
        return pluginregistration_pb2.RegistrationStatusResponse()


class _Service(dra_v1_pb2_grpc.DRAPluginServicer):
    def __init__(self, driver: FakeDriver, messages: Any, version: str) -> None:
        self._driver = driver
        self._messages = messages
        self._version = version

    def NodePrepareResources(self, request: Any, context: Any) -> Any:
        self._driver.used.append(self._version)
        self._driver.prepared.append([claim.uid for claim in request.claims])
        response = self._messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            if self._driver.error:
                response.claims[claim.uid].error = self._driver.error
                continue
            response.claims[claim.uid].devices.add(
                request_names=self._driver.requests,
                pool_name="n1",
                device_name="gpu-0",
                cdi_device_ids=[f"example.com/claim={claim.uid}-gpu-0"],
            )
        return response

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        self._driver.unprepared.append([claim.uid for claim in request.claims])
        response = self._messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            response.claims[claim.uid].error = self._driver.error
        return response
