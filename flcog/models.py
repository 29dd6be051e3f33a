"""The networks of the federated-learning literature, each split into features and a head, and a dropout any executor can run."""

import logging
import math
import textwrap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.core.checks import all_at_least, at_least, one_of, within
from flcog.core.randomness import GOLDEN, mix
from flcog.core.trees import Tree, call

_log = logging.getLogger(__name__)


class FeatureModel(nn.Module, ABC):
    """A network whose last step is ``head(features(x))``.

    Methods that look inside a model ask for no more than this: MOON and FedDecorr read the features, FedRep keeps the head
    at home, FedWalk and VHL replace it by another.
    """

    head: nn.Module
    num_features: int

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """What the head reads, [B, num_features]."""

    def forward(self, inputs: Tree, /) -> Tensor:
        outputs: Tensor = self.head(call(self.features, inputs))
        return outputs

    def _check_input(self, x: Tensor, *shape: int, fix: str) -> None:
        # torch's own message would name two matrices that the user has never seen.
        if x.shape[1:] != shape:
            raise ValueError(f"{type(self).__name__} takes inputs of shape {shape}, got {tuple(x.shape[1:])}: {fix}")


class Dropout(nn.Module):
    """Dropout whose noise is a function of a key, not of a random stream: loop, vmap and a resumed run drop the same elements.

    Element i of a [B, ...] input, counted row by row, is kept where a hash of (key, i) falls into the upper 1 - p of its range,
    and scaled by 1 / (1 - p). Rows added at the end as padding leave the others' masks alone. Each forward in training mode
    moves the key on in place, as BatchNorm does with ``num_batches_tracked``, so the next one drops others. The engine
    sets ``dropout_key`` for every round, client and layer; layers left at the same key drop the same elements.

    Args:
        p: the probability to drop an element, in [0, 1).
    """

    dropout_key: Tensor

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        within(self, "[0, 1)", p=p)
        self.p = p
        # The hash is read as a signed integer: its range starts at -2**63.
        self._first_kept = math.floor(p * 2**64) - 2**63
        self.register_buffer("dropout_key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        position = torch.arange(x.numel(), device=x.device).view(x.shape)
        # The key is mixed before the positions join, or the masks of neighbouring keys would be shifted copies.
        bits = mix(mix(self.dropout_key + GOLDEN) + position * GOLDEN)
        self.dropout_key.add_(1)
        return torch.where(bits >= self._first_kept, x / (1 - self.p), 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class LeNet(FeatureModel):
    """Unpadded convolutions, each pooled by 2, then fully connected layers: the small CNNs of the field are settings of it.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        num_classes: the number of outputs.
        image_size: side of the square images; None takes 28 for one channel and 32 otherwise.
        channels: output channels of each convolution.
        kernel_size: side of the convolutions' kernels.
        hidden: widths of the hidden fully connected layers; the last is the number of features.
        dropout: probability to drop a feature before the head.
    """

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        image_size: int | None = None,
        channels: Sequence[int] = (6, 16),
        kernel_size: int = 5,
        hidden: Sequence[int] = (120, 84),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if image_size is None:
            image_size = 28 if in_channels == 1 else 32
        at_least(self, 1, in_channels=in_channels, num_classes=num_classes, image_size=image_size, kernel_size=kernel_size)
        all_at_least(self, 1, channels=channels, hidden=hidden)
        size, smallest = image_size, 1
        for _ in channels:
            size = (size - kernel_size + 1) // 2
            smallest = 2 * smallest + kernel_size - 1
        if size < 1:
            raise ValueError(f"image_size must be at least {smallest} for this {type(self).__name__}, got {image_size}")

        self.in_channels, self.image_size = in_channels, image_size
        convolutions: list[nn.Module] = []
        for before, after in pairwise([in_channels, *channels]):
            # ReLU and max-pooling commute; after the pooling ReLU has a quarter of the work.
            convolutions += [nn.Conv2d(before, after, kernel_size), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        self.convolutions = nn.Sequential(*convolutions)
        self.hidden = _fully_connected([channels[-1] * size * size, *hidden])
        self.dropout = Dropout(dropout) if dropout else nn.Identity()
        self.num_features = hidden[-1]
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        size = self.image_size
        self._check_input(x, self.in_channels, size, size, fix="set in_channels and image_size to those of the data")
        return self.dropout(self.hidden(self.convolutions(x).flatten(1)))


class SimpleCNN(LeNet):
    """The CNN of MOON, NIID-Bench, FedDisco and FedCOG for 10 classes: 62,006 parameters in colour, 44,426 in grey.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        num_classes: the number of outputs.
        image_size: side of the square images; None takes 28 for one channel and 32 otherwise.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, image_size: int | None = None) -> None:
        super().__init__(in_channels, num_classes, image_size, channels=(6, 16), hidden=(120, 84))


class CIFAR100CNN(LeNet):
    """FedCOG's CNN for CIFAR-100: 69,380 parameters, for 32x32 images.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        num_classes: the number of outputs.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 100) -> None:
        super().__init__(in_channels, num_classes, image_size=32, channels=(16, 32, 64), kernel_size=3, hidden=(128,))


class FedDynCNN(LeNet):
    """The CNN of the FedDyn paper, 797,962 parameters for 10 classes of 32x32 colour images.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        num_classes: the number of outputs.
        image_size: side of the square images; None takes 28 for one channel and 32 otherwise.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, image_size: int | None = None) -> None:
        super().__init__(in_channels, num_classes, image_size, channels=(64, 64), hidden=(384, 192))


class FedRepCNN(LeNet):
    """The CIFAR-10 CNN of the FedRep code, 307,842 parameters for 10 classes of 32x32 colour images.

    Its CIFAR-100 form is ``LeNet(num_classes=100, channels=(64, 128), hidden=(256, 128), dropout=0.6)``.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        num_classes: the number of outputs.
        image_size: side of the square images; None takes 28 for one channel and 32 otherwise.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10, image_size: int | None = None) -> None:
        super().__init__(in_channels, num_classes, image_size, channels=(64, 64), hidden=(120, 64))


class VGG11(FeatureModel):
    """VGG-11 without normalisation, as in Fedssyn and FedPVR: 9,750,922 parameters for 32x32 images of 10 classes.

    Its eight convolutions are the first 16 parameter tensors and its three fully connected layers the last six.

    Args:
        num_classes: the number of outputs.
        in_channels: 1 for grey images, 3 for colour.
        dropout: probability to drop an input of each of the two hidden fully connected layers.
        image_size: the images' height and width, at least 32; five poolings leave a 32nd of it, which the first fully connected
            layer reads.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.5, image_size: int = 32) -> None:
        super().__init__()
        at_least(self, 1, num_classes=num_classes, in_channels=in_channels)
        at_least(self, 32, image_size=image_size)
        self.in_channels, self.image_size = in_channels, image_size
        layers: list[nn.Module] = []
        for before, after, pooled in [
            (in_channels, 64, True),
            (64, 128, True),
            (128, 256, False),
            (256, 256, True),
            (256, 512, False),
            (512, 512, True),
            (512, 512, False),
            (512, 512, True),
        ]:
            convolution = nn.Conv2d(before, after, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            layers += [convolution, *([nn.MaxPool2d(2)] if pooled else []), nn.ReLU(inplace=True)]
        self.convolutions = nn.Sequential(*layers)
        self.num_features = 512
        self.hidden = nn.Sequential(
            Dropout(dropout),
            nn.Linear(512 * (image_size // 32) ** 2, 512),
            nn.ReLU(inplace=True),
            Dropout(dropout),
            nn.Linear(512, self.num_features),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        size = self.image_size
        self._check_input(x, self.in_channels, size, size, fix="set in_channels and image_size to the data's")
        return self.hidden(self.convolutions(x).flatten(1))


class ResNet18(FeatureModel):
    """torchvision's ResNet-18, with the stem and the norm that small images and small local batches ask for.

    FedDisco's form is ``stem="3x3", norm="group"``; FedCOG trains torchvision's own on FLAIR.

    Args:
        num_classes: the number of outputs.
        stem: "7x7" with stride 2 and max-pooling, for large images; "3x3" without either, for 32x32 ones.
        norm: "batch" (its statistics are averaged over clients) or "group".
        num_groups: groups of each GroupNorm; divides 64.
        weights: a file saved by ``torch.save(model.state_dict(), path)`` of this model or of torchvision's, or "imagenet" for
            torchvision's pretrained ones, from torch hub's cache or downloaded into it. A head of another number
            of classes is not loaded.
        in_channels: 1 for grey images, 3 for colour.
    """

    def __init__(
        self,
        num_classes: int = 10,
        stem: Literal["7x7", "3x3"] = "7x7",
        norm: Literal["batch", "group"] = "batch",
        num_groups: int = 2,
        weights: str | Path | None = None,
        in_channels: int = 3,
    ) -> None:
        from torchvision.models import resnet18

        super().__init__()
        at_least(self, 1, num_classes=num_classes, num_groups=num_groups, in_channels=in_channels)
        one_of(self, ("7x7", "3x3"), stem=stem)
        one_of(self, ("batch", "group"), norm=norm)
        if 64 % num_groups:
            raise ValueError(f"num_groups must divide 64, the number of channels of the first layers, got {num_groups}")
        if norm == "batch" and num_groups != 2:
            warnings.warn(f"num_groups={num_groups} has no effect with norm='batch': set norm='group'", stacklevel=2)
        if weights == "imagenet" and (stem, norm, in_channels) != ("7x7", "batch", 3):
            raise ValueError(
                "weights='imagenet' were trained with stem='7x7', norm='batch' and in_channels=3, "
                f"got stem={stem!r}, norm={norm!r} and in_channels={in_channels}: change these or give a file of your own"
            )

        norm_layer = nn.BatchNorm2d if norm == "batch" else lambda width: nn.GroupNorm(num_groups, width)
        layers = dict(resnet18(num_classes=num_classes, norm_layer=norm_layer).named_children())
        if stem == "3x3" or in_channels != 3:
            kernel_size, stride, padding = (3, 1, 1) if stem == "3x3" else (7, 2, 3)
            layers["conv1"] = nn.Conv2d(in_channels, 64, kernel_size, stride, padding, bias=False)
            nn.init.kaiming_normal_(layers["conv1"].weight, mode="fan_out", nonlinearity="relu")
        if stem == "3x3":
            del layers["maxpool"]
        head = layers.pop("fc")
        self.in_channels = in_channels
        self.body = nn.Sequential()
        for name, layer in layers.items():
            self.body.add_module(name, layer)
        self.num_features = 512
        self.head = head
        if weights is not None:
            self._load(weights)

    def features(self, x: Tensor) -> Tensor:
        self._check_input(x, self.in_channels, *x.shape[2:], fix="set in_channels to that of the data")
        return self.body(x).flatten(1)

    def _load(self, weights: str | Path) -> None:
        state = _imagenet_state() if weights == "imagenet" else _read_state(weights)
        loaded = {}
        for name, value in state.items():
            if name.startswith("fc."):
                name = "head." + name.removeprefix("fc.")
            elif not name.startswith(("body.", "head.")):
                name = "body." + name
            loaded[name] = value
        for name, initial in self.head.state_dict(prefix="head.").items():
            if name not in loaded or loaded[name].shape != initial.shape:
                _log.info("%s of %s does not fit %s classes and keeps its initial values", name, weights, len(initial))
                loaded[name] = initial
        try:
            self.load_state_dict(loaded)
        except RuntimeError as error:
            reason = textwrap.shorten(str(error), 300)
            raise ValueError(f"{weights} holds another network: set stem, norm and in_channels to its own; {reason}") from None


class TextCNN(FeatureModel):
    """Kim's convolutional network for sentences (https://arxiv.org/abs/1408.5882), on token ids of which 0 is padding.

    Widths and dropout are Kim's. The embedding is trained from scratch and has FedDisco's 32 dimensions rather than word2vec's
    300: with a vocabulary of 100,000 words almost all of the model, and so of what a round sends, is the embedding.

    Args:
        vocab_size: the number of token ids, padding included.
        embedding_dim: dimensions of a token's embedding.
        num_classes: the number of outputs.
        kernel_sizes: tokens that a filter spans, for each group of filters.
        num_filters: filters in a group.
        dropout: probability to drop a feature before the head.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int = 32,
        num_classes: int = 4,
        kernel_sizes: Sequence[int] = (3, 4, 5),
        num_filters: int = 100,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        at_least(self, 1, vocab_size=vocab_size, embedding_dim=embedding_dim, num_classes=num_classes, num_filters=num_filters)
        all_at_least(self, 1, kernel_sizes=kernel_sizes)
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding_dim, num_filters, size) for size in kernel_sizes)
        self.shortest = max(kernel_sizes)
        self.dropout = Dropout(dropout)
        self.num_features = num_filters * len(kernel_sizes)
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.shortest:
            x = F.pad(x, (0, self.shortest - x.shape[1]))
        embedded = self.embedding(x).transpose(1, 2)
        # ReLU and the maximum over time commute, and after it there is one value in place of L.
        strongest = torch.cat([convolution(embedded).amax(-1) for convolution in self.convolutions], 1)
        return self.dropout(strongest.relu())


