from mmap import mmap

from rmqha.wire.logunits import OrdinaryUnits
from rmqha.wire.scanned import Scan
from rmqha.wire.sends.run import Place, SendRun

CONTRACT: int
VERSION: str
SOURCE: str

def check_records(segment: mmap | bytes | memoryview, base: int, start: int, limit: int) -> Scan: ...
def take_sends(data: bytes, at: int, place: Place) -> SendRun: ...
def try_sends(data: bytes, at: int, place: Place) -> SendRun | None: ...
def ordinary_units(
    data: bytes | memoryview, base: int, limit: int, most: int, most_keys: int
) -> OrdinaryUnits | None: ...
