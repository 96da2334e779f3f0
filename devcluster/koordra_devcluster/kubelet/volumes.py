"""Volumes that are files of the kubelet's: downwardAPI, configMap, emptyDir, and projected ones of the first
two.

    <kubelet root>/pods/<uid>/volumes/<name>/..2026_11_28_14_03_07.12345/hosts    the files
                                            /..data -> ..2026_11_28_14_03_07.12345
                                            /hosts  -> ..data/hosts

A change of the pod's annotations or labels replaces the whole folder in one step, by renaming a new `..data`
over the old one, as the kubelet's atomic writer does; a container sees all of the old files or all of the
new ones. ConfigMaps are read when the pod starts, and not again. What has no files here (secrets, claims of
storage) is not mounted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from koordra.api.objects import (
    Fields,
    Object,
    annotations_of,
    fields,
    labels_of,
    name,
    namespace,
    spec_of,
    uid,
)
from koordra.errors import NodeError, NotFound

GetConfigMap = Callable[[str, str], Object]
"""(namespace, name). Raises NotFound and other ApiErrors."""
_DATA: Final = "..data"
_MODE: Final = 0o644


class VolumeError(NodeError):
    """A volume cannot be made; the pod waits for it."""


@dataclass(frozen=True, slots=True)
class File:
    text: str
    mode: int


Files = Mapping[str, File]
"""By path below the volume."""


def fields_of(pod: Object) -> dict[str, str]:
    """What fieldRef can name of the pod's metadata, by path; all labels, and all annotations, in lines
    `key="value"`."""
    found = {"metadata.name": name(pod), "metadata.namespace": namespace(pod), "metadata.uid": uid(pod)}
    for what, entries in (("labels", labels_of(pod)), ("annotations", annotations_of(pod))):
        found |= {f"metadata.{what}['{key}']": text for key, text in entries.items()}
        found[f"metadata.{what}"] = "\n".join(f"{key}={_quoted(entries[key])}" for key in sorted(entries))
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """`folder`: of all pods of the node."""

    folder: Path
    get_config_map: GetConfigMap

    def make(self, pod: Object) -> dict[str, Path]:
        """The pod's volumes of these kinds, by name, each where it lies. Raises VolumeError and ApiError."""
        found = {}
        for volume in spec_of(pod).get("volumes") or ():
            sources = _sources(volume)
            if sources or "emptyDir" in volume:
                place = found[str(volume["name"])] = self._place(pod, volume)
                place.mkdir(parents=True, exist_ok=True)
                if sources and not (place / _DATA).exists():
                    _replace(place, self._files(pod, volume))
        return found

    def refresh(self, pod: Object) -> None:
        """Show the pod's metadata as it is now, in volumes that were made."""
        for volume in spec_of(pod).get("volumes") or ():
            place = self._place(pod, volume)
            if not (place / _DATA).exists():
                continue
            wanted, shown = dict(_downward(pod, volume)), _shown(place)
            if any(path not in shown or shown[path].text != file.text for path, file in wanted.items()):
                _replace(place, {**shown, **wanted})

    def remove(self, pod_uid: str) -> None:
        shutil.rmtree(self.folder / pod_uid, ignore_errors=True)

    def _place(self, pod: Object, volume: Fields) -> Path:
        return self.folder / uid(pod) / "volumes" / str(volume["name"])

    def _files(self, pod: Object, volume: Fields) -> dict[str, File]:
        found = dict(_downward(pod, volume))
        mode = _default_mode(volume)
        for source in _sources(volume):
            if "configMap" in source:
                found |= self._of_config_map(namespace(pod), fields(source["configMap"]), mode)
        return found

    def _of_config_map(self, place: str, source: Fields, mode: int) -> dict[str, File]:
        called = str(source.get("name") or "")
        try:
            data = fields(self.get_config_map(place, called).get("data"))
        except NotFound as error:
            if source.get("optional"):
                return {}
            raise VolumeError(f'configmap "{called}" not found') from error
        mode = int(source.get("defaultMode") or mode)
        items = [fields(item) for item in source.get("items") or ()] or [
            {"key": key, "path": key} for key in data
        ]
        if missing := [str(item["key"]) for item in items if item["key"] not in data]:
            raise VolumeError(f'configmap "{called}" references non-existent config key: {missing[0]}')
        return {
            str(item["path"]): File(str(data[str(item["key"])]), int(item.get("mode") or mode))
            for item in items
        }


def _sources(volume: Fields) -> list[Fields]:
    """What of it is files."""
    entries = [volume, *(fields(volume.get("projected")).get("sources") or ())]
    return [one for one in map(fields, entries) if "downwardAPI" in one or "configMap" in one]


def config_maps_of(volume: Fields) -> list[str]:
    """Names of the ConfigMaps without which it cannot be made."""
    found = [fields(one["configMap"]) for one in _sources(volume) if "configMap" in one]
    return [str(one.get("name")) for one in found if not one.get("optional")]


def _default_mode(volume: Fields) -> int:
    for kind in ("downwardAPI", "configMap", "projected"):
        if mode := fields(volume.get(kind)).get("defaultMode"):
            return int(mode)
    return _MODE


def _downward(pod: Object, volume: Fields) -> Iterator[tuple[str, File]]:
    """Raises VolumeError for amounts of containers, which the double does not show."""
    known, mode = fields_of(pod), _default_mode(volume)
    for source in _sources(volume):
        for item in map(fields, fields(source.get("downwardAPI")).get("items") or ()):
            path = str(item.get("path"))
            if "fieldRef" not in item:
                raise VolumeError(
                    f"volume {volume['name']}: the kubelet double shows no resourceFieldRef ({path})"
                )
            shown = known.get(str(fields(item["fieldRef"]).get("fieldPath")), "")
            yield path, File(shown, int(item.get("mode") or mode))


def _shown(place: Path) -> dict[str, File]:
    """The files of the volume; what a container has written beside them is none."""
    tops = [entry for entry in place.iterdir() if entry.is_symlink() and entry.name != _DATA]
    return {
        str(path.relative_to(place)): File(path.read_text(), path.stat().st_mode & 0o777)
        for top in tops
        for path in (top.rglob("*") if top.is_dir() else [top])
        if path.is_file()
    }


def _replace(place: Path, files: Files) -> None:
    """The volume shows these files and no others, from one step to the next. Raises VolumeError."""
    if outside := [path for path in files if Path(path).is_absolute() or ".." in Path(path).parts]:
        raise VolumeError(f"path {outside[0]!r} leads out of the volume")
    stamp = datetime.now(UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    try:
        before = (place / _DATA).readlink() if (place / _DATA).is_symlink() else None
        made = Path(tempfile.mkdtemp(prefix=stamp, dir=place))
        made.chmod(0o755)
        for path, file in files.items():
            target = made / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.text)
            target.chmod(file.mode)
        new = place / "..data_tmp"
        new.unlink(missing_ok=True)
        new.symlink_to(made.name)
        new.replace(place / _DATA)
        for top in {Path(path).parts[0] for path in files}:
            if not (place / top).is_symlink():
                (place / top).symlink_to(f"{_DATA}/{top}")
        for entry in place.iterdir():
            if not entry.name.startswith("..") and not entry.exists():
                entry.unlink()
        if before:
            shutil.rmtree(place / before, ignore_errors=True)
    except OSError as error:
        raise VolumeError(f"{place}: {error.strerror}") from error
