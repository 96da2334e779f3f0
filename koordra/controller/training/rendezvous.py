"""Templates that meet at an etcd (`rdzv_backend: etcd`, as Alnair's), told to meet at the job's own store
(c10d). Pure.

torchrun takes an option as `--rdzv-backend` or `--rdzv_backend`, its value after a space or `=`, or else of
the environment (PET_RDZV_BACKEND). Those are rewritten where they stand as words of `command` and `args`, and
in `env`. Within a text that a shell reads nothing is rewritten: `warning` tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from koordra.api import objects
from koordra.api.objects import Fields, Object

_C10D: Final = "c10d"
_ETCD: Final = re.compile(r"etcd(-v2)?")
_OPTION: Final = re.compile(r"--rdzv[-_](backend|endpoint|conf)(?:=(.*))?", re.DOTALL)
_IN_A_TEXT: Final = re.compile(r"rdzv[-_]backend[ =]+[\"']?etcd", re.IGNORECASE)
_BACKEND, _ENDPOINT, _CONF = "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_CONF"


def translated(container: Fields, *, endpoint: str) -> Object:
    """The container, meeting at `endpoint` where it would have met at an etcd."""
    found = {**container}
    values = {"backend": _C10D, "endpoint": endpoint}
    words = {name: list(container.get(name) or ()) for name in ("command", "args")}
    meets_at_etcd = any(_options(list_, "backend", etcd=True) for list_ in words.values())
    if meets_at_etcd:
        found |= {name: _rewritten(list_, values) for name, list_ in words.items() if list_}
    env = objects.mappings(container.get("env"))
    if any(one.get("name") == _BACKEND and _is_etcd(one.get("value")) for one in env):
        told = {_BACKEND: _C10D, _ENDPOINT: endpoint}
        found["env"] = [
            {"name": one["name"], "value": told[one["name"]]} if one.get("name") in told else one
            for one in env
            if one.get("name") != _CONF
        ]
    return found


def warning(template: Fields) -> str:
    """Which container keeps its etcd, and what to do; empty where none."""
    for container in objects.mappings(objects.spec_of(template).get("containers")):
        for word in objects.texts([*(container.get("command") or ()), *(container.get("args") or ())]):
            if not _OPTION.fullmatch(word) and _IN_A_TEXT.search(word):
                return (
                    f"container {container.get('name')} names rdzv_backend etcd within a text, which is left as it is: "
                    "leave --rdzv-backend and --rdzv-endpoint out, they are in the environment (PET_RDZV_BACKEND)"
                )
    return ""


def _is_etcd(value: object) -> bool:
    return isinstance(value, str) and _ETCD.fullmatch(value.strip()) is not None


def _options(words: list[Any], option: str, *, etcd: bool) -> list[int]:
    return [at for at, (name, value) in _read(words) if name == option and (not etcd or _is_etcd(value))]


def _read(words: list[Any]) -> Iterator[tuple[int, tuple[str, object]]]:
    """Where an option stands, its name and its value."""
    for at, word in enumerate(words):
        match = _OPTION.fullmatch(word) if isinstance(word, str) else None
        if match is not None:
            after = words[at + 1] if at + 1 < len(words) else None
            yield at, (match[1], after if match[2] is None else match[2])


def _rewritten(words: list[Any], values: dict[str, str]) -> list[Any]:
    found, skip = list[Any](), 0
    for word in words:
        match = _OPTION.fullmatch(word) if isinstance(word, str) else None
        if skip:
            skip -= 1
            continue
        if match is None:
            found.append(word)
            continue
        skip = int(match[2] is None)
        if match[1] in values:
            found.append(f"--rdzv-{match[1]}={values[match[1]]}")
    return found
