"""What is written down of a MIG instance in the checkpoint, before each step that makes it."""

from __future__ import annotations

from dataclasses import dataclass

from koordra.node_state.strict_json import Pairs


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where on which card (its UUID) an instance of which profile (NVML's id) is to be."""

    card: str
    profile: int
    start: int
    size: int

    def __str__(self) -> str:
        return f"profile {self.profile} at {self.start}:{self.size} of {self.card}"


@dataclass(frozen=True, slots=True)
class Journal:
    """What is known of an instance that is being made. `place` comes first, ids and UUID as they are known.
    `given` is one that was there before: it is handed out as it is, and left when the claim ends. `boot` is
    the one in which it was made: none outlives it."""

    place: Place
    gpu_instance: int | None = None
    compute_instance: int | None = None
    uuid: str = ""
    given: bool = False
    boot: str = ""

    def pairs(self) -> Pairs:
        of = self.place
        found = {
            "card": of.card,
            "profile": of.profile,
            "start": of.start,
            "size": of.size,
            "gpuInstance": self.gpu_instance,
            "computeInstance": self.compute_instance,
            "uuid": self.uuid or None,
            "given": True if self.given else None,
            "boot": self.boot or None,
        }
        return tuple((name, str(value)) for name, value in found.items() if value is not None)

    @classmethod
    def read(cls, pairs: Pairs) -> Journal | None:
        """None where nothing was written down."""
        found = dict(pairs)
        if not found:
            return None
        number = {name: int(value) for name, value in found.items() if value.isdecimal()}
        return cls(
            Place(found["card"], number["profile"], number["start"], number["size"]),
            number.get("gpuInstance"),
            number.get("computeInstance"),
            found.get("uuid", ""),
            given="given" in found,
            boot=found.get("boot", ""),
        )


def is_given(pairs: Pairs) -> bool:
    """Whether the instance was there before."""
    return "given" in dict(pairs)
