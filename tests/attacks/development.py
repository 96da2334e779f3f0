"""koordra installed as it is shipped on the development cluster, in this process: API server with RBAC and
admission policies, scheduler, claim loops; controller and webhook with the rights of their ServiceAccount."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from koordra.api.kinds import LEASES
from koordra.cel.selectors import admission_error
from koordra.controller.reconcile.leadership import _GIVEN_AWAY
from koordra.controller.run import LEASE_NAME, run, start_webhook
from koordra.controller.settings import Settings
from koordra.controller.webhook.cert_rotation import WebhookSettings
from koordra.errors import Conflict
from koordra.kube.kubeconfig import new_client
from koordra.metrics import Metrics
from koordra_devcluster.apiserver.requests import Response
from koordra_devcluster.apiserver.server import ApiServer
from koordra_devcluster.apiserver.serving.http import _Handler
from koordra_devcluster.control_plane import ControlPlane
from tests.attacks.cluster import InstalledCluster
from tests.cluster.installation import Installation, free_port
from tests.cluster.nodes import add_node, publish
from tests.cluster.waiting import NODES, eventually
from tests.patience import PATIENCE

COMPILE: Final = partial(admission_error, list_attributes=False)


class DevelopmentCluster(InstalledCluster):
    """Everything that runs; `close` ends it. Its API server can be stopped and restored."""

    def __init__(self, folder: Path) -> None:
        self._stop = threading.Event()
        # A port that no client gets meanwhile, since the server is started anew at the same one.
        self._plane = ControlPlane(folder, port=free_port(), first_backoff=0.1, compile_cel=COMPILE)
        self._plane.start(self._stop)
        kubeconfig = self._plane.kubeconfig
        admin = new_client(str(kubeconfig))
        installation = Installation(admin, free_port())
        installation.apply()
        for name in NODES:
            publish(admin, add_node(admin, name), folder / name)
        super().__init__(kubeconfig, folder, installation, metrics=str)
        self.start_programs()

    def start_programs(self) -> None:
        """Controller and webhook. The Lease is as somebody left it who ended in good order, so that nobody
        waits for him."""
        lease = {"metadata": {"name": LEASE_NAME}, "spec": dict(_GIVEN_AWAY)}
        with contextlib.suppress(Conflict):
            self.admin.create(LEASES, lease, namespace="koordra-system")
        self._end, metrics = threading.Event(), Metrics()
        self.metrics = metrics.text
        port = self.installation.webhook_port
        self._webhook = start_webhook(
            self.account("koordra-controller"),
            WebhookSettings(f"127.0.0.1:{port}", host="127.0.0.1"),
            metrics=metrics,
            stop=self._end,
        )
        eventually(self.installation.webhook_answers, "the webhook")
        self._leader = threading.Thread(
            target=run,
            args=(self.account("koordra-controller"), Settings(identity="one")),
            kwargs={"stop": self._end, "metrics": metrics},
        )
        self._leader.start()

    def stop_programs(self) -> None:
        self._end.set()
        self._leader.join(PATIENCE)
        if self._webhook is not None:
            self._webhook.close()

    def back_up(self, to: Path) -> None:
        """What the API server has now."""
        store = self._plane.server.store
        with store._lock, contextlib.closing(sqlite3.connect(to)) as copy:
            store._database.backup(copy)

    @contextlib.contextmanager
    def slow_api_server(self, seconds: float) -> Iterator[list[float]]:
        """Each answer takes so long; the list has one entry for each."""
        answers, answer = list[float](), _Handler._answer

        def slowly(handler: _Handler, body: bytes) -> Response:
            time.sleep(seconds)
            answers.append(seconds)
            return answer(handler, body)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Handler, "_answer", slowly)
            yield answers

    def restart_api_server(self, *, restored: Path | None = None) -> None:
        """At the same address, with the same tokens, as a real one would take them; `restored`: from a
        backup."""
        old = self._plane.server
        issued, port = old._http._server.api.tokens._issued, old._http.port
        old.close()
        if restored is not None:
            for file in self.folder.glob("apiserver.db*"):
                file.unlink()
            shutil.copy(restored, self.folder / "apiserver.db")
        new = ApiServer(self.folder, port=port, compile_cel=COMPILE)
        new._http._server.api.tokens._issued = issued
        self._plane.server = new
        new.start()

    def close(self) -> None:
        self.stop_programs()
        self._stop.set()
        self._plane.close()
