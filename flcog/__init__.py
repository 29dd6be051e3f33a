"""flcog: federated learning for PyTorch Lightning, in which methods are callbacks and any set of them composes in one run."""

from flcog import models, schedules
from flcog.client import Classifier, ClientModule, MultiLabelClassifier, Regressor
from flcog.data import FederatedDataModule, Federation, Partition, Samples, Splits
from flcog.hooks import Batch, Callback, Context, Method, Params, Upload
from flcog.trainer import FederatedTrainer

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Callback",
    "Classifier",
    "ClientModule",
    "Context",
    "FederatedDataModule",
    "FederatedTrainer",
    "Federation",
    "Method",
    "MultiLabelClassifier",
    "Params",
    "Partition",
    "Regressor",
    "Samples",
    "Splits",
    "Upload",
    "models",
    "schedules",
]
