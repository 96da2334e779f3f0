"""A TrainingJob's profile in its status: bounded, for people and for whoever reads the job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from koordra.profiles.condensed import Use
from koordra.profiles.profile import Profile

MOST_TEMPLATES: Final = 4
MOST_PODS: Final = 16
"""Of all templates together, those that used most of a GPU's memory first."""


def status_of(profiles: Sequence[tuple[Profile, str]], *, at: str) -> dict[str, Any]:
    """`profiles` with what is recommended, empty where nothing is; `at`: when it was, in the API's words."""
    pods = [pod for profile, _ in profiles for pod in profile.pods]
    ordered = sorted(pods, key=lambda pod: (-_peak(pod.use), pod.pod))
    return {
        "updated": at,
        "pods": len(pods),
        "templates": [
            {
                "template": profile.template,
                "pods": len(profile.pods),
                "series": _series(profile.use),
                **({"recommendation": text} if text else {}),
            }
            for profile, text in profiles[:MOST_TEMPLATES]
        ],
        "ofPods": [
            {"pod": pod.pod, "node": pod.node, "series": _series(pod.use)} for pod in ordered[:MOST_PODS]
        ],
    }


def _peak(use: Use) -> int:
    return max((one.peak for series, one in use.items() if series.value == "gpuMemory"), default=0)


def _series(use: Use) -> dict[str, Any]:
    return {series.value: one.document for series, one in use.items()}
