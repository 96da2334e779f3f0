"""Shares that change while they run, on a real API server: koordra's controller and webhook as they are
installed, the plugin with the rights of its ServiceAccount, and the region of the claim on its disk."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from koordra.api import kinds, objects
from koordra.api.objects import Object
from koordra.api.opaque.resize import ANNOTATION
from koordra.errors import ApiError, NotFound
from koordra.kube.client import KubeClient
from koordra.kube.kubeconfig import new_client
from koordra.kubelet_plugin.isolation.limiter import usage
from koordra.topology import presets
from tests.cluster.installation import account_kubeconfig
from tests.cluster.nodes import add_node, remove_node
from tests.cluster.test_joint_allocation import request
from tests.cluster.test_kubelet_plugin import Plugin
from tests.cluster.waiting import eventually
from tests.unit.limiter import native_build

pytestmark = pytest.mark.cluster
NODE = "koordra-test-resize"
CLASS = "koordra-test-resize"
GIB = 1 << 30
OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""


def resizable() -> Object:
    parameters = {
        "apiVersion": "koordra.io/v1alpha1",
        "kind": "GpuConfig",
        "isolation": "limiter",
        "coresPolicy": "Hard",
        "resize": {"memory": {"min": "2Gi", "max": "40Gi"}, "cores": {"min": 5, "max": 50}},
    }
    expression = (
        'device.driver == "koordra.io" && device.attributes["koordra.io"].type == "gpu" && '
        'device.attributes["koordra.io"].allocator == "scheduler"'
    )
    return {
        "metadata": {"name": CLASS},
        "spec": {
            "selectors": [{"cel": {"expression": expression}}],
            "config": [{"opaque": {"driver": "koordra.io", "parameters": parameters}}],
        },
    }


class Resized(Plugin):
    node = NODE

    def wish(self, claim: Object, text: str | None) -> None:
        body = {"metadata": {"annotations": {ANNOTATION: text}}}
        self.client.patch(kinds.RESOURCE_CLAIMS, objects.name(claim), body, namespace=self.namespace)

    def region(self, claim: Object) -> Path:
        (found,) = self.folder.rglob(f"limiter/claims/{objects.uid(claim)}")
        return found

    def use(self, claim: Object) -> usage.ClaimUse:
        return usage.read(self.region(claim))

    def card(self, claim: Object) -> usage.CardUse:
        return self.use(claim).devices[0]

    def condition(self, claim: Object, kind: str) -> Object:
        status = objects.status_of(
            self.client.get(kinds.RESOURCE_CLAIMS, objects.name(claim), namespace=self.namespace)
        )
        conditions = [one for entry in status.get("devices") or () for one in entry.get("conditions") or ()]
        return next((one for one in conditions if one["type"] == kind), {})

    def hold(self, claim: Object) -> Object | None:
        owner = f"claim {self.namespace}/{objects.name(claim)}"
        found = self.client.list(kinds.DEVICE_HOLDS, namespace=self.namespace)[0]
        return next((one for one in found if one["spec"]["owner"] == owner), None)

    def events(self, reason: str, claim: Object) -> list[str]:
        found, uid = self.client.list(kinds.EVENTS, namespace=self.namespace)[0], objects.uid(claim)
        return [
            one["message"]
            for one in found
            if one.get("reason") == reason and one["involvedObject"].get("uid") == uid
        ]


@pytest.fixture
def plugin(client: KubeClient, kubeconfig: str, namespace: str) -> Iterator[Resized]:
    native_build.build()  # in a fresh checkout the plugin would find no limiter to offer
    remove_node(client, NODE)
    node = add_node(client, NODE)
    with suppress(NotFound):
        client.delete(kinds.DEVICE_CLASSES, CLASS)
    client.create(kinds.DEVICE_CLASSES, resizable())
    with tempfile.TemporaryDirectory(prefix="k") as name:
        folder = Path(name)
        presets.write_machine(presets.load("hgx-h100"), folder / "machine", serial=NODE)
        own = account_kubeconfig(
            client, kubeconfig, folder / "own", account="koordra-kubelet-plugin", bound_to=node
        )
        command = [
            sys.executable,
            "-m",
            "koordra",
            "kubelet-plugin",
            "--node-name",
            NODE,
            "--kubeconfig",
            own,
        ]
        places = ["--root", folder / "machine", "--kubelet-root", folder, "--cdi-dir", folder / "cdi"]
        found = Resized(client, namespace, folder, new_client(str(own)))
        with found.log.open("wb") as log:
            process = subprocess.Popen([*command, *places, "--limiter-cores"], stderr=log)
        try:
            eventually(found.slices, f"the slices; see {found.log}")
            asked = request("gpu", CLASS, memory="8Gi")
            asked["exactly"]["capacity"]["requests"]["cores"] = "20"
            found.template("share", [asked])
            yield found
            assert process.poll() is None, found.log.read_text()[-3000:]
            assert "orbidden" not in found.log.read_text()
        finally:
            process.terminate()
            process.wait(60)
            found.remove_workloads()
            remove_node(client, NODE)
            client.delete(kinds.DEVICE_CLASSES, CLASS)
            for region in filter(Path.is_mount, folder.rglob("limiter/claims/*")):
                subprocess.run(["umount", str(region)], check=True)


@dataclass
class Program:
    """A process of the claim, behind the limiter and the double of CUDA's driver."""

    process: subprocess.Popen[str]

    def say(self, line: str) -> int:
        """What the driver answers to so many bytes more, or to the last ones given back (0)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@contextmanager
def program_of(plugin: Resized, claim: Object) -> Iterator[Program]:
    """It has 2 GiB."""
    built, world, own = native_build.build(), plugin.folder / "world", plugin.folder / "own-claims"
    for folder in (world, own):
        folder.mkdir()
    (own / objects.uid(claim)).symlink_to(plugin.region(claim))
    tenant = str(built / "test" / "tenant")
    subprocess.run([tenant, "--world", str(world), plugin.card(claim).uuid, str(80 * GIB)], check=True)
    around = native_build.environment(built, regions=own, world=world)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [tenant, str(GIB), "stay"], env=around, stdin=pipe, stdout=pipe, text=True
    ) as found:
        try:
            assert found.stdout is not None
            assert json.loads(found.stdout.readline())["within"] == 0
            yield Program(found)
        finally:
            found.kill()


def test_a_living_process_acts_by_what_its_claim_is_resized_to(plugin: Resized) -> None:
    (pod,) = plugin.replicas("web", 1)
    claim = plugin.claim_of(pod)
    plugin.call("NodePrepareResources", claim)
    with program_of(plugin, claim) as program:
        eventually(lambda: plugin.condition(claim, "Limited").get("status") == "True", "the handshake")
        assert program.say(str(7 * GIB)) == OUT_OF_MEMORY

        plugin.wish(claim, json.dumps({"gpu": {"memory": "12Gi", "cores": 30}}))
        eventually(lambda: plugin.condition(claim, "Resized").get("status") == "True", "the condition")
        assert plugin.condition(claim, "Resized")["message"] == (
            "memory 12Gi (allocated 8Gi), cores 30% (allocated 20%), Hard: all 1 processes act by it, 1 of them from their next call on"
        )
        assert len(plugin.use(claim).behind) == 1
        assert program.say(str(7 * GIB)) == 0
        assert plugin.use(claim).behind == ()

        plugin.wish(claim, json.dumps({"gpu": {"memory": "4Gi"}}))
        eventually(lambda: plugin.condition(claim, "Resized").get("reason") == "InUse", "memory in use")
        assert plugin.card(claim).limit == 12 * GIB, "as long as it is in use"
        assert program.say("0") == 0
        eventually(lambda: plugin.card(claim).limit == 4 * GIB, "the lower limit")
        assert program.say(str(7 * GIB)) == OUT_OF_MEMORY
        assert plugin.use(claim).behind == ()
        eventually(lambda: plugin.condition(claim, "Resized").get("status") == "True", "the condition")
        hold = plugin.hold(claim)
        eventually(
            lambda: (hold := plugin.hold(claim)) and not hold["spec"]["seats"][0]["devices"],
            f"the end of what was held; {hold}",
        )


def test_a_running_share_grows_and_shrinks(plugin: Resized) -> None:
    (pod,) = plugin.replicas("web", 1)
    claim = plugin.claim_of(pod)
    plugin.call("NodePrepareResources", claim)
    assert (plugin.card(claim).limit, plugin.card(claim).rate) == (8 * GIB, 2000)

    with pytest.raises(ApiError, match="memory: 50Gi is asked for, the class allows 2Gi to 40Gi"):
        plugin.wish(claim, json.dumps({"gpu": {"memory": "50Gi"}}))
    assert plugin.hold(claim) is None

    plugin.wish(claim, json.dumps({"gpu": {"memory": "12Gi", "cores": 30}}))
    eventually(lambda: plugin.card(claim).limit == 12 * GIB, "the limit")
    assert plugin.card(claim).rate == 3000
    eventually(lambda: plugin.condition(claim, "Resized").get("status") == "True", "the condition")
    assert (
        "memory 12Gi (allocated 8Gi), cores 30% (allocated 20%)"
        in plugin.condition(claim, "Resized")["message"]
    )
    (told,) = eventually(lambda: plugin.events("Resized", claim), "the Event")
    assert "12Gi" in told
    hold = plugin.hold(claim)
    assert hold is not None
    (held,) = hold["spec"]["seats"][0]["devices"]
    assert held["consumedCapacity"] == {"cores": "10", "memory": "4Gi"}

    plugin.wish(claim, json.dumps({"gpu": {"memory": "4Gi"}}))
    eventually(lambda: plugin.card(claim).limit == 4 * GIB, "the lower limit")

    def nothing_held() -> bool:
        now = plugin.hold(claim)
        return now is not None and not now["spec"]["seats"][0]["devices"]

    eventually(nothing_held, "what was held is let go")
    plugin.wish(claim, None)
    eventually(lambda: plugin.card(claim).limit == 8 * GIB, "the allocation")
    eventually(lambda: plugin.hold(claim) is None, "the hold's end")
    eventually(lambda: not plugin.condition(claim, "Resized"), "the condition's end")
