"""Samples, their partition over clients, both in one federation, and the base class of data modules."""

from flcog.data.federation import CentralSets, Exchange, Federation
from flcog.data.module import FederatedDataModule
from flcog.data.partition import IID, Partition, Partitioner, partition_by
from flcog.data.preprocess import Preprocess
from flcog.data.samples import LABELLED, Augment, NewInputs, Samples, Splits, Task

__all__ = [
    "IID",
    "LABELLED",
    "Augment",
    "CentralSets",
    "Exchange",
    "FederatedDataModule",
    "Federation",
    "NewInputs",
    "Partition",
    "Partitioner",
    "Preprocess",
    "Samples",
    "Splits",
    "Task",
    "partition_by",
]
