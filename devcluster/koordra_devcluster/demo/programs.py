"""The programs of a run, their arguments and their places: what follows from the nodes and from what is
needed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.api.objects import Object
from koordra.api.opaque.isolation_words import NO_ISOLATION
from koordra.topology.presets import Preset
from koordra_devcluster.controllers.operators.definitions import definitions
from koordra_devcluster.demo import gangs, limiter, manifests
from koordra_devcluster.demo.installation import documents, free_port, own_definitions, shipped
from koordra_devcluster.demo.needs import Needs
from koordra_devcluster.demo.processes import Program


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything of one run lies."""

    folder: Path
    nodes: tuple[str, ...]

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def prometheus(self) -> Path:
        return self.folder / "prometheus.yml"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    @property
    def longest_socket(self) -> int:
        """Bytes of the longest path of a unix socket below; the kernel takes 107."""
        registration = "kubelet/plugins_registry/koordra.io-reg.sock"
        return max(len(os.fsencode(self.node(name) / registration)) for name in self.nodes)


def installed(needs: Needs) -> list[Object]:
    """What is in the cluster before anybody's manifests: definitions of kinds, classes, and all that comes
    with koordra's webhook where that is needed."""
    own = [*own_definitions(), *manifests.device_classes(manifests.deploy_folder())]
    if needs.webhook:
        own = [
            obj
            for obj in shipped(needs.components)
            if obj["kind"] in ("CustomResourceDefinition", "DeviceClass")
        ]
    return [*own, *(one for operator in needs.operators for one in definitions(operator))]


def control_plane(layout: Layout, *, port: int, needs: Needs) -> list[Program]:
    """The API server and its loops, on a port that stays the same when they are started again."""
    arguments = ("devcluster", "control-plane", "--dir", str(layout.folder), "--port", str(port))
    more = [part for operator in needs.operators for part in ("--operator", operator)]
    more += [part for gate in needs.gates for part in ("--feature-gate", gate)]
    return [Program("control-plane", (*arguments, "--kubeconfig", str(layout.kubeconfig), *more))]


def node_programs(
    layout: Layout, machines: Mapping[str, Preset], *, needs: Needs, webhook_port: int
) -> list[Program]:
    """The controller, and for each node its kubelet, koordra's kubelet plugin and koordra's NRI hook."""
    access = ("--kubeconfig", str(layout.kubeconfig))
    served = _served(needs, webhook_port)
    programs = [Program("controller", ("controller", "--no-leader-elect", *access, *served, *_metrics()))]
    labelled = gangs.node_labels(layout.nodes)
    for name, machine in machines.items():
        folder = layout.node(name)
        state = folder / "kubelet" / "plugins" / "koordra.io"
        # Without it, a container created before the hook has registered would be made without the hook.
        required = ("--required-nri-plugin", "koordra")
        labels = tuple(part for label in labelled[name] for part in ("--label", label))
        kubelet = (
            "devcluster",
            "kubelet",
            "--node-name",
            name,
            "--dir",
            str(folder),
            *access,
            *required,
            *labels,
            *(("--run-commands",) if needs.commands else ()),
        )
        # Without the limiter's libraries (make native) the demo's operator allows shares that nothing limits.
        isolation = () if limiter.is_built() else ("--allowed-isolation", NO_ISOLATION)
        plugin = (
            "kubelet-plugin",
            "--node-name",
            name,
            "--root",
            str(folder / "machine"),
            *isolation,
            *(("--overlay", str(machine.overlay)) if machine.overlay else ()),
            *access,
            # Machines without either offer nothing else by them.
            "--mig",
            "--vfs",
            *(part for resource in needs.cni_resources for part in ("--cni-resource", f"vf={resource}")),
        )
        places = ("--kubelet-root", str(folder / "kubelet"), "--cdi-dir", str(folder / "cdi"))
        hook = ("nri", "--node-name", name, "--state-dir", str(state), "--socket", str(folder / "nri.sock"))
        programs += [
            Program(f"kubelet-{name}", kubelet),
            Program(f"kubelet-plugin-{name}", (*plugin, *places, *_metrics())),
            Program(f"nri-{name}", (*hook, *_metrics())),
        ]
    return programs


_METRICS: Final = "--metrics-address"


def _metrics() -> tuple[str, str]:
    return _METRICS, f"127.0.0.1:{free_port()}"


def write_prometheus(layout: Layout, programs: Iterable[Program]) -> None:
    """A configuration for a Prometheus of yours: koordra's programs, by the labels that the component
    service-monitor gives them, and the shipped rules."""
    rules = []
    for path, obj in documents(folders=("prometheus-rules",)):
        rules.append(f"{path.stem}.rules.yml")
        (layout.folder / rules[-1]).write_text(json.dumps(obj["spec"]))
    targets = []
    for program in programs:
        if _METRICS in program.arguments:
            job = program.arguments[0]
            node = program.name.removeprefix(job).removeprefix("-")
            address = program.arguments[program.arguments.index(_METRICS) + 1]
            labels = {"job": job, "namespace": "koordra-system", "instance": node or address}
            targets.append({"targets": [address], "labels": labels})
    scraped = {"job_name": "koordra", "honor_labels": True, "static_configs": targets}
    document = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
        "rule_files": rules,
        "scrape_configs": [scraped],
    }
    layout.prometheus.write_text(json.dumps(document, indent=1))  # which is YAML


def _served(needs: Needs, webhook_port: int) -> tuple[str, ...]:
    """The controller's arguments: its port, on which `koordra explain` asks it, and what the manifests need
    of its webhook."""
    legacy = ("--legacy-pods",) if needs.webhook else ()
    elastic = ("--elastic-gpu",) if needs.webhook and needs.elastic else ()
    training = ("--training-jobs",) if needs.webhook and needs.training else ()
    address = ("--webhook-address", f"127.0.0.1:{webhook_port}", "--webhook-host", "127.0.0.1")
    return (*address, *legacy, *elastic, *training)
