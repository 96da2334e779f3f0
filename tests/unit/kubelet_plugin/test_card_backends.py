"""Backends that do something to a card: MPS and time-slicing, against strict doubles of nvidia-smi and
nvidia-cuda-mps-control. The daemon of the double is a process, which outlives the plugin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.api.opaque.isolation import IsolationPolicy
from koordra.api.opaque.parameters import GpuConfig
from koordra.errors import PrepareError
from koordra.kubelet_plugin.claims.claim_record import ClaimRecord
from koordra.kubelet_plugin.isolation.backend import Card, Share
from koordra.kubelet_plugin.isolation.card_watch import CardWatch, node_backends
from koordra.kubelet_plugin.isolation.mps.backend import MpsIsolation
from koordra.kubelet_plugin.isolation.packages import backends
from koordra.kubelet_plugin.isolation.timeslicing import TimeSlicing
from koordra.kubelet_plugin.nvidia_driver.card_settings import CardSettings
from koordra.kubelet_plugin.nvidia_driver.driver_programs import DriverPrograms
from koordra.kubelet_plugin.prepare.device_state import DeviceState
from koordra.kubelet_plugin.publish.offering import Offering
from koordra.kubelet_plugin.settings import Settings
from koordra.kubelet_plugin.status.claim_status import with_looks
from koordra.node_state.layout import mps_namespace
from tests.fakes import mps_control
from tests.fakes.node_claims import GPU_0, GPU_1, NODE, claim, gpu, parameters, uid
from tests.patience import PATIENCE
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare, ref_of, refusal


class Cards:
    """What the driver knows of the node's cards, over all lives of the plugin."""

    def __init__(self, folder: Path, node: PluginNode) -> None:
        self.folder, self.node = folder, node
        folder.mkdir()
        for card in node.inventory.machine.gpus:
            self.set(str(card.uuid), mode="DEFAULT", timeslice=0)

    def set(self, uuid: str, **fields: object) -> None:
        file = self.folder / uuid
        file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **fields}))

    def of(self, device: str = GPU_0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / self.uuid(device)).read_text())
        return found

    def uuid(self, device: str = GPU_0) -> str:
        return str(self.node.inventory.attributes(device)["koordra.io/uuid"])

    def command(
        self, name: str, arguments: Sequence[str], env: Mapping[str, str], *, shm: Path | None = None
    ) -> list[str]:
        assert (shm is not None) == ("-d" in arguments)
        words = [f"{key}={value}" for key, value in env.items()]
        own = [sys.executable, "-S", mps_control.__file__, str(self.folder), name, *arguments]
        return ["env", "-i", *words, *own]

    @property
    def pipe(self) -> Path:
        third = (self.folder / "mps-v3").exists()
        return self.node.paths.state / "mps" / "cards" / GPU_0 / ("v3" if third else "pipe")

    def says(self, command: str) -> str:
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}
        return DriverPrograms(self.command).run("nvidia-cuda-mps-control", env=env, said=command)

    def client(self, number: int) -> str:
        """What a client in the claim's own namespace has (MPS v3)."""
        return self.told("client", "7", mps_namespace(uid(number)))

    def told(self, *words: str) -> str:
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}
        return DriverPrograms(self.command).run("nvidia-cuda-mps-control", *words, env=env)

    def kill_daemon(self) -> None:
        os.kill(int((self.pipe / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)


@pytest.fixture
def cards(node: PluginNode, tmp_path: Path) -> Iterator[Cards]:
    yield from cards_of(node, tmp_path)


def cards_of(node: PluginNode, tmp_path: Path) -> Iterator[Cards]:
    found = Cards(tmp_path / "driver", node)
    offering = Offering(isolation=IsolationPolicy(("mps", "timeslicing", "limiter")))
    node.inventory = replace(node.inventory, offering=offering)
    programs = DriverPrograms(found.command)
    settings = CardSettings(programs)
    shm = lambda folder: folder.mkdir(exist_ok=True)  # noqa: E731
    mps = MpsIsolation(node.paths.state, programs, settings, make_shm=shm)
    node.backends = backends(mps, TimeSlicing(settings))
    yield found
    for file in node.paths.state.glob("mps/cards/*/*/nvidia-cuda-mps-control.pid"):
        try:
            os.kill(int(file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            continue


def share(number: int, device: str = GPU_0, memory: str = "10Gi", **config: Any) -> dict[str, Any]:
    cores = config.pop("cores", "30")
    name = config.pop("namespace", "team-a")
    wanted = {"isolation": "mps", **config}
    obj = claim(
        number,
        gpu("gpu", device, memory, cores=cores, share=f"s{number}"),
        config=[parameters("GpuConfig", **wanted)],
    )
    obj["metadata"]["namespace"] = name
    return obj


def problems(plugin: DeviceState) -> dict[str, str]:
    return {device: look.problem for device, look in plugin.look_at_cards().items() if look.problem}


def env_of(record: ClaimRecord) -> dict[str, str]:
    return dict(record.devices[0].edits.env)


def test_a_share_of_mps_is_a_client_of_the_cards_own_server(cards: Cards, node: PluginNode) -> None:
    record = prepare(node, share(1))
    env = env_of(record)
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/koordra/mps/pipe"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert "CUDA_VISIBLE_DEVICES" not in env
    mounts = {mount.container_path: mount for mount in record.devices[0].edits.mounts}
    assert "ro" in mounts["/run/koordra/mps/pipe"].options
    assert "rw" in mounts["/dev/shm"].options
    assert all(Path(mounts[path].host_path).is_dir() for path in ("/run/koordra/mps/pipe", "/dev/shm"))
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    assert cards.says("client 7 0") == "30 10240M\n"
    assert cards.of(GPU_1)["mode"] == "DEFAULT"


def test_the_daemons_limits_are_those_of_the_largest_share_there_is(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    assert cards.says("client 7 0") == "30 10240M\n"
    prepare(node, share(2, memory="20Gi", cores="50"))
    assert cards.says("client 8 1") == "50 20480M\n"
    assert cards.says("client 9 0") == "50 20480M\n", "also of a server that runs already"
    node.plugin().unprepare(ref_of(share(2)))
    assert cards.says("client 10 2") == "30 10240M\n"


def test_the_last_share_leaves_the_card_as_it_was(cards: Cards, node: PluginNode) -> None:
    cards.set(cards.uuid(), mode="PROHIBITED")
    plugin = node.plugin()
    for number in (1, 2):
        node.claims.put(share(number))
        plugin.prepare(ref_of(share(number)))
    plugin.unprepare(ref_of(share(1)))
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    daemon = Path("/proc") / (cards.pipe / "nvidia-cuda-mps-control.pid").read_text()
    plugin.unprepare(ref_of(share(2)))
    deadline = time.monotonic() + PATIENCE
    while daemon.exists() and "Z" not in (daemon / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the daemon has not ended"
        time.sleep(0.01)
    assert cards.of()["mode"] == "PROHIBITED"
    assert not cards.pipe.parent.exists()
    assert not node.checkpoint().cards


def test_a_daemon_that_is_gone_is_started_again_and_nobody_gets_past_it(
    cards: Cards, node: PluginNode
) -> None:
    plugin = node.plugin()
    node.claims.put(share(1))
    plugin.prepare(ref_of(share(1)))
    assert problems(plugin) == {}
    cards.kill_daemon()
    cards.set(cards.uuid(), refuses="the card is busy")
    (problem,) = problems(plugin).values()
    assert "the card is busy" in problem, "it is PROHIBITED before the daemon is started"
    cards.set(cards.uuid(), refuses=None)
    assert problems(plugin) == {}
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    assert cards.says("client 7 0") == "30 10240M\n"


def test_a_plugin_that_starts_finds_the_daemon_or_starts_it(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    before = (cards.pipe / "nvidia-cuda-mps-control.pid").read_text()
    problems(node.plugin())
    assert (cards.pipe / "nvidia-cuda-mps-control.pid").read_text() == before
    cards.kill_daemon()
    problems(node.plugin())
    assert cards.says("client 7 0") == "30 10240M\n"


def test_between_two_plugins_nobody_gets_the_card_without_limits(cards: Cards, node: PluginNode) -> None:
    plugin = node.plugin()
    for obj in (share(1), share(2, GPU_1, isolation="timeslicing")):
        node.claims.put(obj)
        plugin.prepare(ref_of(obj))
    plugin.suspend_cards()
    assert (cards.of()["mode"], cards.of(GPU_1)["mode"]) == ("PROHIBITED", "DEFAULT")
    assert problems(node.plugin()) == {}
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    cards.set(cards.uuid(), refuses="in use by another client")
    plugin.suspend_cards()  # what fails holds the end of the plugin back no longer


def test_a_mode_that_somebody_else_set_is_told_and_put_right(cards: Cards, node: PluginNode) -> None:
    plugin = node.plugin()
    node.claims.put(share(1))
    plugin.prepare(ref_of(share(1)))
    cards.set(cards.uuid(), mode="DEFAULT")
    assert problems(plugin) == {
        GPU_0: "its compute mode was DEFAULT, set by somebody else: programs could run past MPS"
    }
    assert problems(plugin) == {}


def test_a_server_with_a_fault_is_told(cards: Cards, node: PluginNode) -> None:
    plugin = node.plugin()
    node.claims.put(share(1))
    plugin.prepare(ref_of(share(1)))
    cards.says("client 7 0")
    cards.says("fault")
    (problem,) = problems(plugin).values()
    assert problem.startswith("MPS server 1000 is in FAULT")


def test_a_card_is_one_fault_domain_and_a_namespaces(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    why = refusal(node, share(2, namespace="team-b"))
    assert why.endswith(
        "isolation mps: a fault of one client ends all of its card, so a card is for claims of one namespace, where its node's plugin "
        "has no --mps-shared; this one has claims of team-a"
    )
    prepare(node, share(2, GPU_1, namespace="team-b"))


@pytest.mark.parametrize("shared", [False, True])
def test_a_card_is_of_several_namespaces_where_the_operator_says_so(
    shared: bool, node: PluginNode, tmp_path: Path
) -> None:
    mps, *_ = node_backends(Settings(NODE, tmp_path, node.paths, offering=Offering(mps_shared=shared)))
    first, second = (
        Share(uid(number), 0, GPU_0, uuid="GPU-1", memory_bytes=1, cores=None, namespace=namespace)
        for number, namespace in enumerate(("team-a", "team-b"))
    )
    why = mps.fits(second, GpuConfig(), Card(GPU_0, "GPU-1", (first, second)))
    assert (why is None) is shared


@pytest.mark.parametrize("word", ["mps", "timeslicing"])
def test_an_instance_of_a_card_has_no_modes_of_its_own(cards: Cards, node: PluginNode, word: str) -> None:
    part = Share(uid(1), 0, GPU_0, uuid="MIG-1", memory_bytes=None, cores=None)
    why = node.backends[word].fits(part, GpuConfig(), Card(part.device, part.uuid, (part,)))
    assert why is not None
    assert "no instance of one" in why


def test_a_claim_of_two_cards_is_refused(cards: Cards, node: PluginNode) -> None:
    obj = claim(
        1,
        gpu("gpu", GPU_0, "10Gi"),
        gpu("gpu", GPU_1, "10Gi"),
        config=[parameters("GpuConfig", isolation="mps")],
    )
    assert "shares of 2 cards, and a process is the client of one MPS daemon" in refusal(node, obj)
    assert cards.of()["mode"] == "DEFAULT"


def test_without_the_program_nothing_is_left(cards: Cards, node: PluginNode) -> None:
    def nothing(*_: object, **__: object) -> list[str]:
        raise PrepareError("the node's GPU driver has no nvidia-cuda-mps-control")

    programs = DriverPrograms(nothing)
    settings = CardSettings(DriverPrograms(cards.command))
    own = MpsIsolation(node.paths.state, programs, settings, make_shm=lambda folder: None)
    assert own.unavailable == "the node's GPU driver has no nvidia-cuda-mps-control"
    node.backends = {**node.backends, "mps": own}
    assert "has no nvidia-cuda-mps-control" in refusal(node, share(1))
    assert cards.of()["mode"] in {"DEFAULT", "PROHIBITED"}


@pytest.mark.parametrize(("first", "second"), [("mps", "timeslicing"), ("timeslicing", "limiter")])
def test_a_card_is_kept_in_one_way(cards: Cards, node: PluginNode, first: str, second: str) -> None:
    prepare(node, share(1, isolation=first))
    before = cards.of()
    why = refusal(node, share(2, isolation=second))
    assert f"requested {second}, and ResourceClaim team-a/claim-1 has a share with {first}" in why
    assert cards.of() == before


def test_time_slices_are_one_length_for_a_card(cards: Cards, node: PluginNode) -> None:
    cards.set(cards.uuid(), mode="EXCLUSIVE_PROCESS")
    plugin = node.plugin()
    long, short = (share(n, isolation="timeslicing", timeSlice=w) for n, w in ((1, "Long"), (2, "Short")))
    node.claims.put(long)
    plugin.prepare(ref_of(long))
    assert cards.of() == {"mode": "DEFAULT", "timeslice": 3}
    assert "the card's time-slice is Long as long as it has other shares, and Short is asked" in refusal(
        node, short
    )
    again = share(3, isolation="timeslicing", timeSlice="Long")
    node.claims.put(again)
    plugin.prepare(ref_of(again))
    plugin.unprepare(ref_of(long))
    assert cards.of() == {"mode": "DEFAULT", "timeslice": 3}
    plugin.unprepare(ref_of(again))
    assert cards.of() == {"mode": "EXCLUSIVE_PROCESS", "timeslice": 0}


def test_a_length_that_cannot_be_set_leaves_the_card_as_it_was(cards: Cards, node: PluginNode) -> None:
    cards.set(cards.uuid(), mode="EXCLUSIVE_PROCESS", refuses="in use by another client")
    why = refusal(node, share(1, isolation="timeslicing"))
    assert "nvidia-smi -i" in why
    assert "in use by another client" in why
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    assert not node.checkpoint().cards


def test_the_double_is_strict(cards: Cards) -> None:
    for words in (["-c", "3"], ["compute-policy", "-i", cards.uuid(), "--set-timeslice", "4"]):
        done = subprocess.run(cards.command("nvidia-smi", words, {}), check=False, capture_output=True)
        assert done.returncode == 1


def test_a_card_that_is_not_kept_is_told_by_its_claims(cards: Cards, node: PluginNode) -> None:
    plugin = node.plugin()
    node.claims.put(share(1))
    record = plugin.prepare(ref_of(share(1)))
    cards.says("client 7 0")
    cards.says("fault")
    watched: list[str] = []
    watch = CardWatch(plugin.look_at_cards, lambda: watched.append("changed"))
    for _ in range(2):
        watch.step()
    assert watched == ["changed"], "once, and not at every look"
    (entry,) = with_looks(record, [], watch.looks)
    (condition,) = entry["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "CardKept",
        "False",
        "CardNotKept",
    )
    assert "MPS server 1000 is in FAULT" in condition["message"]
    cards.kill_daemon()
    watch.step()
    assert {device: look.problem for device, look in watch.looks.items()} == {GPU_0: None}
    assert watched == ["changed", "changed"]
    (entry,) = with_looks(record, [], watch.looks)
    (condition,) = entry["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "Kept")
    assert (
        condition["message"]
        == "by mps: limits the largest share's (MPS v2), servers none, since nobody computes"
    )


@pytest.mark.parametrize("word", ["mps", "timeslicing"])
def test_a_card_that_is_gone_holds_no_claim_back(cards: Cards, node: PluginNode, word: str) -> None:
    plugin = node.plugin()
    obj = share(1, isolation=word)
    node.claims.put(obj)
    plugin.prepare(ref_of(obj))
    (cards.folder / cards.uuid()).unlink()
    plugin.unprepare(ref_of(obj))
    assert not node.checkpoint().claims
    assert not node.checkpoint().cards
    assert not cards.pipe.parent.exists()


def test_a_card_that_does_not_answer_is_not_believed_to_be_gone(cards: Cards, node: PluginNode) -> None:
    plugin = node.plugin()
    node.claims.put(share(1))
    plugin.prepare(ref_of(share(1)))
    cards.set(cards.uuid(), refuses="in use by another client")
    with pytest.raises(PrepareError, match="in use by another client"):
        plugin.unprepare(ref_of(share(1)))
    assert [each.device for each in node.checkpoint().cards] == [GPU_0]


def test_no_daemon_is_started_for_a_card_that_nobody_has(cards: Cards, node: PluginNode) -> None:
    """After a reboot, with a driver that comes after the plugin."""
    prepare(node, share(1))
    cards.kill_daemon()
    cards.set(cards.uuid(), mode="DEFAULT")
    machine = replace(node.inventory.machine, boot_id="another")
    node.inventory = replace(node.inventory, machine=machine)
    own, programs = node.backends["mps"], DriverPrograms(cards.command)
    assert isinstance(own, MpsIsolation)

    def no_driver(*_: object, **__: object) -> list[str]:
        raise PrepareError("the node's GPU driver has no nvidia-smi")

    own._cards = CardSettings(DriverPrograms(no_driver))
    plugin = node.plugin()
    (problem,) = problems(plugin).values()
    assert problem.startswith("no claim has it any more, and it is not as it was: ")
    assert [each.device for each in node.checkpoint().cards] == [GPU_0]
    own._cards = CardSettings(programs)
    assert problems(plugin) == {}
    assert not node.checkpoint().cards
    assert not cards.pipe.parent.exists()
    assert cards.of()["mode"] == "DEFAULT"


def test_a_lost_checkpoint_ends_no_daemon_below_its_clients(cards: Cards, node: PluginNode) -> None:
    prepare(node, share(1))
    prepare(node, share(2))
    node.paths.checkpoint.unlink()
    plugin = node.plugin()
    assert cards.says("client 7 0") == "30 10240M\n"
    assert cards.of()["mode"] == "EXCLUSIVE_PROCESS"
    plugin.unprepare(ref_of(share(1)))
    assert cards.says("client 7 0") == "30 10240M\n", "the other claim is still on the card"
    plugin.unprepare(ref_of(share(2)))
    assert cards.of()["mode"] == "DEFAULT"
    assert not cards.pipe.parent.exists()


def test_the_mode_of_a_lost_checkpoint_is_not_taken_for_the_cards_own(cards: Cards, node: PluginNode) -> None:
    obj = share(1)
    plugin = node.plugin()
    node.claims.put(obj)
    plugin.prepare(ref_of(obj))
    node.paths.checkpoint.unlink()
    plugin.prepare(ref_of(obj))
    plugin.unprepare(ref_of(obj))
    assert cards.of()["mode"] == "DEFAULT"


def test_shared_memory_on_the_nodes_disk_is_refused(cards: Cards, node: PluginNode) -> None:
    programs = DriverPrograms(cards.command)
    on_disk = MpsIsolation(
        node.paths.state, programs, CardSettings(programs), make_shm=lambda folder: "no shared mount"
    )
    node.backends = {**node.backends, "mps": on_disk}
    assert "would fill the node's disk: no shared mount" in refusal(node, share(1))
    assert cards.of()["mode"] == "DEFAULT"


def test_looks_that_take_long_leave_the_node_time_to_prepare() -> None:
    times = iter([0.0, 70.0, 100.0, 100.1])
    watch = CardWatch(dict, lambda: None, clock=lambda: next(times))
    slow, quick = watch.step(), watch.step()
    assert (slow.at_least, slow.at_most) == (210.0, 210.0)
    assert (quick.at_least, quick.at_most) == (2.5, 5.0)
