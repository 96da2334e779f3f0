"""Names of pods, as the cluster's DNS would answer them, in a hosts file for each namespace.

    name of a headless Service    the pods that it selects
    <hostname>.<subdomain>        the pod of that host name, where the Service of that name selects it
    the same with .<namespace>[.svc[.cluster.local]]

A pod that is not ready is known only where its Service says publishNotReadyAddresses. The file is written in
place, since containers have it mounted; a reader that meets it half written looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from koordra.api import kinds
from koordra.api.objects import Object, labels_of, name, namespace, spec_of, status_of
from koordra.kube.client import KubeClient
from koordra_devcluster.apiserver.resources import SERVICES
from koordra_devcluster.controllers.informers import Informers

_LOCAL: Final = "127.0.0.1 localhost\n"
_SUFFIXES: Final = ("", ".{0}", ".{0}.svc", ".{0}.svc.cluster.local")


def hosts(pods: Iterable[Object], services: Iterable[Object], place: str) -> str:
    """The hosts file of a namespace. Pure."""
    known = sorted((pod for pod in pods if namespace(pod) == place), key=name)
    lines = [
        f"{status_of(pod)['podIP']} {' '.join(names)}\n"
        for pod in known
        if (names := list(_names(pod, [one for one in services if namespace(one) == place])))
    ]
    return "".join([_LOCAL, *lines])


def _names(pod: Object, services: Iterable[Object]) -> Iterator[str]:
    if not status_of(pod).get("podIP") or status_of(pod).get("phase") in ("Succeeded", "Failed"):
        return
    is_ready = any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status_of(pod).get("conditions") or ()
    )
    spec, found = spec_of(pod), [str(spec_of(pod)["hostname"])] if spec_of(pod).get("hostname") else []
    for service in services:
        asked = spec_of(service)
        selector = (asked.get("selector") or {}).items()
        if asked.get("clusterIP") != "None" or not selector or not selector <= labels_of(pod).items():
            continue
        if not is_ready and not asked.get("publishNotReadyAddresses"):
            continue
        own = [f"{spec['hostname']}.{name(service)}"] if spec.get("subdomain") == name(service) else []
        found += [
            f"{base}{suffix}".format(namespace(pod)) for base in (*own, name(service)) for suffix in _SUFFIXES
        ]
    yield from dict.fromkeys(found)


class PodNames:
    """The files, kept up to date by watches of all pods and Services."""

    def __init__(self, client: KubeClient, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._places: set[str] = set()
        self._informers = Informers(client, [kinds.PODS, SERVICES])
        for kind in (kinds.PODS, SERVICES):
            self._informers.listen(kind, self._changed)

    def start(self, stop: threading.Event) -> None:
        self._informers.start(stop)
        self._informers.wait_synced(stop)

    def file(self, place: str) -> Path:
        """The hosts file of a namespace, from now on kept."""
        with self._lock:
            self._places.add(place)
            return self._write(place)

    def _changed(self, _event: str, obj: Object, /) -> None:
        with self._lock:
            if namespace(obj) in self._places:
                self._write(namespace(obj))

    def _write(self, place: str) -> Path:
        path = self._folder / place
        text = hosts(self._informers.objects(kinds.PODS), self._informers.objects(SERVICES), place)
        self._folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return path
