"""Disks whose bytes rot."""

from random import Random

from rmqha.store.examining import examine_store, open_log
from rmqha.store.log.mappedfile import file_name
from rmqha.testing.sim.audit import messages
from rmqha.testing.sim.nodes import SimNode


def rot_a_message(node: SimNode, random: Random) -> int | None:
    """A message on the disk of a node that is down rots, where its next start looks: one bit, or all of it.

    Returns its offset; None if there is no message with a body.
    """
    node.disk.system_call = lambda name, path: None
    log = open_log(node.settings, owned=False, disk=node.disk)
    examined = examine_store(node.settings, disk=node.disk)
    found = [stored for stored in messages(log, examined.checked_from, examined.found.end) if stored.record.body]
    if not found:
        return None
    stored = random.choice(found)
    record, position = stored.record, stored.offset % log.segment_size
    content = log.get_data(stored.offset, record.total_size)
    assert content is not None
    damage = bytearray(record.total_size)
    if random.random() < 0.7:
        damage[:] = content
        at = damage.index(record.body) + random.randrange(len(record.body))
        damage[at] ^= 1 << random.randrange(8)
    node.disk.rot(log.folder / file_name(stored.offset - position), position, bytes(damage))
    return stored.offset
