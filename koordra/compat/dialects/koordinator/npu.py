"""Koordinator's virtual NPUs: a request has to be one of the vendor's templates, and the first card with room gets it.

The templates are a ConfigMap (`gpu-shared-resource-templates`): `<vendor>-<model>` -> name -> amounts. koordra does not give out
NPUs; this says which template a pod means, so that the refusal can name it, and is held against upstream's cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordra.compat.dialects.koordinator.requests import MEMORY, NPU_CORE, NPU_CPU, NPU_DVPP, Amounts

Templates = Mapping[str, Mapping[str, Amounts]]

_COUNTED: Final = (NPU_CORE, NPU_CPU, NPU_DVPP, MEMORY)


def matching(templates: Templates, key: str, request: Amounts) -> str | None:
    """The template of `<vendor>-<model>` that is exactly the request, the first by name."""
    wanted = _counted(request)
    return next(
        (name for name, amounts in sorted(templates.get(key, {}).items()) if _counted(amounts) == wanted),
        None,
    )


def _counted(amounts: Amounts) -> dict[str, int]:
    return {name: amounts[name] for name in _COUNTED if amounts.get(name)}
