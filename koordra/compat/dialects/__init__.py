"""The dialects: each is a module that ends in `DIALECT`, and a line here. Nothing else names one, but its
page in docs/migrate and its row in the tests (tests/unit/compat/rows.py).

What several dialects claim (`nvidia.com/gpu`) goes to the first of them here where nothing else decides.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from koordra.compat.dialect import Dialect

_MODULES: Final = (
    "plain",
    "hami",
    "koordinator",
    "volcano_vgpu",
    "volcano_gpu",
    "aliyun",
    "alnair",
    "elastic_gpu",
    "tke",
)

DIALECTS: Final[tuple[Dialect, ...]] = tuple(
    import_module(f"{__name__}.{module}").DIALECT for module in _MODULES
)


def dialect_named(name: str) -> Dialect | None:
    return next((dialect for dialect in DIALECTS if dialect.name == name), None)
