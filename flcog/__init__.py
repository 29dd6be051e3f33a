"""flcog: federated learning for PyTorch Lightning. Methods are callbacks, and a run can combine any set of them."""

import os

# Idle threads of GNU OpenMP spin for milliseconds before they sleep, so that two runs at the same time slow each other down (a SimpleCNN
# step of 12 ms took 250 ms on two cores). A hundredth of torch's default does not slow a single run. torch reads this once, when it loads.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

from typing import TYPE_CHECKING

from flcog.core.lazy import lazily

if TYPE_CHECKING:
    from lightning import seed_everything as seed_everything

    from flcog import models as models
    from flcog import schedules as schedules
    from flcog.client_module import Classifier as Classifier
    from flcog.client_module import ClientModule as ClientModule
    from flcog.client_module import MultiLabelClassifier as MultiLabelClassifier
    from flcog.client_module import Regressor as Regressor
    from flcog.commands.federated_cli import FederatedCLI as FederatedCLI
    from flcog.commands.report.command import plot as plot
    from flcog.core.types import Batch as Batch
    from flcog.core.types import Params as Params
    from flcog.core.types import Slot as Slot
    from flcog.data import Exchange as Exchange
    from flcog.data import FederatedDataModule as FederatedDataModule
    from flcog.data import Federation as Federation
    from flcog.data import Partition as Partition
    from flcog.data import Samples as Samples
    from flcog.data import Splits as Splits
    from flcog.functional.apply import Apply as Apply
    from flcog.method import Aggregator as Aggregator
    from flcog.method import Attack as Attack
    from flcog.method import AvailabilityModel as AvailabilityModel
    from flcog.method import Callback as Callback
    from flcog.method import ClientPool as ClientPool
    from flcog.method import ClientView as ClientView
    from flcog.method import Cohort as Cohort
    from flcog.method import Context as Context
    from flcog.method import FirstContact as FirstContact
    from flcog.method import Gradient as Gradient
    from flcog.method import GradientFunction as GradientFunction
    from flcog.method import LocalParts as LocalParts
    from flcog.method import Messages as Messages
    from flcog.method import Method as Method
    from flcog.method import ParameterMask as ParameterMask
    from flcog.method import Participants as Participants
    from flcog.method import Personal as Personal
    from flcog.method import RoundRecord as RoundRecord
    from flcog.method import Run as Run
    from flcog.method import Selection as Selection
    from flcog.method import Stage as Stage
    from flcog.method import Upload as Upload
    from flcog.method import UploadAggregator as UploadAggregator
    from flcog.method import UploadChange as UploadChange
    from flcog.method import UploadMatrix as UploadMatrix
    from flcog.run.saved_run import SavedRun as SavedRun
    from flcog.trainer import FederatedTrainer as FederatedTrainer
else:
    __getattr__, __dir__ = lazily(__name__)

__version__ = "0.1.0"
