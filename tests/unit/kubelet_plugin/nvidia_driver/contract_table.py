"""The table of docs/container-contract.md: everything that nvidia-ctk gives for the made-up driver, and what
of it a container of koordra gets, found out by preparing claims on a node with that driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koordra.kubelet_plugin.claims.claim_record import ContainerEdits

FACTS: Final = Path(__file__).parent / "nvidia-ctk" / "debian.txt"
BEGIN: Final = "<!-- made by tests/unit/kubelet_plugin/nvidia_driver/contract_table.py -->"
END: Final = "<!-- end -->"

_HOOK: Final = {
    "hook disable-device-node-modification": "`koordra-cdi-hook`, in containers that have a card",
    "hook enable-cuda-compat": "`koordra-cdi-hook --compat`, by the toolkit's rule",
    "hook update-application-profile": "`koordra-cdi-hook`, in containers that have a card",
    "hook update-ldcache": "`koordra-cdi-hook`, which writes the cache itself: nothing of the image or the host is run",
}
NOT_GIVEN: Final[Mapping[str, str]] = {
    "env NVIDIA_CTK_LIBCUDA_DIR": "only the toolkit's own hooks read it",
    "node /dev/infiniband": "NICs are devices of their own: a request of the class nic.koordra.io",
    "node /dev/nvidia-nvswitch": "the fabric manager's; whoever opens them partitions every card of the node",
}
"""What nvidia-ctk gives and koordra gives nobody, by the start of the fact, and why."""
_DRA_ABSENT: Final = re.compile(r"(?:gdrcopy|gds|mofed|nvswitch) ")


@dataclass(frozen=True)
class Row:
    what: str
    ctk: str
    dra: str
    koordra: str


def facts() -> list[str]:
    return FACTS.read_text().splitlines()


def given(edits: ContainerEdits) -> set[str]:
    """The edits in the words of the facts, without their scope."""
    found = {f"node {node.path}" for node in edits.device_nodes}
    found |= {f"mount {mount.container_path}" for mount in edits.mounts}
    found |= {f"link {link.path} to {link.target}" for link in edits.links}
    found |= {f"folder {folder}" for folder in edits.library_folders}
    found |= {f"gid {gid}" for gid in edits.additional_gids}
    return found | {f"env {name}={value}" for name, value in edits.env}


def plain(fact: str) -> str:
    """Without scope, mode, group, source and options: what is compared."""
    _, _, rest = fact.partition(" ")
    kind, _, value = rest.partition(" ")
    if kind in {"node", "mount"}:
        return f"{kind} {value.split(' ')[0]}"
    return rest


def answer(fact: str, kinds: Mapping[str, set[str]]) -> str | None:
    """How a container of koordra comes to it; None where nobody ever does and no reason is written."""
    wanted = plain(fact)
    by_path = wanted.replace("link /dev/dri", "node /dev/dri").partition(" to ")[0]
    for how, found in kinds.items():
        if wanted in found or by_path in found:
            return how
    for known, why in (*_HOOK.items(), *((start, f"no: {why}") for start, why in NOT_GIVEN.items())):
        if wanted.startswith(known):
            return why
    return None


def rows(kinds: Mapping[str, set[str]]) -> Iterator[Row]:
    """One for each fact, but for links, which stand with what they lead to."""
    links = [fact for fact in facts() if " link " in fact]
    for fact in facts():
        if fact in links:
            continue
        scope, _, rest = fact.partition(" ")
        kind, _, value = rest.partition(" ")
        name = value.split(" ")[0].rpartition("/")[2]
        beside = [link for link in links if link.endswith((f" to {name}", f"/{name}"))]
        beside += [link for other in beside for link in links if link.endswith(f" to {_name(other)}")]
        named = ", ".join(sorted({f"`{_name(link)}`" for link in beside}))
        shown = f"`{value}`" + (f" ({named})" if named else "")
        how = answer(fact, kinds)
        lacking = {_name(link) for link in beside if answer(link, kinds) is None}
        assert how is not None, f"{fact}: not given, and no reason"
        assert not lacking, f"{fact}: its links {lacking} are not given, and no reason"
        yield Row(f"{kind} {shown}", _ctk(scope), _dra(fact, scope), how)


def _name(link: str) -> str:
    return link.split(" ")[2].rpartition("/")[2]


def _ctk(scope: str) -> str:
    return "yes" if scope in {"common", "gpu"} else f"mode {scope}"


def _dra(fact: str, scope: str) -> str:
    if _DRA_ABSENT.match(fact):
        return "no"
    return "a ComputeDomain's" if scope == "imex" else "yes"


def table(kinds: Mapping[str, set[str]]) -> str:
    lines = ["| what | nvidia-ctk | NVIDIA's DRA driver | koordra |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.ctk} | {row.dra} | {row.koordra} |" for row in rows(kinds)]
    extra = "\n".join(f"- {line}" for line in _beyond(kinds))
    return "\n".join(lines) + f"\n\nWhat koordra gives and nvidia-ctk does not:\n\n{extra}\n"


def _beyond(kinds: Mapping[str, set[str]]) -> Iterable[str]:
    theirs = {plain(fact) for fact in facts()}
    mine = {each for found in kinds.values() for each in found if each.startswith(("node", "link", "mount"))}
    for each in sorted(mine - theirs):
        kind, _, value = each.partition(" ")
        if not value.startswith(
            ("/usr/lib64/", "/dev/dri/by-path", "/var/run/kubernetes.io", "/run/koordra")
        ):
            yield f"{kind} `{value}`"