class SoftmaxRegression(FeatureModel):
    """A linear classifier on the flattened input, which is also its features: the convex model of the theory papers.

    Args:
        in_features: values per sample, channels x height x width for images.
        num_classes: the number of outputs.
    """

    def __init__(self, in_features: int = 784, num_classes: int = 10) -> None:
        super().__init__()
        at_least(self, 1, in_features=in_features, num_classes=num_classes)
        self.num_features = in_features
        self.head = nn.Linear(in_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self._check_input(x, self.num_features, fix="set in_features to the number of values per sample")
        return x


class MLP(FeatureModel):
    """Fully connected layers with ReLU, for tables; the outputs keep their axis, [B, num_outputs].

    Args:
        in_features: values per sample; 53 in Facebook's comment volumes.
        hidden: widths of the hidden layers; with none the model is linear.
        num_outputs: 1 for regression, the number of classes otherwise.
    """

    def __init__(self, in_features: int = 53, hidden: Sequence[int] = (64, 64), num_outputs: int = 1) -> None:
        super().__init__()
        at_least(self, 1, in_features=in_features, num_outputs=num_outputs)
        all_at_least(self, 1, hidden=hidden or None)
        self.in_features = in_features
        self.hidden = _fully_connected([in_features, *hidden])
        self.num_features = hidden[-1] if hidden else in_features
        self.head = nn.Linear(self.num_features, num_outputs)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self._check_input(x, self.in_features, fix="set in_features to the number of values per sample")
        return self.hidden(x)


def _fully_connected(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _imagenet_state() -> dict[str, Tensor]:
    from torchvision.models import ResNet18_Weights

    try:
        return ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except OSError as error:
        url = ResNet18_Weights.IMAGENET1K_V1.url
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise ValueError(f"weights='imagenet' could not be downloaded ({error}): copy {url} into {folder}") from error


def _read_state(path: str | Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive raises nearly every kind
        reason = textwrap.shorten(str(error), 200)
        raise ValueError(
            f"weights={str(path)!r} must be 'imagenet' or a file saved by torch.save(model.state_dict(), path): {reason}"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no state dict: save model.state_dict(), not the model or a whole checkpoint")
    return state
