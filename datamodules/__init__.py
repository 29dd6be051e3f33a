"""Data modules for the papers' data sets and for your own, and partitioners that split a training set over clients."""

from typing import TYPE_CHECKING

from flcog.core.lazy import lazily

if TYPE_CHECKING:
    from flcog.datamodules.ag_news import AGNews as AGNews
    from flcog.datamodules.array_data import ArrayData as ArrayData
    from flcog.datamodules.cifar import CIFAR10 as CIFAR10
    from flcog.datamodules.cifar import CIFAR100 as CIFAR100
    from flcog.datamodules.digits import Digits as Digits
    from flcog.datamodules.dsprites import DSprites as DSprites
    from flcog.datamodules.facebook_comments import FacebookComments as FacebookComments
    from flcog.datamodules.femnist import FEMNIST as FEMNIST
    from flcog.datamodules.flair import FLAIR as FLAIR
    from flcog.datamodules.ham10000 import HAM10000 as HAM10000
    from flcog.datamodules.hugging_face import HuggingFace as HuggingFace
    from flcog.datamodules.hugging_face import characters as characters
    from flcog.datamodules.image_folders import ImageFolders as ImageFolders
    from flcog.datamodules.instruction_data import InstructionData as InstructionData
    from flcog.datamodules.lightning_data import LightningData as LightningData
    from flcog.datamodules.mnist import MNIST as MNIST
    from flcog.datamodules.mnist import FashionMNIST as FashionMNIST
    from flcog.datamodules.partitioners import IID as IID
    from flcog.datamodules.partitioners import BiasedUnbiased as BiasedUnbiased
    from flcog.datamodules.partitioners import ByClass as ByClass
    from flcog.datamodules.partitioners import ClientDirichlet as ClientDirichlet
    from flcog.datamodules.partitioners import Dirichlet as Dirichlet
    from flcog.datamodules.partitioners import EqualDirichlet as EqualDirichlet
    from flcog.datamodules.partitioners import InnerDirichlet as InnerDirichlet
    from flcog.datamodules.partitioners import LabelShards as LabelShards
    from flcog.datamodules.partitioners import LongTail as LongTail
    from flcog.datamodules.partitioners import Natural as Natural
    from flcog.datamodules.partitioners import NIIDBench as NIIDBench
    from flcog.datamodules.partitioners import Partitioner as Partitioner
    from flcog.datamodules.partitioners import Quantity as Quantity
    from flcog.datamodules.partitioners import Saved as Saved
    from flcog.datamodules.partitioners import Shuffled as Shuffled
    from flcog.datamodules.partitioners import SortedShards as SortedShards
    from flcog.datamodules.partitioners import class_labels as class_labels
    from flcog.datamodules.quadratics import LeastSquares as LeastSquares
    from flcog.datamodules.quadratics import Quadratics as Quadratics
    from flcog.datamodules.random_data import RandomData as RandomData
    from flcog.datamodules.table import Table as Table
    from flcog.datamodules.torch_dataset import TorchDataset as TorchDataset
else:
    __getattr__, __dir__ = lazily(__name__)
