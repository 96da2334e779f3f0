"""Groups of nodes as people write them behind `--autoscale`: `NAME=MACHINE:MAX[,LABEL=VALUE...]`, or a file
as the controller reads it (controller/autoscale/settings)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from koordra.api.reader import Reader
from koordra.cli.manifest_files import read_text
from koordra.cli.what_if.machines import machine_slices
from koordra.controller.autoscale.node_groups import NodeGroup
from koordra.controller.autoscale.settings import AutoscaleSettings, group_of, groups_in, settings_in
from koordra.errors import InvalidInput, InvalidManifest
from koordra.yaml_text import read_yaml

_WORD: Final = re.compile(r"(?P<name>[a-z0-9-]+)=(?P<machine>[^,]+):(?P<most>\d{1,9})(?:,(?P<labels>.*))?")


def node_groups(wanted: Sequence[str]) -> list[NodeGroup]:
    """In the order given, which is that of preference. Raises InvalidInput; for a file InvalidManifest."""
    found = [group for text in wanted for group in _groups(text)]
    twice = {group.name for group in found if [one.name for one in found].count(group.name) > 1}
    if twice:
        raise InvalidInput(
            f"there are two groups {min(twice)!r}", field="--autoscale", remedy="name each group once"
        )
    return found


def _groups(text: str) -> Iterator[NodeGroup]:
    word = _WORD.fullmatch(text)
    if word is None and ("=" in text or not text):
        raise InvalidInput(
            "is no group of nodes",
            object=text,
            field="--autoscale",
            remedy="write NAME=MACHINE:MAX, as in h100=hgx-h100:8, with labels after it: ,rack=a; or name a file",
        )
    if word is None:
        yield from groups_in(_document(text), machine_slices)
        return
    labels = dict(_label(text, one) for one in (word["labels"] or "").split(",") if one)
    group = {"name": word["name"], "machine": word["machine"], "max": int(word["most"]), "labels": labels}
    yield group_of(Reader(group, object=f"--autoscale {text}"), machine_slices)


def _label(text: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise InvalidInput(
            f"{word!r} is no label",
            object=text,
            field="--autoscale",
            remedy="write LABEL=VALUE after each comma",
        )
    return key, value


def settings_from_file(file: Path) -> AutoscaleSettings:
    """The controller's. Raises InvalidManifest, and InvalidInput for a machine that nobody knows."""
    return settings_in(_document(str(file)), machine_slices)


def _document(name: str) -> Reader:
    documents = read_yaml(read_text(name), source=name)
    if len(documents) != 1:
        text = f"has {len(documents)} documents"
        raise InvalidManifest(text, object=name, remedy="write one, with groups")
    return Reader(documents[0], object=name)
