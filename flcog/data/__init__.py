"""Samples, their partition over clients, both in one federation, and the base class of data modules."""

from flcog.data.federation import CentralSets as CentralSets
from flcog.data.federation import Exchange as Exchange
from flcog.data.federation import Federation as Federation
from flcog.data.module import FederatedDataModule as FederatedDataModule
from flcog.data.partition import IID as IID
from flcog.data.partition import Natural as Natural
from flcog.data.partition import Partition as Partition
from flcog.data.partition import Partitioner as Partitioner
from flcog.data.partition import partition_by as partition_by
from flcog.data.preprocess import Preprocess as Preprocess
from flcog.data.samples import LABELLED as LABELLED
from flcog.data.samples import Augment as Augment
from flcog.data.samples import NewInputs as NewInputs
from flcog.data.samples import Samples as Samples
from flcog.data.samples import Splits as Splits
from flcog.data.samples import Task as Task
