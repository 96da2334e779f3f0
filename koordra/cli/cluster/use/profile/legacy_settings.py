"""What the cluster's operator has said of other stacks' names and units, from where the controller has it:
the ConfigMap of component legacy. Without it, words are worked out by other units than those by which they
are read."""

from __future__ import annotations

from typing import Final

from koordra.api import objects
from koordra.api.resource_class import CONFIG_MAPS
from koordra.cli.cluster.use.plugin_readings import NAMESPACE
from koordra.cli.convert import settings_in
from koordra.compat.settings import Settings
from koordra.controller.legacy.settings import in_a_cluster
from koordra.errors import NotFound
from koordra.kube.client import KubeClient

CONFIG_MAP: Final = "koordra-legacy-settings"


def legacy_settings(client: KubeClient) -> Settings:
    """The defaults where the component is not installed. Raises ApiError, InvalidManifest."""
    try:
        found = client.get(CONFIG_MAPS, CONFIG_MAP, namespace=NAMESPACE)
    except NotFound:
        return Settings()
    data = objects.fields(found.get("data"))
    read = {"kind": "ConfigMap", "data": {key: data[key] for key in sorted(data) if key.endswith(".yaml")}}
    return in_a_cluster(settings_in(Settings(), read, source=f"ConfigMap {NAMESPACE}/{CONFIG_MAP}"))
