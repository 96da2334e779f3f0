"""What somebody who may write pods, claims, templates, ConfigMaps, Secrets and Events in a namespace tries
against the cluster: tests/attacks/test_tenant.py."""

from __future__ import annotations

from typing import Final

from tests.attacks.row import Attack

TENANT: Final = (
    Attack(
        "nested-parentheses",
        "a selector of 44 characters, 40 of them parentheses",
        "bounded",
        "koordra reads an expression once, in time that its length bounds, and refuses what the API server would refuse",
    ),
)
