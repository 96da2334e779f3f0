"""koordra's image, made here by its recipe: what is in it, and controller, plugin and hook that run as it on
a real containerd, as the pods of deploy/kustomize."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from koordra import __version__
from koordra.api import kinds, names, objects
from koordra_devcluster.demo.installation import Installation, free_port
from tests.cluster.nodes import add_node
from tests.cluster.test_joint_allocation import Workload, joint, ordinary_memlock, request
from tests.e2e import koordra_image
from tests.e2e.conftest import CACHE, runtime_of
from tests.e2e.containerd import Containerd, wait_until
from tests.e2e.cri import ContainerSpec, compile_proto
from tests.e2e.debian import Unavailable
from tests.e2e.manifest_pod import ManifestPod, template
from tests.e2e.node import NAMESPACE, NODE, KoordraNode
from tests.e2e.test_containers import ALLOWED, REFUSED, node_of, opens
from tests.e2e.watched_node import BUNDLES
from tests.fakes.moved_pods import Places, moved

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MOST = 250_000_000
"""Bytes of the image on a node."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made anew, or KOORDRA_IMAGE_ARCHIVE, an OCI archive of an image that was made before."""
    if there := os.environ.get("KOORDRA_IMAGE_ARCHIVE"):
        return Path(there)
    try:
        return koordra_image.build(tmp_path_factory.mktemp("image"), base=CACHE / "koordra-base")
    except Unavailable as error:
        pytest.skip(f"no image can be made: {error}")


@pytest.fixture(scope="module")
def containerd(
    request: pytest.FixtureRequest, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """One of its own, with koordra's image."""
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        runtime = Containerd(
            runtime_of(request.config), Path(folder), modules, snapshotter=snapshotter(Path(folder))
        )
        try:
            runtime.start()
            runtime.import_archive(archive)
            yield runtime
        finally:
            runtime.clean_up()


def snapshotter(folder: Path) -> str:
    """Overlayfs, where it can be mounted: "native" copies the whole image for every container."""
    parts = {name: folder / f"overlay-{name}" for name in ("lowerdir", "upperdir", "workdir", "merged")}
    for path in parts.values():
        path.mkdir()
    merged = parts.pop("merged")
    options = ",".join(f"{name}={path}" for name, path in parts.items())
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return "native"
    subprocess.run(["umount", str(merged)], check=True)
    return "overlayfs"


class ImageNode(KoordraNode):
    """The node side and the controller are pods; the control plane is the double, on the node's network."""

    def __init__(self, folder: Path, runtime: Containerd, image: str) -> None:
        super().__init__(folder, cdi=runtime.cdi, nri_socket=runtime.nri_socket)
        places = Places(
            machine=self.root,
            kubelet=self.kubelet_root,
            cdi=self.cdi,
            nri=runtime.nri_socket,
            bundles=runtime.folder / BUNDLES,
            hook=folder / "hook",
        )

        def pod(path: str, *options: str) -> ManifestPod:
            made = ManifestPod(
                moved(template(path), places),
                folder,
                runtime=runtime,
                image=image,
                shown=[folder / "api"],
            )
            address = f"--metrics-address=127.0.0.1:{free_port()}"
            made.options = ("--kubeconfig", str(self.kubeconfig), address, *options)
            return made

        self.plugin = pod("kubelet-plugin/daemonset.yaml", "--allowed-isolation=none")
        self.hook = pod("nri/daemonset.yaml")
        self.port = free_port()
        webhook = f"--webhook-address=127.0.0.1:{self.port}"
        self.controller = pod("controller/deployment.yaml", webhook, "--webhook-host=127.0.0.1")

    def start(self) -> None:
        """The state is a mount that pods share with the node, as the manifest has it."""
        self.state.mkdir(parents=True)
        for words in (["--bind", self.state, self.state], ["--make-shared", self.state]):
            subprocess.run(["mount", *map(str, words)], check=True)
        super().start()
        self.kubeconfig.chmod(0o644)  # the controller is nobody
        self.api.delete(kinds.NODES, NODE)
        add_node(self.api, NODE)
        installation = Installation(self.api, self.port)
        installation.apply()
        self.controller.start()
        wait_until(installation.webhook_answers, "the webhook", log=self.controller.log)

    @property
    def _registration(self) -> Path:
        """Each pod of the plugin has a socket of its own."""
        (found,) = (self.kubelet_root / "plugins_registry").glob("*-reg.sock")
        return found

    def stop(self) -> None:
        self.controller.stop()
        super().stop()
        subprocess.run(["umount", "-l", str(self.state)], check=False)


@pytest.fixture(scope="module")
def node(containerd: Containerd, archive: Path) -> Iterator[ImageNode]:
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        koordra = ImageNode(Path(folder), containerd, koordra_image.name_of(archive))
        try:
            koordra.start()
            yield koordra
        finally:
            koordra.stop()


def test_it_is_small_and_nobodys(archive: Path) -> None:
    """And has what its programs run, and nothing to test them with or to install more."""
    files = koordra_image.files_of(archive)
    assert sum(files.values()) <= MOST
    config = koordra_image.config_of(archive)
    assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["koordra"])
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert any(name.endswith("/site-packages/koordra/cli/main.py") for name in files)
    assert files.keys() >= {f"opt/koordra/lib/{name}" for name in ("koordra-cdi-hook", "libcuda.so.1")}
    for unwanted in ("/koordra_devcluster/", "/site-packages/pip/", "/site-packages/pytest/", "/tests/"):
        assert not [name for name in files if unwanted in f"/{name}"], unwanted
    assert not {"usr/bin/apt-get", "usr/bin/pip", "usr/local/bin/pip", "usr/bin/perl"} & files.keys()


