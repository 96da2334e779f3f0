"""The CDI loader's rules: each on a spec that breaks nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordra.errors import CDIError
from koordra.kubelet_plugin.cdi.claim_spec import check, minimum_version

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
        ("containerEdits.additionalGids", [1], "not a field"),
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
