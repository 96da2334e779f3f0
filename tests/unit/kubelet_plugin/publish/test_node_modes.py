"""How single cards may be kept: labels of the Node, HAMi's list of nodes, and what is published for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from koordra.api import names
from koordra.api.opaque.isolation import LIMITED, IsolationPolicy, node_policy
from koordra.controller.resource_class.elastic.cards import cards_of
from koordra.errors import InvalidManifest
from koordra.kubelet_plugin.publish.node_inventory import InventorySource, inventory_of
from koordra.kubelet_plugin.publish.node_modes import NodeModes, PolicyOfNode, read_node_modes
from koordra.kubelet_plugin.publish.node_slices import cordons_of, mode_taints
from koordra.kubelet_plugin.publish.offering import ModeSwitches, Offering
from koordra.kubelet_plugin.publish.resource_slices import build_devices, build_slices
from koordra.topology import presets
from koordra.topology.machine import Machine
from koordra.topology.presets.mig import mig_profiles
from koordra.topology.problems import Discovery
from koordra.topology.published import machine_of_slices

HAMI = {
    "nodeconfig": [
        {"name": "a", "operatingmode": "mig", "devicesplitcount": 4, "devicememoryscaling": 1.8},
        {"name": "b", "operatingmode": "hami-core", "filterdevices": {"uuid": [], "index": [0]}},
        {"name": "c", "operatingmode": "mps", "cards": [{"card": "GPU-Ab", "isolation": ["limiter", "mig"]}]},
    ]
}
BACKENDS = ("limiter", "mps", "mig", "none")


def modes(node: str, said: Any = HAMI) -> NodeModes:
    return read_node_modes(json.dumps(said), source="config.json", node=node)


def test_hamis_list_of_nodes_is_read_as_it_is() -> None:
    assert modes("a").isolation == node_policy(["mig"])
    assert modes("a").slots == 4
    assert modes("a").left_out == ("devicememoryscaling: there is no memory behind it",)
    assert modes("b").isolation == node_policy(["limiter", "hami-core"])
    assert modes("c").cards == {"gpu-ab": node_policy(["any"])}
    assert modes("d") == NodeModes()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"operatingmode": "vgpu"}, "operatingmode: 'vgpu' is no mode"),
        ({"isolation": ["mps", "limiter"]}, "mps beside limiter"),
        ({"isolation": ["fast"]}, "no backend is called 'fast'"),
        ({"isolation": ["mps"], "operatingmode": "mps"}, "stands beside operatingmode"),
        ({"cards": [{"card": "gpu-0"}]}, r"cards\[0\].isolation: is missing"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidManifest, match=told):
        modes("z", {"nodeconfig": [{"name": "z", **entry}]})
    with pytest.raises(InvalidManifest, match="node z is named twice"):
        modes("z", {"nodeconfig": [{"name": "z"}, {"name": "z"}]})


def test_labels_come_before_the_file_and_cards_before_nodes() -> None:
    policy = PolicyOfNode(LIMITED, modes("c"), BACKENDS)
    assert policy().of_card("x") == node_policy(["mps"])
    assert policy().of_card("GPU-AB") == node_policy(["any"])
    found = policy(
        {"metadata": {"labels": {names.ISOLATION_LABEL: "limiter.mig", "isolation.koordra.io/gpu-0": "none"}}}
    )
    assert found.of_card("x") == node_policy(["limiter", "mig"])
    assert found.of_card("gpu-0") == node_policy(["none"])
    assert found.of_card("gpu-ab") == node_policy(["any"])
    assert policy({"metadata": {"labels": {"isolation.koordra.io/GPU-AB": "mps"}}}).of_card(
        "gpu-ab"
    ) == node_policy(["mps"])


def test_a_label_that_cannot_be_meant_changes_nothing() -> None:
    policy = PolicyOfNode(LIMITED, NodeModes(), BACKENDS)
    assert policy({"metadata": {"labels": {names.ISOLATION_LABEL: "mps.limiter"}}}) == LIMITED
    assert (
        policy({"metadata": {"labels": {"isolation.koordra.io/gpu-0": "fast"}}}).of_card("gpu-0") == LIMITED
    )


def test_a_backend_that_the_node_lacks_does_not_count() -> None:
    found = PolicyOfNode(node_policy(["any"]), NodeModes(), ("limiter",))({})
    assert found == LIMITED


def machine(*, enabled: bool, architecture: str = "Hopper") -> Machine:
    found = presets.load("hgx-h100").machine(serial="a")
    gpus = [
        replace(
            gpu,
            mig_enabled=enabled,
            architecture=architecture,
            mig_profiles=mig_profiles({"mig_profiles": "H100-SXM5-80GB"}),
            mig_instances=(),
        )
        for gpu in found.gpus[:2]
    ]
    return replace(found, gpus=tuple(gpus), nics=())


def published(of: Machine, policy: IsolationPolicy, *, mode: Any = "joint", **more: Any) -> dict[str, Any]:
    offering = Offering(mig=True, mig_on_demand=True, isolation=policy, **more)
    return {device["name"]: device for device in build_devices(of, mode=mode, offering=offering)}


def needs_switch(device: Any) -> bool:
    taint = {"key": "koordra.io/mig-mode", "value": "needed", "effect": "NoSchedule"}
    return taint in device.get("taints", ())


def test_each_card_publishes_its_own_policy() -> None:
    of = machine(enabled=False)
    one, two = (gpu.name for gpu in of.gpus)
    found = published(of, replace(LIMITED, cards=((one, node_policy(["mps"])),)))
    assert found.keys() == {one, two}
    said = {name: {k for k, v in found[name]["attributes"].items() if v == {"bool": True}} for name in found}
    assert said == {one: {"koordra.io/isolationMps"}, two: {"koordra.io/isolationLimiter"}}


def test_cards_by_mps_publish_that_namespaces_share_them() -> None:
    of = machine(enabled=False)
    one, two = (gpu.name for gpu in of.gpus)
    found = published(of, replace(LIMITED, cards=((one, node_policy(["mps"])),)), mps_shared=True)
    assert found[one]["attributes"]["koordra.io/mpsShared"] == {"bool": True}
    assert "koordra.io/mpsShared" not in found[two]["attributes"]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("words", [["mig"], ["any"], ["limiter"]])
def test_what_a_card_is_and_what_it_can_be_switched_to(words: list[str], enabled: bool) -> None:
    of = machine(enabled=enabled)
    cards = {gpu.name for gpu in of.gpus}
    found = published(of, node_policy(words))
    whole, parts = found.keys() & cards, found.keys() - cards
    assert (len(whole), len(parts)) == {
        ("mig", True): (0, 50),
        ("mig", False): (0, 50),
        ("any", True): (2, 50),
        ("any", False): (2, 50),
        ("limiter", True): (0, 50),
        ("limiter", False): (2, 0),
    }[words[0], enabled]
    for name, device in found.items():
        assert needs_switch(device) == ((name in cards) == enabled and words != ["limiter"]), name
    assert all("koordra.io/isolationMig" not in found[name]["attributes"] for name in whole)


def test_a_card_that_is_reset_for_it_is_switched_only_where_that_is_allowed() -> None:
    of = machine(enabled=False, architecture="Ampere")
    assert len(published(of, node_policy(["any"]))) == 2
    assert len(published(of, node_policy(["any"]), mig_reset=True)) == 52
    assert not published(of, node_policy(["mig"])), "in instances only, and it has none"


def test_kube_scheduler_has_no_card_switched() -> None:
    assert len(published(machine(enabled=False), node_policy(["any"]), mode="native")) == 2


def test_a_card_with_a_policy_of_its_own_without_mig_has_no_instances() -> None:
    of = machine(enabled=True)
    policy = replace(node_policy(["mig"]), cards=((str(of.gpus[0].uuid).lower(), node_policy(["limiter"])),))
    found = published(of, policy)
    assert {name.partition("-mig-")[0] for name in found} == {of.gpus[1].name}


def test_prepare_refuses_what_is_not_there_yet() -> None:
    offering = Offering(mig=True, mig_on_demand=True, isolation=node_policy(["any"]))
    inventory = inventory_of(Discovery(machine(enabled=False), ()), offering=offering)
    card = inventory.machine.gpus[0].name
    part = next(name for name in inventory.published if name.startswith(f"{card}-mig-"))
    assert inventory.refusal(card) is None
    assert "ModeSwitching" in str(inventory.refusal(part))
    switching = replace(inventory, modes=ModeSwitches({card: "token"}))
    assert "is being switched" in str(switching.refusal(card))
    taints = dict(mode_taints(switching, ()))
    assert (taints[card].value, part in taints) == ("token", False)
    refused = dict(mode_taints(replace(inventory, modes=ModeSwitches(refused=frozenset({card}))), ()))
    assert (refused[part].value, card in refused) == ("MigModeRefused", False)
    cordoned = cordons_of({"metadata": {"annotations": {f"cordon.koordra.io/{card}": "NoSchedule broken"}}})
    assert dict(mode_taints(inventory, cordoned))[part].value == "broken"


def test_a_label_takes_effect_while_the_plugin_runs(tmp_path: Any) -> None:
    policy = PolicyOfNode(LIMITED, NodeModes(), BACKENDS)
    source = InventorySource(tmp_path, offering=Offering(mig=True, mig_on_demand=True), policy=policy)
    source.set(Discovery(machine(enabled=False), ()))
    assert len(source.current().published) == 2
    source.see_node({"metadata": {"labels": {names.ISOLATION_LABEL: "any"}}})
    assert len(source.current().published) == 52
    source.see_node({"metadata": {"labels": {}}})
    assert len(source.current().published) == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_who_draws_or_lists_the_cards_sees_each_once(enabled: bool) -> None:
    of = machine(enabled=enabled)
    offering = Offering(mig=True, mig_on_demand=True, isolation=node_policy(["any"]))
    slices = build_slices(of, node_name="n", node_uid=None, mode="joint", generation=1, offering=offering)
    drawn, _ = machine_of_slices(slices)
    assert [(gpu.name, bool(gpu.mig_enabled)) for gpu in drawn.gpus] == [
        (one.name, enabled) for one in of.gpus
    ]
    listed = {device for _, device in cards_of(slices)}
    assert len(listed) == (50 if enabled else 2)
    assert all(("-mig-" in name) == enabled for name in listed)