def test_a_pod_gets_its_share_and_nic_from_them(containerd: Containerd, node: ImageNode) -> None:
    """Admitted and placed by the controller, prepared by the plugin, guarded by the hook."""
    workload = Workload(node.api, NAMESPACE)
    wanted = [request("gpu", names.CLASS_GPU, memory="10Gi"), request("nic", names.CLASS_NIC, share="10")]
    workload.claim("pair", wanted, [joint("gpu", "nic"), ordinary_memlock("nic")])
    workload.pod("worker", claim="pair")
    claim = workload.allocated("pair")
    gpu, nic = (result["device"] for result in claim["status"]["allocation"]["devices"]["results"])
    answer = node.call_prepare("pair", objects.uid(claim))
    assert answer.error == ""
    cdi = tuple(device for each in answer.devices for device in each.cdi_device_ids)
    pod = containerd.cri.run_pod(
        "worker", uid=objects.uid(node.api.get(kinds.PODS, "worker", namespace=NAMESPACE))
    )
    try:
        started = containerd.cri.run(pod, "main", ContainerSpec(cdi=cdi))
        given = next(each for each in node.machine.gpus if each.name == gpu)
        other = next(each for each in node.machine.gpus if each.name != gpu)
        assert ALLOWED in opens(containerd, started, node_of(given))
        assert REFUSED in opens(containerd, started, node_of(other))
        beside = next(each for each in node.machine.nics if each.name == nic)
        assert beside.location.switch == given.location.switch
    finally:
        containerd.cri.remove_pod(pod)


def test_a_privileged_pod_of_nobodys_is_refused_by_the_hook(containerd: Containerd, node: ImageNode) -> None:
    del node
    pod = containerd.cri.run_pod("thief", privileged=True)
    try:
        with pytest.raises(grpc.RpcError, match="it is privileged"):
            containerd.cri.run(pod, "main", ContainerSpec(privileged=True))
    finally:
        containerd.cri.remove_pod(pod)


def test_each_is_replaced_while_the_pods_run(containerd: Containerd, node: ImageNode) -> None:
    node.restart_plugin(*node.plugin.options)
    for process, said in ((node.hook, "nri_synchronized"), (node.controller, "leadership_taken")):
        times = process.count(said)
        process.kill()
        process.start()
        process.wait_for(said, times=times + 1)
