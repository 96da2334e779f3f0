"""`koordra node check` reads the configuration of a real containerd as containerd itself does: what it finds
in the files, and takes for the default where no line says anything, is what `containerd config dump` prints
and what the running containerd reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordra.kubelet_plugin.node_check.check_node import check_node
from koordra.kubelet_plugin.node_check.readings.container_runtime.cri_client import ask_runtime
from koordra.kubelet_plugin.node_check.readings.live_node import no_node, this_node
from koordra.kubelet_plugin.node_check.readings.node import NodeReadings, read_node
from koordra.kubelet_plugin.node_check.result import CheckResult
from tests.e2e.conftest import runtimes
from tests.e2e.containerd import Containerd
from tests.e2e.cri import compile_proto
from tests.fakes.node_files import CONTAINERD, NodeFiles
from tests.patience import PATIENCE

pytestmark = pytest.mark.e2e

NEW, OLD = "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"
NRI = "io.containerd.nri.v1.nri"


@pytest.fixture(scope="module", params=["sid", "trixie", "newer"])
def containerd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    modules = compile_proto(tmp_path_factory.mktemp("cri"))
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        runtime = Containerd(request.config.stash[runtimes][request.param], Path(folder), modules)
        try:
            runtime.start()
            yield runtime
        finally:
            runtime.clean_up()


def is_new(containerd: Containerd) -> bool:
    return not containerd.runtime.version.lstrip("v").startswith("1.")


def readings(node: NodeFiles, containerd: Containerd) -> NodeReadings:
    """The node's files, with the version that the real program prints."""
    version = this_node().program_version(Path("/"), str(containerd.runtime.containerd).lstrip("/"))
    assert version
    assert containerd.runtime.version.lstrip("v").startswith(version)
    node.write("usr/bin/containerd", "")
    return read_node(node.root, live=replace(no_node(), program_version=lambda _root, _path: version))


def checked(node: NodeReadings) -> dict[str, CheckResult]:
    return {result.name: result for result in check_node(node)}


