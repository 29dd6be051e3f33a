"""For authors of methods and observers: the hooks, their arguments, and their results."""

from flcog.core.types import Batch, Params, Slot
from flcog.method.aggregator import AggregationRule, Aggregator, UploadAggregator, UploadChange, UploadMatrix
from flcog.method.attack import Attack
from flcog.method.checks import check_methods
from flcog.method.client_view import ClientView, Population
from flcog.method.clock import AsynchronousRounds, Clock, Cutoff, RoundEnd, StepClock, Work, clock_of, expected_cohort
from flcog.method.cohort import ClientUpload, Cohort, Messages, Uploads
from flcog.method.context import (
    ClientData,
    Context,
    FirstContact,
    GlobalModel,
    Gradient,
    GradientFunction,
    Optimisation,
    Upload,
)
from flcog.method.data_exchange import Ask, DataExchange, DataHost, ExchangeSummary
from flcog.method.method import CLIENT_HOOKS, HOOKS, OBSERVER_HOOKS, Method, method_of
from flcog.method.observer import Callback, MethodRecord, Note, Notes, Run, Trackers
from flcog.method.personal import LocalParts, ParameterMask, Personal, Personalisation, local_names, seen_by
from flcog.method.private_sum import Normal, PrivateSum, Training, Withholding
from flcog.method.returned import drawn, first_contact
from flcog.method.sealed_sum import RoundKeys, SealedSum, SealedUploads
from flcog.method.selection import (
    AvailabilityModel,
    ClientPool,
    Participants,
    RoundRecord,
    SamplingLaw,
    Selection,
    Unbiased,
    Workload,
)
from flcog.method.stage import Broadcast, BroadcastStage, SentBroadcast, Stage
from flcog.wire.envelope import Envelope

__all__ = [
    "CLIENT_HOOKS",
    "HOOKS",
    "OBSERVER_HOOKS",
    "AggregationRule",
    "Aggregator",
    "Ask",
    "AsynchronousRounds",
    "Attack",
    "AvailabilityModel",
    "Batch",
    "Broadcast",
    "BroadcastStage",
    "Callback",
    "ClientData",
    "ClientPool",
    "ClientUpload",
    "ClientView",
    "Clock",
    "Cohort",
    "Context",
    "Cutoff",
    "DataExchange",
    "DataHost",
    "Envelope",
    "ExchangeSummary",
    "FirstContact",
    "GlobalModel",
    "Gradient",
    "GradientFunction",
    "LocalParts",
    "Messages",
    "Method",
    "MethodRecord",
    "Normal",
    "Note",
    "Notes",
    "Optimisation",
    "ParameterMask",
    "Params",
    "Participants",
    "Personal",
    "Personalisation",
    "Population",
    "PrivateSum",
    "RoundEnd",
    "RoundKeys",
    "RoundRecord",
    "Run",
    "SamplingLaw",
    "SealedSum",
    "SealedUploads",
    "Selection",
    "SentBroadcast",
    "Slot",
    "Stage",
    "StepClock",
    "Trackers",
    "Training",
    "Unbiased",
    "Upload",
    "UploadAggregator",
    "UploadChange",
    "UploadMatrix",
    "Uploads",
    "Withholding",
    "Work",
    "Workload",
    "check_methods",
    "clock_of",
    "drawn",
    "expected_cohort",
    "first_contact",
    "local_names",
    "method_of",
    "seen_by",
]
