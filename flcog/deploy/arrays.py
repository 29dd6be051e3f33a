"""Packed values in Flower's records. Flower cuts arrays into pieces and stores equal ones once; nothing here is ever unpickled."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord

from flcog.deploy.message_types import PACKED


def to_record(parts: Mapping[str, bytes]) -> ArrayRecord:
    """A record with the parts of a message."""
    return ArrayRecord({name: Array(dtype="uint8", shape=(len(part),), stype=PACKED, data=part) for name, part in parts.items()})


def from_record(record: Any) -> dict[str, bytes]:
    """The parts of a message. Records of other senders are refused."""
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"a message of flcog contains an ArrayRecord; got {type(record).__name__}")
    for name, array in record.items():
        if array.stype != PACKED:
            raise ValueError(
                f"arrays of flcog's messages have the serialisation {PACKED}; {name[:80]!r} has {array.stype[:80]!r}"
            )
    return {name: array.data for name, array in record.items()}