def dumped(containerd: Containerd, node: NodeFiles) -> dict[str, Any]:
    """What containerd makes of the same files. In them the root is written where /etc is meant."""
    command = [containerd.runtime.containerd, "-c", node.root / CONTAINERD, "config", "dump"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    plugins: dict[str, Any] = tomllib.loads(done.stdout)["plugins"]
    return plugins


def table(containerd: Containerd, *lines: str, old: bool = False) -> str:
    """A file with lines of the CRI plugin, in the version that is containerd's own."""
    new = is_new(containerd) and not old
    return "\n".join([f"version = {3 if new else 2}", f"[plugins.'{NEW if new else OLD}']", *lines, ""])


OFF, ON, FOLDERS = "enable_cdi = false", "enable_cdi = true", "cdi_spec_dirs = ['/var/run/cdi', '/x']"
NRI_OFF, NRI_ON = f"[plugins.'{NRI}']\ndisable = true", f"[plugins.'{NRI}']\ndisable = false"
SELINUX = "enable_selinux = true"
FILES: list[tuple[list[str], list[str] | None, str]] = [
    ([], None, ""),
    ([OFF], None, ""),
    ([ON, FOLDERS], None, ""),
    ([ON, FOLDERS], None, "file"),
    ([ON, NRI_OFF], None, ""),
    ([ON, NRI_ON], None, ""),
    ([OFF], [ON], ""),
    ([ON, FOLDERS], [OFF], ""),
    ([ON, FOLDERS], [SELINUX], ""),
    ([ON, NRI_OFF], [SELINUX], ""),
    ([ON], [SELINUX, NRI_OFF], ""),
    ([ON, FOLDERS], [OFF], "drop-in"),
    ([OFF, FOLDERS], [SELINUX], "drop-in"),
    ([OFF, SELINUX], [FOLDERS], "file"),
    ([OFF, SELINUX], [FOLDERS], "file drop-in"),
]
"""Lines of the configuration, those of a drop-in, and which of the two is of the version before."""


@pytest.mark.parametrize(("lines", "drop_in", "old"), FILES)
def test_what_the_files_say_is_what_containerd_makes_of_them(
    containerd: Containerd, tmp_path: Path, lines: list[str], drop_in: list[str] | None, old: str
) -> None:
    node = NodeFiles(tmp_path)
    imports = "imports = ['conf.d/*.toml']\n" if drop_in is not None else ""
    node.write(CONTAINERD, imports + table(containerd, *lines, old="file" in old))
    if drop_in is not None:
        node.write("etc/containerd/conf.d/10.toml", table(containerd, *drop_in, old="drop-in" in old))
    plugins, found = dumped(containerd, node), readings(node, containerd)
    runtime = found.runtime
    assert runtime is not None
    cri = plugins[NEW if is_new(containerd) else OLD]
    words = checked(found)
    assert words["cdi"].found.startswith("on" if cri["enable_cdi"] else "off"), words["cdi"]
    if runtime.cdi_folders is not None:
        assert runtime.cdi_folders.value == cri["cdi_spec_dirs"]
    else:
        assert cri["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert words["nri"].found.startswith("off" if plugins[NRI]["disable"] else "on"), words["nri"]
    assert (runtime.selinux is not None and runtime.selinux.value) == cri["enable_selinux"]
    for setting in (runtime.cdi, runtime.cdi_folders, runtime.nri, runtime.selinux):
        if setting is not None:
            path, _, line = setting.where.lstrip("/").partition(":")
            assert "=" in (node.root / path).read_text().splitlines()[int(line) - 1]


def test_the_running_containerd_says_what_it_runs_with(containerd: Containerd, tmp_path: Path) -> None:
    """The files are changed after its start: what runs is another configuration."""
    answer = ask_runtime(containerd.folder / "c.sock")
    assert answer is not None
    assert (answer.name, answer.version) == ("containerd", containerd.cri.version().removeprefix("v"))
    assert answer.config["enableCDI"] is True
    assert answer.config["cdiSpecDirs"] == [str(containerd.cdi)]
    node = NodeFiles(tmp_path)
    node.write(CONTAINERD, (containerd.folder / "containerd.toml").read_text())
    node.socket(str(containerd.folder / "c.sock").lstrip("/"))  # where the file says
    node.socket(str(containerd.nri_socket).lstrip("/"))
    node.process(70, "/usr/bin/containerd")
    runtime = str(containerd.runtime.runc).lstrip("/")
    node.write(runtime, "")
    live = replace(
        no_node(),
        runtime=lambda _: answer,
        program_version=lambda _, path: this_node().program_version(Path("/"), path),
    )
    words = checked(read_node(tmp_path, live=live, cdi_folder=str(containerd.cdi)))
    for name in ("runtime", "cdi", "nri", "default-runtime", "oci-runtime"):
        assert words[name].status == "ok", words[name]
    assert f"on: /{CONTAINERD}:" in words["cdi"].found
    assert f"on: /{CONTAINERD}:" in words["nri"].found
    stale = replace(live, runtime=lambda _: replace(answer, config={"enableCDI": False}))
    found = checked(read_node(tmp_path, live=stale, cdi_folder=str(containerd.cdi)))["cdi"]
    assert found.remedy.startswith("restart containerd")


def of_the_machine(document: str) -> list[dict[str, str]]:
    """Results that programs of others, which start and end meanwhile, do not change."""
    names = {"driver", "cgroup", "cdi-folder", "access-control", "kubelet", "rdma", "pcie-links", "iommu"}
    found = [check for check in json.loads(document)["checks"] if check["name"] in names]
    assert len(found) == len(names)
    return found


def test_a_pod_with_the_host_s_files_in_a_folder_sees_the_same_node(tmp_path: Path) -> None:
    """As in the plugin's pod: the host's `/` is mounted elsewhere, without its own being the host's."""
    host = tmp_path / "host"
    host.mkdir()
    command = f"{sys.executable} -m koordra node check -o json"
    here = subprocess.run(command.split(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    script = f"mount --make-rprivate / && mount --rbind / {host} && mount --bind {tmp_path} /mnt && {command}"
    there = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env={**os.environ, "KOORDRA_HOST_ROOT": str(host)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if not there.stdout:
        pytest.skip(f"no mount namespace can be had: {there.stderr.strip()}")
    assert of_the_machine(there.stdout) == of_the_machine(here.stdout)
