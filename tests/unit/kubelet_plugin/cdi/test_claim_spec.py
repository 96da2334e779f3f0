"""The CDI loader's rules, each on a spec that breaks nothing else; and that koordra writes what they allow,
and refuses the rest."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.errors import CDIError
from koordra.kubelet_plugin.cdi import claim_spec
from koordra.kubelet_plugin.cdi.claim_spec import encode
from koordra.kubelet_plugin.claims.claim_record import (
    ClaimRecord,
    ContainerEdits,
    DeviceRecord,
    Hook,
    Mount,
    State,
)
from koordra.node_state.claim_ref import ClaimRef
from koordra.topology.location import DeviceNode
from tests.fakes.cdi_rules import check, minimum_version

GOOD: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "koordra.io/claim",
    "devices": [
        {
            "name": "0c1a-gpu",
            "containerEdits": {
                "env": ["A=b"],
                "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 2, "permissions": "rw"}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}],
            },
        }
    ],
    "containerEdits": {"env": ["C=d"]},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with the field at `path` ("devices.0.name") replaced; None removes it."""
    spec = copy.deepcopy(GOOD)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    at: Any = spec
    for part in parents:
        at = at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return spec


def test_good_spec_passes() -> None:
    check(GOOD)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("cdiVersion", "0.4.0", "at least 0.5.0"),
        ("cdiVersion", "0.5", "not known"),
        ("cdiVersion", "9.9.9", "not known"),
        ("cdiVersion", None, "not known"),
        ("extra", 1, "spec.extra is not a field"),
        ("kind", "koordra.io", "not vendor/class"),
        ("kind", "1koordra.io/claim", "not a vendor"),
        ("kind", "Koordra.io/claim", "not a vendor"),
        ("kind", "koordra.io/-claim", "not a class"),
        ("kind", "koordra.io/" + "c" * 64, "not a class"),
        ("devices", [], "without devices"),
        ("devices", {}, "not a list"),
        ("devices.0.name", "-gpu", "not a CDI device name"),
        ("devices.0.name", "gpu ", "not a CDI device name"),
        ("devices.0.name", "", "not a CDI device name"),
        ("devices", GOOD["devices"] * 2, "there twice"),
        ("devices.0.containerEdits", {}, "without edits"),
        ("devices.0.containerEdits", {"env": []}, "without edits"),
        ("devices.0.containerEdits.envs", ["A=b"], "not a field"),
        ("devices.0.containerEdits.env.0", "A", "not NAME=value"),
        ("devices.0.containerEdits.env.0", "=b", "not NAME=value"),
        ("devices.0.containerEdits.deviceNodes.0.path", "", "path is missing"),
        ("devices.0.annotations", {"a": "b"}, "not a field"),
        ("containerEdits.netDevices", [{"hostInterfaceName": "a", "name": "b"}], "not a field"),
        ("containerEdits.intelRdt", {"closID": "a"}, "not a field"),
        ("containerEdits.additionalGids", ["video"], "not a number"),
        ("containerEdits.hooks", [{"hookName": "createRuntime", "path": "/x", "timeout": 1}], "not a field"),
        ("devices.0.containerEdits.mounts.0.type", "bind", "not a field"),
        ("devices.0.containerEdits.deviceNodes.0.type", "x", "none of b, c, u, p"),
        ("devices.0.containerEdits.deviceNodes.0.permissions", "rx", "other letters"),
        ("devices.0.containerEdits.deviceNodes.0.major", "1", "not a number"),
        ("devices.0.containerEdits.deviceNodes.0.mode", 1, "not a field"),
        ("devices.0.containerEdits.mounts.0.hostPath", "", "both needed"),
        ("devices.0.containerEdits.hooks", [{"hookName": "later", "path": "/x"}], "known hookName"),
        ("containerEdits.env.0", "C", "not NAME=value"),
    ],
)
def test_each_rule(path: str, value: object, message: str) -> None:
    spec = changed(path, value)
    if path != "cdiVersion":
        # The newest, so that only the rule in question speaks.
        spec["cdiVersion"] = "1.1.0"
    with pytest.raises(CDIError, match=message):
        check(spec)


@pytest.mark.parametrize(
    ("path", "value", "version"),
    [
        ("devices.0.name", "gpu-0", "0.3.0"),
        ("devices.0.name", "0-gpu", "0.5.0"),
        ("kind", "koordra.io/claim.x", "0.6.0"),
    ],
)
def test_minimum_version(path: str, value: object, version: str) -> None:
    assert minimum_version(changed(path, value)) == version


