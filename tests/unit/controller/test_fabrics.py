"""Levels in an order that somebody wrote: the setting, and the objects of Kueue, Koordinator and Volcano."""

from __future__ import annotations

from typing import Any

import pytest

from koordra.api.objects import Object
from koordra.controller.cache.fabrics import (
    Fabrics,
    levels_of_hypernodes,
    levels_of_layers,
    levels_of_topology,
    written_levels,
)
from koordra.errors import InvalidInput


def obj(kind: str, name: str, **spec: Any) -> Object:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


def topology(name: str, *labels: str) -> Object:
    return obj("Topology", name, levels=[{"nodeLabel": label} for label in labels])


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


def test_an_operator_writes_names_with_labels_or_levels_that_koordra_knows() -> None:
    levels = written_levels("hall=example.com/hall, example.com/row ,block")
    assert [level.words for level in levels.levels[:2]] == [
        ("hall", "example.com/hall"),
        ("example.com/row", "example.com/row"),
    ]
    assert "fabric.koordra.io/block" in levels.levels[2].labels
    assert [level.is_spared for level in levels.levels] == [False, False, True]
    assert levels.position("example.com/hall") == 0
    assert levels.position("kubernetes.io/hostname") == 3
    assert levels.position("zone") is None


@pytest.mark.parametrize("text", [",", "a,a", "=x", "row=r,node", "row=r,host=kubernetes.io/hostname"])
def test_an_order_that_is_none_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(InvalidInput, match="--topology-levels"):
        written_levels(text)


def test_kueues_topology_is_in_its_own_order_without_the_node() -> None:
    levels = levels_of_topology(topology("t", "cloud/block", "cloud/rack", "kubernetes.io/hostname"))
    assert levels.names == ("cloud/block", "cloud/rack")
    assert levels.position("kubernetes.io/hostname") == 2


def test_koordinators_layers_are_in_order_of_their_parents() -> None:
    layers = [
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
        {"topologyLayer": "BlockLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["k/block"]},
        {"topologyLayer": "SpineLayer", "labelKey": ["k/spine", "old/spine"]},
    ]
    levels = levels_of_layers(obj("ClusterNetworkTopology", "default", networkTopologySpec=layers))
    assert [level.words for level in levels.levels] == [
        ("SpineLayer", "k/spine", "old/spine"),
        ("BlockLayer", "k/block"),
    ]
    assert levels.position("NodeTopologyLayer") == 2
    circle = [
        {"topologyLayer": "a", "parentTopologyLayer": "b", "labelKey": ["x"]},
        {"topologyLayer": "b", "parentTopologyLayer": "a", "labelKey": ["y"]},
    ]
    assert set(levels_of_layers(obj("C", "c", networkTopologySpec=circle)).names) == {"a", "b"}


def hypernode(name: str, tier: int, kind: str, *selectors: dict[str, Any], called: str = "") -> Object:
    members = [{"type": kind, "selector": selector} for selector in selectors]
    return obj("HyperNode", name, tier=tier, tierName=called, members=members)


def test_volcanos_hypernodes_are_levels_by_tier_whatever_selects_their_members() -> None:
    nodes = {"a-0": {}, "a-1": {}, "b-0": {"rack": "b"}, "c-0": {"rack": "c"}, "lone": {}}
    found = levels_of_hypernodes(
        [
            hypernode("top", 2, "HyperNode", {"regexMatch": {"pattern": "^s"}}, called="spine"),
            hypernode("s0", 1, "Node", {"exactMatch": {"name": "a-0"}}, {"regexMatch": {"pattern": "^a-"}}),
            hypernode("s1", 1, "Node", {"labelMatch": {"matchLabels": {"rack": "b"}}}),
            hypernode(
                "x",
                1,
                "Node",
                {"labelMatch": {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["c"]}]}},
            ),
            hypernode("broken", 1, "Node", {"regexMatch": {"pattern": "("}}, {}),
        ],
        nodes,
    )
    assert found.names == ("tier-2", "tier-1")
    assert found.position("spine") == 0
    assert found.paths(nodes) == {
        "a-0": ("top", "s0"),
        "a-1": ("top", "s0"),
        "b-0": ("top", "s1"),
        "c-0": ("", "x"),
        "lone": ("", ""),
    }


def test_the_first_that_knows_every_word_is_taken_and_changes_are_seen() -> None:
    table: dict[str, Object] = {"kueue.x-k8s.io/one": topology("one", "cloud/block", "cloud/rack")}
    nodes = {"a": node("a")}
    fabrics = Fabrics(table, nodes)
    assert fabrics.levels_for({"cloud/rack"}).source == "Topology one"
    assert fabrics.levels_for({"block"}).source == ""
    assert fabrics.levels_for(()).names[-1] == "nvlink-partition"
    assert fabrics.levels_for({"cloud/rack", "block"}).source == ""
    table["topology.volcano.sh/s0"] = hypernode("s0", 1, "Node", {"labelMatch": {"matchLabels": {"r": "1"}}})
    fabrics.on_fabric("", None, table["topology.volcano.sh/s0"])
    assert fabrics.levels_for({"tier-1"}).source == ""  # no node is in it
    nodes["b"] = node("b", r="1")
    fabrics.on_node("b", None, nodes["b"])
    assert fabrics.levels_for({"tier-1"}).levels[0].nodes == {"b": "s0"}
    fabrics.written = written_levels("rack=cloud/rack")
    assert fabrics.levels_for({"cloud/rack"}).source == "--topology-levels"
    assert fabrics.levels_for(()).source == "--topology-levels"
    assert fabrics.levels_for({"unheard"}).source == "--topology-levels"
