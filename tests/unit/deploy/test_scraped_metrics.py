"""The rendered arguments of each process, started on the devcluster: what they serve is what docs/metrics.md
says, both ways."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from koordra.api.kinds import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from koordra.kube.kubeconfig import new_client
from koordra.topology import presets
from koordra_devcluster.control_plane import ControlPlane
from tests.cluster.installation import free_port
from tests.fakes.documented_metrics import PAGE, of_process, rows
from tests.fakes.kustomized import built
from tests.patience import PATIENCE

pytestmark = pytest.mark.long

NODE = "node-a"
LEADERS = ("koordra_controller_waiting_groups", "koordra_cluster_devices", "koordra_node_devices")


class Installed:
    """koordra's processes with their rendered arguments; of those only what names a place of the node is
    another one here, and the address is one of this machine."""

    def __init__(self, folder: Path, documents: Mapping[tuple[str, str], Any], kubeconfig: Path) -> None:
        self._folder, self._documents, self._kubeconfig = folder, documents, kubeconfig
        self.ports: dict[str, int] = {}
        presets.write_machine(presets.load("hgx-h100"), folder / "machine", serial=NODE)
        for name in ("proc", "cgroup", "state", "bundles"):
            (folder / name).mkdir()

    @contextmanager
    def running(self, who: str) -> Iterator[None]:
        (container,) = next(
            document["spec"]["template"]["spec"]["containers"]
            for (kind, name), document in self._documents.items()
            if kind in ("Deployment", "DaemonSet") and name == f"koordra-{who}"
        )
        arguments = [self._here(who, argument) for argument in container["args"]]
        command = [sys.executable, "-m", "koordra", *arguments, *self._places(who)]
        with (self._folder / f"{who}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def _here(self, who: str, argument: str) -> str:
        flag, _, value = argument.partition("=")
        if flag.endswith("-address"):
            port = free_port()
            if flag == "--metrics-address":
                self.ports[who] = port
            return f"{flag}=127.0.0.1:{port}"
        host = {"/host": "machine", "/host/proc": "proc", "/host/cgroup": "cgroup"}.get(value)
        mounted = value if host is None else self._folder / host
        if str(mounted).startswith("/etc/"):
            return f"{flag}={self._folder}"
        return f"{flag}={mounted}" if value else argument

    def _places(self, who: str) -> list[str]:
        folder, access = self._folder, ["--kubeconfig", str(self._kubeconfig)]
        if who == "controller":
            return access
        if who == "nri":
            places = {"--state-dir": "state", "--socket": "nri.sock", "--bundles": "bundles"}
        else:
            places = {"--root": "machine", "--kubelet-root": "kubelet", "--cdi-dir": "cdi"}
        named = [part for flag, name in places.items() for part in (flag, str(folder / name))]
        return [*access, "--node-name", NODE, *named]

    def log(self, who: str) -> str:
        return (self._folder / f"{who}.log").read_text()[-3000:]

    def scraped(self, who: str, *wanted: str) -> dict[str, Metric]:
        """By name, once there are samples of those."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.ports[who]}/metrics", timeout=PATIENCE
                ) as got:
                    text = got.read().decode()
            except OSError:
                text = ""
            assert "_created" not in text
            found = {
                each.name + "_total" * (each.type == "counter"): each
                for each in text_string_to_metric_families(text)
            }
            if found and all(each in found and found[each].samples for each in wanted):
                return found
            assert time.monotonic() < deadline, self.log(who)
            time.sleep(0.2)


@pytest.fixture(scope="module", params=["", "legacy"], ids=["base", "legacy"])
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Installed, str]]:
    component = request.param
    folder, stop = tmp_path_factory.mktemp("installed"), threading.Event()
    (folder / "built").mkdir()
    documents = built(folder / "built", *([component] if component else []))
    plane = ControlPlane(folder / "plane")
    plane.start(stop)
    client = new_client(str(plane.kubeconfig))
    client.create(NODES, {"metadata": {"name": NODE}})
    for name, document in documents.items():
        if name[0] == "DeviceClass":
            client.create(DEVICE_CLASSES, document)
    processes = Installed(folder, documents, plane.kubeconfig)
    with ExitStack() as running:
        for who in ("controller", "kubelet-plugin", "nri"):
            running.enter_context(processes.running(who))
        deadline = time.monotonic() + PATIENCE
        while not client.list(RESOURCE_SLICES)[0]:
            assert time.monotonic() < deadline, processes.log("kubelet-plugin")
            time.sleep(0.2)
        yield processes, component
    stop.set()
    plane.close()


@pytest.mark.parametrize("who", ["controller", "kubelet-plugin", "nri"])
def test_what_is_served_is_what_is_documented(installed: tuple[Installed, str], who: str) -> None:
    processes, component = installed
    found = processes.scraped(who, *(LEADERS if who == "controller" else ("koordra_build_info",)))
    declared = {each.name: each for each in of_process(who, component)}
    assert found.keys() == declared.keys()
    said = rows(PAGE.read_text())
    assert declared.keys() <= {**said["every process"], **said[who]}.keys()
    for name, family in found.items():
        instrument = declared[name]
        assert {**said["every process"], **said[who]}[name] == (
            family.type,
            frozenset(label.name for label in instrument.labels),
        )
        assert family.documentation == instrument.meaning
        seen = set()
        for sample in family.samples:
            values = {key: value for key, value in sample.labels.items() if key != "le"}
            assert values.keys() == {label.name for label in instrument.labels}, name
            for label in instrument.labels:
                assert label.bound or values[label.name] in label.values, (name, label.name, values)
            seen.add(tuple(values[label.name] for label in instrument.labels))
        assert not instrument.labels or seen >= set(instrument.known_values()), name


def test_the_capacity_of_the_node_is_there(installed: tuple[Installed, str]) -> None:
    processes, _ = installed
    found = processes.scraped("controller", *LEADERS)

    def rows_of(name: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(one.labels[key] for key in sorted(one.labels)): one.value for one in found[name].samples
        }

    devices = rows_of("koordra_cluster_devices")
    assert (
        sum(number for (_, state, type_), number in devices.items() if (state, type_) == ("free", "gpu")) == 8
    )
    assert rows_of("koordra_node_devices") == {
        (model, NODE, state, type_): number for (model, state, type_), number in devices.items()
    }
    assert rows_of("koordra_cluster_nodes") == {("ready",): 1, ("not_ready",): 0}