def test_minimum_version_of_a_host_path() -> None:
    spec = changed("devices.0.name", "gpu-0")
    assert minimum_version(spec) == "0.3.0"
    spec["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"] = "/root/dev/x"
    assert minimum_version(spec) == "0.5.0"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["cdiVersion", "kind", "devices", "name", "containerEdits", "env", "deviceNodes", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_nonsense_is_refused_and_never_crashes(spec: object) -> None:
    with pytest.raises(CDIError):
        check(spec)


def record(
    *edits: ContainerEdits, uid: str = "0c1a", device: str = "gpu", share: str | None = None
) -> ClaimRecord:
    return ClaimRecord(
        ref=ClaimRef("team", "train", uid),
        pool="node-a",
        nonce="0" * 32,
        boot_id="boot",
        state=State.STARTED,
        devices=tuple(
            DeviceRecord(request="r", device=f"{device}{index or ''}", type="gpu", share_id=share, edits=each)
            for index, each in enumerate(edits)
        ),
    )


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (ContainerEdits(env=(("", "b"),)), r"devices\[1\].containerEdits.env: '=b' is not NAME=value"),
        (ContainerEdits(env=(("A", "b\0"),)), "is not NAME=value"),
        (ContainerEdits(device_nodes=(DeviceNode("", 1, 2),)), "has no path"),
        (ContainerEdits(device_nodes=(DeviceNode("/dev/x", 1, 2, "x"),)), "none of b, c, u, p"),
        (ContainerEdits(mounts=(Mount("", "/b"),)), "both needed"),
        (ContainerEdits(mounts=(Mount("/a", ""),)), "both needed"),
        (ContainerEdits(hooks=(Hook("later", "/x"),)), "known hookName"),
        (ContainerEdits(hooks=(Hook("createRuntime", ""),)), "known hookName"),
    ],
)
def test_edits_that_a_loader_would_drop_are_refused(edits: ContainerEdits, message: str) -> None:
    """A backend of others may bring them."""
    with pytest.raises(CDIError, match=message):
        encode(record(ContainerEdits(), edits), root=Path("/"))


def test_names_that_a_loader_would_drop_are_refused() -> None:
    with pytest.raises(CDIError, match="is not a CDI device name"):
        encode(record(ContainerEdits(), share="a b"), root=Path("/"))


texts = st.sampled_from(["", "A", "=", "A=B", "\0", "/x", "createRuntime", "c", "x", "-", "é"])


@given(
    st.lists(
        st.builds(
            ContainerEdits,
            env=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
            device_nodes=st.lists(
                st.builds(DeviceNode, texts, st.just(1), st.just(2), texts), max_size=1
            ).map(tuple),
            mounts=st.lists(st.builds(Mount, texts, texts), max_size=1).map(tuple),
            hooks=st.lists(
                st.builds(Hook, texts, texts, st.lists(texts, max_size=2).map(tuple)), max_size=1
            ).map(tuple),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["0c1a", "c1a"]),
    st.none() | texts,
    st.sampled_from([Path("/"), Path("/host")]),
)
def test_koordra_writes_what_a_loader_reads_and_refuses_exactly_the_rest(
    edits: list[ContainerEdits], uid: str, share: str | None, root: Path
) -> None:
    claim = record(*edits, uid=uid, share=share)
    try:
        written = json.loads(encode(claim, root=root))
    except CDIError:
        written = json.loads(json.dumps(claim_spec.spec(claim, root=root)))
        with pytest.raises(CDIError):
            check(written)
    else:
        check(written)


def test_the_hook_runs_once_in_a_container_of_the_claim_and_never_with_the_images_environment() -> None:
    hook = Hook(
        "createContainer", "/var/lib/koordra/hook/koordra-cdi-hook-1", ("koordra-cdi-hook", "container")
    )
    spec = json.loads(encode(replace(record(ContainerEdits()), hooks=(hook,)), root=Path("/")))
    assert spec["containerEdits"]["hooks"] == [
        {
            "hookName": "createContainer",
            "path": hook.path,
            "args": ["koordra-cdi-hook", "container"],
            "env": ["LC_ALL=C"],
        }
    ]
    assert not any("hooks" in device["containerEdits"] for device in spec["devices"])
    with pytest.raises(CDIError, match="CVE-2025-23266"):
        encode(replace(record(ContainerEdits()), hooks=(replace(hook, env=()),)), root=Path("/"))
