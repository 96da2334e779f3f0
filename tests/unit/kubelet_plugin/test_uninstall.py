"""What is left on a node when koordra is taken away, as docs/upgrade.md says: nothing of a claim that was
given back, and of koordra what its table names."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.node_claims import GPU_0, NIC_0, claim, gpu, nic
from tests.unit.kubelet_plugin.conftest import PluginNode, ref_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "upgrade.md"
OF_THE_PLUGIN = {"checkpoint.json", "guarded.json"}
"""Of no claim: what the plugin knows of its node."""


def left(node: PluginNode) -> set[str]:
    folders = (node.paths.state, node.paths.cdi)
    return {
        path.name for folder in folders if folder.exists() for path in folder.rglob("*") if path.is_file()
    }


def test_a_claim_that_was_given_back_leaves_no_file(node: PluginNode) -> None:
    claims = [
        claim(1, gpu("gpu", GPU_0, "10Gi"), nic("nic", NIC_0)),
        claim(2, gpu("gpu", GPU_0, "10Gi", share="s2")),
    ]
    plugin = node.plugin()
    for one in claims:
        node.claims.put(one)
        plugin.prepare(ref_of(one))
    during = left(node)
    assert any(name.startswith("koordra.io-") for name in during), "their CDI files"
    for one in claims:
        plugin.unprepare(ref_of(one))
    assert {name for name in left(node) if not name.endswith(".lock")} <= OF_THE_PLUGIN


def test_the_page_names_every_place(node: PluginNode) -> None:
    text = PAGE.read_text()
    for place in ("/var/lib/kubelet/plugins/koordra.io", "/var/lib/koordra", "/var/run/cdi/koordra.io-*"):
        assert place in text
