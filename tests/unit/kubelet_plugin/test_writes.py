"""What the plugin writes on the node is what its DaemonSet lets it write."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from tests.unit.kubelet_plugin.running_plugin import RunningPlugin, wait_for

DAEMONSET: Final = Path(__file__).resolve().parents[3] / "deploy/kustomize/kubelet-plugin/daemonset.yaml"
WRITES: Final = {"os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.rename", "os.truncate"}
WRITES_META: Final = {"os.chmod", "os.chown", "os.setxattr", "os.utime"}
_listeners: list[set[Path]] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes the paths that are written. Such a hook stays for as long as the interpreter."""
    if not _listeners or not (event == "open" or event in WRITES | WRITES_META):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    named = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
    paths = [Path(os.fsdecode(one)) for one in named if isinstance(one, str | bytes | os.PathLike)]
    for written in _listeners:
        written.update(path for path in paths if path.is_absolute())


sys.addaudithook(listen)


def writable_mounts() -> set[str]:
    (container,) = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]["containers"]
    return {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly", False)}


def test_the_plugin_writes_where_its_mounts_are_writable(machine_root: Path) -> None:
    mounts = writable_mounts()
    assert mounts == {
        "/var/lib/kubelet/plugins/koordra.io",
        "/var/lib/kubelet/plugins_registry",
        "/var/run/cdi",
        "/var/lib/koordra",
        "/tmp",
    }
    written: set[Path] = set()
    with tempfile.TemporaryDirectory(prefix="k") as made:  # short, for the sockets
        folder = Path(made)
        _listeners.append(written)
        try:
            plugin = RunningPlugin(folder, machine_root)
            with plugin.serving():
                assert wait_for(lambda: plugin.api.generations() == {1})
                assert plugin.prepare().error == ""
                plugin.registration.unlink()
                assert wait_for(plugin.registration.exists)
                assert plugin.unprepare().error == ""
        finally:
            _listeners.remove(written)

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
