"""What does the control plane touch beside its log? One value, handed to each part."""

from dataclasses import dataclass

from stoker.ports import Clock, Entropy, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
