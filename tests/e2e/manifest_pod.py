"""A pod of a manifest, on a real containerd, by what the kubelet does: variables from fields, volumes,
security context, log."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from koordra import quantity
from tests.conftest import ROOT
from tests.e2e.containerd import Containerd
from tests.e2e.cri import ContainerSpec, HostMount
from tests.e2e.node import NODE, Process

NAMESPACE: Final = "koordra-system"


def template(path: str) -> dict[str, Any]:
    """The pod's spec in a workload below deploy/kustomize."""
    return dict(
        yaml.safe_load((ROOT / "deploy" / "kustomize" / path).read_text())["spec"]["template"]["spec"]
    )


class ManifestPod(Process):
    """One container of koordra's image, in place of a process of this checkout. `shown`: files and folders of
    the host that it sees besides the manifest's, under their own path."""

    def __init__(
        self,
        pod: Mapping[str, Any],
        folder: Path,
        *,
        runtime: Containerd,
        image: str,
        shown: Sequence[Path] = (),
    ) -> None:
        (self._spec,) = pod["containers"]
        super().__init__(self._spec["name"], self._spec["args"], folder)
        self._pod, self._runtime, self._image, self._shown = pod, runtime, image, shown
        self._folder = folder / f"pod-{self.name}"
        self._uid = str(uuid.uuid4())
        self._made: tuple[str, str] | None = None

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        pod = self._runtime.cri.run_pod(
            self.name,
            namespace=NAMESPACE,
            uid=self._uid,
            host_pid=bool(self._pod.get("hostPID")),
            privileged=self._is_privileged,
            logs=str(self.log.parent),
        )
        self._made = (pod, self._runtime.cri.run(pod, self.name, self._container()))

    @property
    def container(self) -> str:
        assert self._made is not None
        return self._made[1]

    def alive(self) -> bool:
        assert self._runtime.cri.is_running(self.container), f"{self.name} ended: {self.log.read_text()}"
        return True

    @property
    def _is_privileged(self) -> bool:
        return bool(self._spec["securityContext"].get("privileged"))

    def _container(self) -> ContainerSpec:
        security = {**self._pod.get("securityContext", {}), **self._spec["securityContext"]}
        return ContainerSpec(
            image=self._image,
            command=(),
            args=[*self._arguments, *self.options],
            env={each["name"]: self._value(each) for each in self._spec.get("env", ())},
            mounts=[*self._mounts(), *(HostMount(str(path), str(path), True) for path in self._shown)],
            privileged=self._is_privileged,
            capabilities=(),
            dropped=security.get("capabilities", {}).get("drop", ()),
            read_only_root=security["readOnlyRootFilesystem"],
            user=security["runAsUser"],
            memory=int(quantity.parse(self._spec["resources"].get("limits", {}).get("memory", "0"))),
            log=self.log.name,
        )

    def _value(self, variable: Mapping[str, Any]) -> str:
        fields = {"spec.nodeName": NODE, "metadata.uid": self._uid, "metadata.namespace": NAMESPACE}
        source = variable.get("valueFrom")
        return fields[source["fieldRef"]["fieldPath"]] if source else str(variable["value"])

    def _mounts(self) -> list[HostMount]:
        """Mounts of the node that come later (HostToContainer) need one that is shared, as systemd makes
        /; tests/cluster/test_installed.py has them."""
        volumes = {volume["name"]: volume for volume in self._pod["volumes"]}
        return [
            HostMount(
                self._source(volumes[mount["name"]]),
                mount["mountPath"],
                mount.get("readOnly", False),
                "Bidirectional" if mount.get("mountPropagation") == "Bidirectional" else "",
            )
            for mount in self._spec["volumeMounts"]
            if "configMap" not in volumes[mount["name"]]
        ]

    def _source(self, volume: Mapping[str, Any]) -> str:
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            path.mkdir(parents=True, exist_ok=True)
            return str(path)
        empty = self._folder / volume["name"]
        empty.mkdir(exist_ok=True)
        empty.chmod(0o777)
        return str(empty)

    def _end(self, number: int) -> None:
        if self._made is None:
            return
        pod, container = self._made
        if number == signal.SIGKILL:
            self._runtime.ctr("task", "kill", "-s", "SIGKILL", container)
        self._runtime.cri.remove_pod(pod)
        self._made = None
