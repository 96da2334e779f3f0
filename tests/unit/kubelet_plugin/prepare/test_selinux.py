"""What is mounted into containers is labelled so that a confined container may have it, on a node with
SELinux; here the kernel stores the labels and goes by none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordra.api.opaque.parameters import GpuConfig
from koordra.kubelet_plugin.isolation.limiter.backend import LimiterIsolation
from koordra.node_state.selinux import ATTRIBUTE, LABEL, give_to_containers
from tests.fakes.isolation import keep_nothing
from tests.fakes.node_claims import GPU_0, claim, gpu, uid
from tests.unit.kubelet_plugin.conftest import PluginNode, prepare
from tests.unit.limiter.test_backend import SHARE, installed  # noqa: F401  fixture

label: Callable[..., bytes] = os.getxattr


@pytest.fixture
def enforcing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has a label."""
    try:
        os.setxattr(tmp_path, ATTRIBUTE, b"system_u:object_r:container_var_lib_t:s0\0")
    except OSError as error:
        pytest.skip(f"labels cannot be written here: {error}")

    def getxattr(*_: Any, **__: Any) -> bytes:
        return b"system_u:object_r:container_var_lib_t:s0\0"

    monkeypatch.setattr(os, "getxattr", getxattr)


@pytest.mark.usefixtures("enforcing")
def test_the_mounts_of_a_claim_are_labelled(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    folder = node.paths.claim_folder(uid(1))
    mounted = [
        Path(mount["hostPath"]) for mount in node.spec(uid(1))["devices"][0]["containerEdits"]["mounts"]
    ]
    mine = [path for path in mounted if path.is_relative_to(node.paths.state)]
    assert mine
    assert all(path.is_relative_to(folder) and label(path, ATTRIBUTE) == LABEL for path in mine)
    for private in (node.paths.prepared_file(uid(1)), node.paths.checkpoint):
        with pytest.raises(OSError, match="No data available"):
            label(private, ATTRIBUTE)


@pytest.mark.usefixtures("enforcing")
def test_the_limiter_and_its_region_are_labelled(tmp_path: Path, installed: Path) -> None:  # noqa: F811
    backend = LimiterIsolation(tmp_path / "state", installed=[installed])
    backend.prepare(SHARE, GpuConfig(), keep_nothing)
    try:
        mounts = backend.prepare(SHARE, GpuConfig(), keep_nothing).edits.mounts
        assert {label(mount.host_path, ATTRIBUTE) for mount in mounts} == {LABEL}
    finally:
        backend.unprepare(SHARE)


def test_what_an_operator_labelled_for_containers_stays(
    tmp_path: Path, enforcing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = b"system_u:object_r:container_file_t:s0:c1,c2\0"
    os.setxattr(tmp_path, ATTRIBUTE, own)
    monkeypatch.setattr(os, "getxattr", label)
    give_to_containers(tmp_path)
    assert label(tmp_path, ATTRIBUTE) == own


def test_nothing_is_labelled_without_selinux(node: PluginNode) -> None:
    prepare(node, claim(1, gpu("gpu", GPU_0)))
    for path in node.paths.claim_folder(uid(1)).iterdir():
        with pytest.raises(OSError, match=r"No data available|not supported"):
            label(path, ATTRIBUTE)
