"""flcog: federated learning for PyTorch Lightning. Methods are callbacks, and a run can combine any set of them."""

import os

# Idle threads of GNU OpenMP spin for milliseconds before they sleep, so that two runs at the same time slow each other down (a SimpleCNN
# step of 12 ms took 250 ms on two cores). A hundredth of torch's default does not slow a single run. torch reads this once, when it loads.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

from typing import TYPE_CHECKING

from flcog.core import torchmetrics_imports
from flcog.core.lazy import lazily

torchmetrics_imports.delay()  # before Lightning imports it

if TYPE_CHECKING:
    from lightning import seed_everything

    from flcog import models, schedules
    from flcog.client_module import Classifier, ClientModule, MultiLabelClassifier, Regressor
    from flcog.commands.federated_cli import FederatedCLI
    from flcog.commands.report.command import plot
    from flcog.core.types import Batch, Params, Slot
    from flcog.data import Exchange, FederatedDataModule, Federation, Partition, Samples, Splits
    from flcog.functional.apply import Apply
    from flcog.method import (
        Aggregator,
        Attack,
        AvailabilityModel,
        Callback,
        ClientPool,
        ClientView,
        Cohort,
        Context,
        FirstContact,
        Gradient,
        GradientFunction,
        LocalParts,
        Messages,
        Method,
        ParameterMask,
        Participants,
        Personal,
        RoundRecord,
        Run,
        Selection,
        Stage,
        Upload,
        UploadAggregator,
        UploadChange,
        UploadMatrix,
    )
    from flcog.run.saved_run import SavedRun
    from flcog.trainer import FederatedTrainer
else:
    __getattr__, __dir__ = lazily(__name__)

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Apply",
    "Attack",
    "AvailabilityModel",
    "Batch",
    "Callback",
    "Classifier",
    "ClientModule",
    "ClientPool",
    "ClientView",
    "Cohort",
    "Context",
    "Exchange",
    "FederatedCLI",
    "FederatedDataModule",
    "FederatedTrainer",
    "Federation",
    "FirstContact",
    "Gradient",
    "GradientFunction",
    "LocalParts",
    "Messages",
    "Method",
    "MultiLabelClassifier",
    "ParameterMask",
    "Params",
    "Participants",
    "Partition",
    "Personal",
    "Regressor",
    "RoundRecord",
    "Run",
    "Samples",
    "SavedRun",
    "Selection",
    "Slot",
    "Splits",
    "Stage",
    "Upload",
    "UploadAggregator",
    "UploadChange",
    "UploadMatrix",
    "models",
    "plot",
    "schedules",
    "seed_everything",
]
