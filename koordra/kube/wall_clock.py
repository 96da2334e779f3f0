"""The time of day as the API writes it: RFC 3339, UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """metav1.Time: whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_now_micro() -> str:
    """metav1.MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
