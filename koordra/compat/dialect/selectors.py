"""Which cards a pod may have, as CEL over what koordra publishes.

    model lists    HAMi's names of cards are `NVIDIA-<product name>`; an entry matches any part of it, in either case
    UUID lists     the whole UUID

A card that does not publish what is asked matches no allow list and is on no deny list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from koordra.api import names

_ATTRIBUTES: Final = f'device.attributes["{names.DRIVER}"]'


def model_in(entries: Sequence[str], *, deny: bool = False) -> str:
    """Any of the entries is part of the card's name; `deny`: none is."""
    product = names.ATTR_PRODUCT_NAME.removeprefix(names.DOMAIN)
    told = f'"{product}" in {_ATTRIBUTES}'
    found = f'("NVIDIA-" + {_ATTRIBUTES}.{product}).lowerAscii()'
    parts = " || ".join(f"{found}.contains({text(entry.lower())})" for entry in entries)
    return f"!({told}) || !({parts})" if deny else f"{told} && ({parts})"


def uuid_in(entries: Sequence[str], *, deny: bool = False) -> str:
    told = f'"uuid" in {_ATTRIBUTES}'
    listed = f"{_ATTRIBUTES}.uuid in [{', '.join(text(entry) for entry in entries)}]"
    return f"!({told}) || !({listed})" if deny else f"{told} && {listed}"


def profile_is(profile: str) -> str:
    return f"{_ATTRIBUTES}.profile == {text(profile)}"


def text(value: str) -> str:
    """A CEL string; JSON's escapes are CEL's."""
    return json.dumps(value, ensure_ascii=False)
