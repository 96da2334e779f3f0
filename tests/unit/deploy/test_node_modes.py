"""The component `node-modes`: the plugin finds the list where its option says, and reads what an operator
writes there."""

from __future__ import annotations

import yaml

from koordra.kubelet_plugin.publish.node_modes import NodeModes, read_node_modes
from tests.fakes.chart import of_components, rendered
from tests.fakes.kustomized import ROOT, Objects

LIST = "nodeconfig:\n- {name: gpu-7, operatingmode: mps, devicesplitcount: 4}\n"


def mounted(objects: Objects) -> tuple[str, str]:
    """What of which ConfigMap is the file of the option."""
    pod = objects["DaemonSet", "koordra-kubelet-plugin"]["spec"]["template"]["spec"]
    plugin = pod["containers"][0]
    (path,) = (one.partition("=")[2] for one in plugin["args"] if one.startswith("--node-modes="))
    folder, _, key = path.rpartition("/")
    (mount,) = (one for one in plugin["volumeMounts"] if one["mountPath"] == folder)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    assert mount["readOnly"]
    return volume["configMap"]["name"], key


def test_the_plugin_finds_the_list_of_the_component() -> None:
    objects = of_components("node-modes")
    name, key = mounted(objects)
    text = objects["ConfigMap", name]["data"][key]
    assert read_node_modes(text, source=name, node="gpu-7") == NodeModes()


def test_what_the_comment_shows_can_be_meant() -> None:
    (settings,) = yaml.safe_load_all((ROOT / "node-modes" / "settings.yaml").read_text())
    lines = settings["data"]["nodes.yaml"].replace("nodeconfig: []", "nodeconfig:").splitlines()
    text = "\n".join(line.removeprefix("# ") for line in lines)
    found = read_node_modes(text, source="nodes.yaml", node="gpu-8")
    assert found.isolation is not None
    assert found.isolation.allowed == ("limiter", "mig")
    assert found.cards["gpu-6f3a"].allowed == ("mps",)
    assert read_node_modes(text, source="nodes.yaml", node="gpu-7").slots == 10


def test_a_list_in_the_values_of_the_chart_is_what_the_plugin_reads() -> None:
    objects = rendered(components=["node-modes"], configMaps={"koordra-node-modes": {"nodes.yaml": LIST}})
    name, key = mounted(objects)
    found = read_node_modes(objects["ConfigMap", name]["data"][key], source=name, node="gpu-7")
    assert found.isolation is not None
    assert (found.isolation.allowed, found.slots) == (("mps",), 4)
