"""What the plugin writes and reads on the node is what its DaemonSet lets it, and no more is mounted."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from koordra.kubelet_plugin.prepare.claim_audit import KUBELET_CLAIMS
from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for

DAEMONSET: Final = Path(__file__).resolve().parents[3] / "deploy/kustomize/kubelet-plugin/daemonset.yaml"
WRITES: Final = {"os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.rename", "os.truncate"}
WRITES_META: Final = {"os.chmod", "os.chown", "os.setxattr", "os.utime"}
READS: Final = {"os.listdir", "os.scandir"}
_listeners: list[tuple[set[Path], set[Path]]] = []
"""What is written, and what is read."""


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes the paths that are written or read. Such a hook stays for as long as the interpreter."""
    if not _listeners or not (event == "open" or event in WRITES | WRITES_META | READS):
        return
    reads = event in READS
    if event == "open":
        reads = not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
    named = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
    paths = [Path(os.fsdecode(one)) for one in named if isinstance(one, str | bytes | os.PathLike)]
    for listener in _listeners:
        listener[reads].update(path for path in paths if path.is_absolute())


sys.addaudithook(listen)


def mounts_of(*, read_only: bool) -> set[str]:
    (container,) = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]["containers"]
    return {one["mountPath"] for one in container["volumeMounts"] if one.get("readOnly", False) is read_only}


def test_the_plugin_writes_where_its_mounts_are_writable_and_uses_all_that_is_mounted(
    machine_root: Path,
) -> None:
    mounts = mounts_of(read_only=False)
    assert mounts == {
        "/var/lib/kubelet/plugins/koordra.io",
        "/var/lib/kubelet/plugins_registry",
        "/var/run/cdi",
        "/var/lib/koordra",
        "/tmp",
    }
    written, read = listener = set[Path](), set[Path]()
    with tempfile.TemporaryDirectory(prefix="k") as made:  # short, for the sockets
        folder = Path(made)
        _listeners.append(listener)
        try:
            plugin = RunningPlugin(folder, machine_root)
            with plugin.serving():
                assert wait_for(lambda: plugin.api.generations() == {1})
                assert plugin.prepare().error == ""
                plugin.registration.unlink()
                assert wait_for(plugin.registration.exists)
                # A claim that the API no longer knows: is it the kubelet's?
                kept = dict(plugin.api.claims)
                plugin.api.claims.clear()
                assert plugin.prepare().error
                assert wait_for(lambda: folder / KUBELET_CLAIMS in read)
                plugin.api.claims.update(kept)
                assert plugin.unprepare().error == ""
        finally:
            _listeners.remove(listener)

    assert not [path for path in written if path.is_relative_to(machine_root)], "the host's files"
    node = {
        "plugins/koordra.io": "/var/lib/kubelet/plugins/koordra.io",
        "plugins_registry": "/var/lib/kubelet/plugins_registry",
        "cdi": "/var/run/cdi",
    }
    used = set()
    for path in written:
        if path.is_relative_to(folder) and path != folder:
            inside = [where for where in node if path.is_relative_to(folder / where)]
            assert inside or (folder / "plugins").is_relative_to(path), path
            used.update(node[where] for where in inside)
    assert used == set(node.values()) <= mounts

    assert mounts_of(read_only=True) == {"/var/lib/kubelet", "/sys", "/host"}
    assert any(path.is_relative_to(machine_root / "sys") for path in read)
    below = {path.relative_to(machine_root).parts[:1] for path in read if path.is_relative_to(machine_root)}
    assert below - {(), ("sys",)}, "the driver is looked for below the host's root"
