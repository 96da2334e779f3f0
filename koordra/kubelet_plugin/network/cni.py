"""Runs the CNI plugins of a NetworkAttachmentDefinition (CNI SPEC 1.0.0, section 3).

    chain of plugins ──ADD──> each gets the configuration, the previous result and the environment, answers
                              with a result
                     <─DEL──  in reverse order, also when something is gone already

`deviceID`, the NIC's PCI address, is added to the configuration, where SR-IOV and host-device plugins expect
it (the convention of the network plumbing working group). Plugins are programs of the host in `bin_dirs`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from koordra.api.objects import Fields, Object
from koordra.errors import InvalidInput, NodeError
from koordra.node_state.claim_network import NetworkPlan, Sandbox

BIN_DIRS: Final = (Path("/opt/cni/bin"), Path("/usr/libexec/cni"), Path("/usr/lib/cni"))
TIMEOUT: Final = 60.0


def plugin_chain(config: str, *, bus_id: str) -> list[Object]:
    """The configurations of the plugins to run, in order. Raises InvalidInput for text that is no CNI
    configuration."""
    invalid = partial(InvalidInput, object="NetworkAttachmentDefinition", field="spec.config")
    try:
        document = json.loads(config)
    except ValueError as error:
        raise invalid(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise invalid("not an object")
    plugins = document.get("plugins", [document])
    shared = {"cniVersion": document.get("cniVersion", "1.0.0"), "name": document.get("name", "koordra")}
    if not isinstance(plugins, list) or not plugins:
        raise invalid("no plugins", remedy="name a type")
    chain = []
    for plugin in plugins:
        kind = plugin.get("type") if isinstance(plugin, dict) else None
        # The type is the name of a program in the CNI folder, and nothing else: no path.
        if not isinstance(kind, str) or not kind or "/" in kind or kind in {".", ".."}:
            raise invalid(f"{kind!r} is not a plugin type")
        chain.append({**plugin, **shared, **({"deviceID": bus_id} if bus_id else {})})
    return chain


def add(plan: NetworkPlan, sandbox: Sandbox, *, bin_dirs: Sequence[Path]) -> tuple[str, ...]:
    """Attach, and return the pod's addresses. If a plugin fails, the ones before it are undone. Raises
    NodeError."""
    chain = plugin_chain(plan.cni or "{}", bus_id=plan.bus_id)
    result: Object | None = None
    try:
        for plugin in chain:
            result = _run("ADD", plugin, plan, sandbox, previous=result, bin_dirs=bin_dirs)
    except NodeError:
        delete(plan, sandbox, bin_dirs=bin_dirs)
        raise
    return tuple(str(entry["address"]) for entry in (result or {}).get("ips", ()) if "address" in entry)


def delete(plan: NetworkPlan, sandbox: Sandbox, *, bin_dirs: Sequence[Path]) -> list[str]:
    """Detach as far as possible; returns what failed, as text."""
    problems = []
    for plugin in reversed(plugin_chain(plan.cni or "{}", bus_id=plan.bus_id)):
        try:
            _run("DEL", plugin, plan, sandbox, previous=None, bin_dirs=bin_dirs)
        except NodeError as error:
            problems.append(str(error))
    return problems


def _run(
    command: str,
    plugin: Fields,
    plan: NetworkPlan,
    sandbox: Sandbox,
    *,
    previous: Fields | None,
    bin_dirs: Sequence[Path],
) -> Object:
    program = next((path for folder in bin_dirs if (path := folder / plugin["type"]).is_file()), None)
    if program is None:
        raise NodeError(f"CNI plugin {plugin['type']} is not in {', '.join(map(str, bin_dirs))}; install it")
    config = {**plugin, "prevResult": previous} if previous is not None else dict(plugin)
    environment = {
        **os.environ,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": sandbox.id,
        "CNI_NETNS": sandbox.netns,
        "CNI_IFNAME": plan.interface,
        "CNI_PATH": ":".join(map(str, bin_dirs)),
        "CNI_ARGS": ";".join(
            f"{name}={value}"
            for name, value in {
                "IgnoreUnknown": "1",
                "K8S_POD_NAMESPACE": sandbox.namespace,
                "K8S_POD_NAME": sandbox.pod,
                "K8S_POD_INFRA_CONTAINER_ID": sandbox.id,
                "K8S_POD_UID": sandbox.pod_uid,
            }.items()
        ),
    }
    try:
        done = subprocess.run(
            [str(program)],
            input=json.dumps(config).encode(),
            env=environment,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"CNI plugin {plugin['type']} {command}: {error}") from error
    answer: Object = {}
    with suppress(ValueError):
        document = json.loads(done.stdout)
        answer = document if isinstance(document, dict) else {}
    if done.returncode != 0:
        why = answer.get("msg") or done.stderr.decode(errors="replace").strip()[-300:]
        raise NodeError(f"CNI plugin {plugin['type']} {command}: {why or f'exit code {done.returncode}'}")
    return answer
