from mmap import mmap

from rmqha.wire.scanned import Scan

CONTRACT: int
VERSION: str
SOURCE: str

def check_records(segment: mmap | bytes | memoryview, base: int, start: int, limit: int) -> Scan: ...
