"""What a broker stamps on each message that it puts."""

from dataclasses import dataclass

from rmqha.broker.addresses import OwnAddresses
from rmqha.kit.wallclock import IWallClock


@dataclass(frozen=True, slots=True)
class Stamps:
    """The broker's addresses, whose main port is known when it listens, and the time of day."""

    own: OwnAddresses
    wall: IWallClock
