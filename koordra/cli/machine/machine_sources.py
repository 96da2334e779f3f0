"""Where `koordra topology` gets a machine from: hardware, a description, or the API of a cluster."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import koordra
from koordra.errors import DiscoveryError, Forbidden, InvalidInput
from koordra.kubelet_plugin.discovery.reading import discover
from koordra.kubelet_plugin.discovery.result import Problem
from koordra.topology import overlay as overlays
from koordra.topology import presets
from koordra.topology.machine import Machine
from koordra.topology.pictures.usage import NOBODY, Usage, holders_of_claims

_STATE: Final = Path("/var/lib/kubelet/plugins/koordra.io")
_SERIAL: Final = "shown"


@dataclass(frozen=True, slots=True)
class Sight:
    """A machine as it is shown, with what could not be made certain about it."""

    machine: Machine
    usage: Usage = NOBODY
    title: str = ""
    subtitle: str = ""
    problems: tuple[Problem, ...] = ()


def of_root(root: Path, *, state_dir: Path | None) -> Sight:
    """What discovery finds below ``root``. Holders come from the kubelet-plugin's records where these can be read."""
    if not root.is_dir():
        raise DiscoveryError(f"{root} is not a directory; give the directory that stands for /")
    found = discover(root)
    here = root.resolve() == Path("/")
    records = state_dir or (_STATE if here else None)
    usage = Usage(holders=_prepared(records)) if records else NOBODY
    return Sight(found.machine, usage, title="this machine" if here else root.name, problems=found.problems)


def of_kind(name: str) -> Sight:
    """A machine of a described kind. It is written out and read back by the code that reads real ones."""
    kind = _kind(name)
    with tempfile.TemporaryDirectory(prefix="koordra-") as directory:
        presets.write_machine(kind, Path(directory), serial=_SERIAL)
        found = discover(Path(directory))
    sight = Sight(found.machine, title=kind.name, subtitle=kind.title, problems=found.problems)
    return laid_over(sight, kind.overlay) if kind.overlay else sight


def of_node(name: str, *, kubeconfig: str | None) -> Sight:
    """A node as its ResourceSlices and the cluster's claims show it."""
    from koordra.api.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
    from koordra.kube import KubeClient
    from koordra.topology.published import machine_of_slices

    client = KubeClient(kubeconfig, user_agent="koordra-topology")
    slices, _ = client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")
    own = [one for one in slices if (one.get("spec") or {}).get("nodeName") == name]
    machine, offered = machine_of_slices(own)
    if not offered and not any(one["spec"].get("driver") == "koordra.io" for one in own):
        raise InvalidInput(
            "publishes no ResourceSlice of koordra.io",
            object=f"Node {name}",
            remedy="check the name, and that koordra kubelet-plugin runs there",
        )
    problems: tuple[Problem, ...] = ()
    try:
        claims, _ = client.list(RESOURCE_CLAIMS)
    except Forbidden as error:
        # Who may see nodes may not be allowed to see everybody's claims; the machine is still worth a look.
        remedy = "ask for the right to list resourceclaims in all namespaces"
        claims, problems = [], (Problem(f"Node {name}", "holders", f"not shown: {error}", remedy),)
    usage = Usage(holders=holders_of_claims(claims, pool=name), offered=offered)
    return Sight(machine, usage, title=name, subtitle="as published in ResourceSlices", problems=problems)


def laid_over(sight: Sight, file: Path) -> Sight:
    """The sight with an overlay applied; contradictions join the problems."""
    from koordra.kubelet_plugin.discovery import overlay
    from koordra.kubelet_plugin.discovery.result import Discovery

    found = Discovery(machine=sight.machine, problems=tuple(sight.problems))
    over = overlay.apply_overlay(found, overlays.load(file), file=file.name)
    return replace(sight, machine=over.machine, problems=over.problems)


def _kind(name: str) -> presets.Preset:
    """By the name of a preset or of a folder in the checkout, or by path. InvalidInput lists what there is."""
    path = Path(name)
    if path.is_file():
        return presets.load_file(path, name=path.parent.name if path.stem == "machine" else path.stem)
    if (path / "machine.yaml").is_file():
        return presets.load_file(path / "machine.yaml", name=path.resolve().name)
    folders = Path(koordra.__file__).resolve().parent.parent / "tests" / "machines"
    described = {file.parent.name: file for file in sorted(folders.glob("*/machine.yaml"))}
    if name in described:
        return presets.load_file(described[name], name=name)
    if name in presets.names():
        return presets.load(name)
    known = sorted({*presets.names(), *described})
    raise InvalidInput(
        f"there is no machine {name!r}",
        object="topology",
        field="--machine",
        remedy=f"give the path of a machine.yaml, or one of {', '.join(known)}",
    )


def _prepared(state_dir: Path) -> dict[str, tuple[str, ...]]:
    """Device -> claims, from ``prepared/<claim uid>.json``. What cannot be read is left out: this is only a picture."""
    held: dict[str, set[str]] = {}
    for file in sorted((state_dir / "prepared").glob("*.json")):
        try:
            record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            claim = f"{record['claim']['namespace']}/{record['claim']['name']}"
            devices = [str(device["device"]) for device in record["devices"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for device in devices:
            held.setdefault(device, set()).add(claim)
    return {device: tuple(sorted(claims)) for device, claims in held.items()}
