"""The type of Flower's message for each request."""

TYPES = {
    "begin": "query.begin",
    "roll_call": "query.roll_call",
    "exchange": "query.exchange",
    "set_up": "query.set_up",
    "contact": "train.contact",
    "train": "train",
    "evaluate": "evaluate",
    "losses": "evaluate.losses",
    "personal_model": "query.personal_model",
    "end": "query.end",
}

REQUEST, ANSWER, TIMES, ERROR = "flcog.request", "flcog.answer", "flcog.times", "flcog.error"
"""The records of a message."""

PACKED = "flcog.packed"
"""The serialisation of the arrays in these records: bytes of ``flcog.wire.packing``."""
