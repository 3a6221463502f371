"""Writes `tensorboard.bin` with the protocol-buffer classes of the `tensorboard` package (2.20) and its masked crc32c,
and reads it back with its event loader. Run by hand: python write_tensorboard.py
"""

import struct
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import masked_crc32c


def record(event: Event) -> bytes:
    payload = event.SerializeToString()
    length = struct.pack("<Q", len(payload))
    crc = lambda data: struct.pack("<I", masked_crc32c(data))
    return length + crc(length) + payload + crc(payload)


value = Summary.Value
path = Path(__file__).with_name("tensorboard.bin")
path.write_bytes(
    record(Event(wall_time=1_700_000_000.5, file_version="brain.Event:2"))
    + record(
        Event(
            wall_time=1_700_000_001.25,
            step=300,
            summary=Summary(value=[value(tag="reward", simple_value=0.5), value(tag="eval/pass@1", simple_value=0.75)]),
        )
    )
)
events = list(EventFileLoader(str(path)).Load())
assert events[1].step == 300 and events[1].summary.value[0].tag == "reward", events
print(f"{path.name}: {len(events)} events read back")
