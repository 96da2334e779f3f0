"""`koordra convert`: older manifests (classic DRA, beta versions, legacy pods) as resource.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from koordra.api import objects
from koordra.api.classic.convert import convert
from koordra.api.classic.driver_words import DRANET
from koordra.api.classic.nvidia_parameters import TARGETS
from koordra.api.objects import Fields
from koordra.cli import options
from koordra.cli.manifest_files import read_manifests, read_text
from koordra.cli.options import say
from koordra.cli.output import as_text, yaml_text
from koordra.cli.progress import progress
from koordra.compat.manifests import LegacyPods
from koordra.compat.settings import Settings
from koordra.compat.settings_document import is_device_config, with_document
from koordra.errors import InvalidManifest
from koordra.yaml_text import read_yaml

DEVICE_CONFIG: Final = "device-config.yaml"
"""The entry of a ConfigMap that HAMi and Volcano keep names and defaults in."""
_WORDS: Final = ("nvidia", "nodeconfig", "version", "configList", "resourceList")
"""One of them stands in each file of settings that is found among manifests, whatever its name."""


@click.command("convert")
@options.manifests("YAML or JSON; a class or parameters object may stand in any file", required=True)
@options.output("yaml", "json")
@click.option(
    "--settings",
    "settings_files",
    multiple=True,
    metavar="FILE",
    help="Names, units and defaults of legacy pods in your cluster: koordra's form, HAMi's or Volcano's device-config.yaml, or "
    "its ConfigMap. Repeatable, later ones win.",
)
@click.option(
    "--default-dialect",
    type=click.Choice(["plain", "hami", "koordinator"]),
    help="Whose nvidia.com/gpu is, where nothing else tells.  [default: plain]",
)
@click.option(
    "--to",
    "target",
    type=click.Choice((*TARGETS, DRANET)),
    help="Whose claims those of NVIDIA's DRA driver, of dranet and of koordra become.  [default: nvidia for its classic ones]",
)
@options.flag("--explain", "One line on stderr for every container: what was understood.")
def convert_command(
    files: Sequence[str],
    output: str,
    settings_files: Sequence[str],
    default_dialect: str | None,
    target: str | None,
    explain: bool,
) -> None:
    """Older manifests as resource.k8s.io/v1, on stdout.

    Reads classic DRA (v1alpha2 and its parameters), v1alpha3, v1beta1, v1beta2, and pods and workloads that
    use them; and pods and workloads that ask for devices by extended resources: Koordinator, HAMi, Volcano,
    Alnair, Elastic GPU, Aliyun, TKE and plain device plugins. Other objects pass through unchanged. What
    changes its meaning is reported on stderr, per field. An object that cannot be converted is left out and
    reported, and the exit code is 2.
    """
    with progress("reading the files", silent=output == "json"):
        manifests = [_plain(entry) for entry in read_manifests(files)]
    legacy = LegacyPods(settings_from(settings_files, default_dialect, manifests))
    with progress("converting", silent=output == "json"):
        conversion = convert(manifests, translators=[legacy], target=target or "")
    if output == "json":
        say(
            as_text({"apiVersion": "v1", "kind": "List", "items": list(conversion.objects)}, output), nl=False
        )
    else:
        say("---\n".join(map(yaml_text, conversion.objects)), nl=False)
    for line in legacy.explained if explain else ():
        say(line, err=True)
    for note in (*legacy.settings.told, *conversion.notes):
        say(f"{'refused' if note.refused else 'warning'}: {note}", err=True)
    if conversion.refused:
        number = len({note.object for note in conversion.refused})
        raise InvalidManifest(f"{number} {'object was' if number == 1 else 'objects were'} refused")


def settings_from(files: Sequence[str], default_dialect: str | None, manifests: Sequence[Fields]) -> Settings:
    """What ConfigMaps among the manifests say, then the files, then the option."""
    settings = Settings()
    for entry in manifests:
        data = entry.get("data") if entry.get("kind") == "ConfigMap" else None
        for name, text in data.items() if isinstance(data, Mapping) else ():
            source = f"{objects.describe(entry)}: data[{name}]"
            for document in _device_configs(name, text, source):
                settings = with_document(settings, document, source=source)
    for name in files:
        for document in _documents(read_text(name), name):
            settings = settings_in(settings, document, source=name)
    return replace(settings, default_dialect=default_dialect) if default_dialect else settings


def settings_in(settings: Settings, document: Any, *, source: str) -> Settings:
    """With what a document says, or a ConfigMap with documents. Raises InvalidManifest."""
    for where, content in _contents(document, source):
        settings = with_document(settings, content, source=where)
    return settings


def _device_configs(name: str, text: object, source: str) -> list[Any]:
    """Those in one entry of a ConfigMap, which may be about anything."""
    if not isinstance(text, str) or not any(word in text for word in _WORDS):
        return []
    try:
        documents = _documents(text, source)
    except InvalidManifest:
        if name == DEVICE_CONFIG:
            raise
        return []
    return [document for document in documents if is_device_config(document)]


def _contents(document: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The settings in one document of a file, and where they stand: itself, or the data of a ConfigMap."""
    if not isinstance(document, Mapping) or document.get("kind") != "ConfigMap":
        yield name, document
        return
    data = document.get("data")
    for key, text in data.items() if isinstance(data, Mapping) else ():
        for content in _documents(str(text), f"{name}: {key}"):
            yield f"{name}: {key}", content


def _documents(text: str, source: str) -> list[Any]:
    return [found for found in read_yaml(text, source=source) if found is not None]


def _plain(value: Any) -> Any:
    """Keys are text, as for kubectl: `on` is `true`."""
    if isinstance(value, Mapping):
        return {
            str(key).lower() if isinstance(key, bool) else str(key): _plain(entry)
            for key, entry in value.items()
        }
    return [_plain(entry) for entry in value] if isinstance(value, list) else value
