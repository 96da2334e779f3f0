"""An API server to talk to: `api` without HTTP, `server` and `client` over HTTP on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.apiserver.storage.store import Store
from tests.unit.devcluster.calling import Caller


@pytest.fixture
def api() -> Iterator[Caller]:
    store = Store(None)
    yield Caller(store)
    store.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    running = ApiServer(tmp_path / "server")
    running.start()
    running.write_kubeconfig(tmp_path / "kubeconfig")
    yield running
    running.close()


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> KubeClient:
    del server
    return new_client(str(tmp_path / "kubeconfig"), user_agent="tests")


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()
