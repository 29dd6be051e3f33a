"""Data modules for the papers' data sets and for your own, and partitioners that split a training set over clients."""

from typing import TYPE_CHECKING

from flcog.core.lazy import lazily

if TYPE_CHECKING:
    from flcog.datamodules.ag_news import AGNews
    from flcog.datamodules.array_data import ArrayData
    from flcog.datamodules.cifar import CIFAR10, CIFAR100
    from flcog.datamodules.digits import Digits
    from flcog.datamodules.dsprites import DSprites
    from flcog.datamodules.facebook_comments import FacebookComments
    from flcog.datamodules.femnist import FEMNIST
    from flcog.datamodules.flair import FLAIR
    from flcog.datamodules.ham10000 import HAM10000
    from flcog.datamodules.hugging_face import HuggingFace
    from flcog.datamodules.image_folders import ImageFolders
    from flcog.datamodules.instruction_data import InstructionData
    from flcog.datamodules.lightning_data import LightningData
    from flcog.datamodules.mnist import MNIST, FashionMNIST
    from flcog.datamodules.partitioners import (
        IID,
        BiasedUnbiased,
        ByClass,
        ClientDirichlet,
        Dirichlet,
        EqualDirichlet,
        InnerDirichlet,
        LabelShards,
        LongTail,
        Natural,
        NIIDBench,
        Partitioner,
        Quantity,
        Saved,
        Shuffled,
        SortedShards,
        class_labels,
    )
    from flcog.datamodules.quadratics import LeastSquares, Quadratics
    from flcog.datamodules.random_data import RandomData
    from flcog.datamodules.table import Table
    from flcog.datamodules.torch_dataset import TorchDataset
else:
    __getattr__, __dir__ = lazily(__name__)

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FEMNIST",
    "FLAIR",
    "HAM10000",
    "IID",
    "MNIST",
    "AGNews",
    "ArrayData",
    "BiasedUnbiased",
    "ByClass",
    "ClientDirichlet",
    "DSprites",
    "Digits",
    "Dirichlet",
    "EqualDirichlet",
    "FacebookComments",
    "FashionMNIST",
    "HuggingFace",
    "ImageFolders",
    "InnerDirichlet",
    "InstructionData",
    "LabelShards",
    "LeastSquares",
    "LightningData",
    "LongTail",
    "NIIDBench",
    "Natural",
    "Partitioner",
    "Quadratics",
    "Quantity",
    "RandomData",
    "Saved",
    "Shuffled",
    "SortedShards",
    "Table",
    "TorchDataset",
    "class_labels",
]
