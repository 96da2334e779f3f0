"""Lengths of time as kubectl prints them: `3m12s`, `4d` (k8s.io/apimachinery duration.HumanDuration).
Pure."""

from __future__ import annotations

from datetime import datetime, timedelta


def age(timestamp: str | None, now: datetime) -> str:
    """How long ago something was."""
    return duration(now - datetime.fromisoformat(timestamp)) if timestamp else "<unknown>"


def duration(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    if seconds < -1:
        return "<invalid>"
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes = seconds // 60
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    return f"{days // 365}y{days % 365}d"
