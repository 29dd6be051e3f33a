"""The convolutional networks of the federated-learning literature, each split into features and a head."""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from flcog.core.checks import all_at_least, at_least, one_of
from flcog.models.base import Dropout, FeatureModel, fully_connected
from flcog.models.loading import read_weights

_log = logging.getLogger(__name__)


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
        padding: zeros around the inputs of each convolution. McMahan et al. 2017's CNN for MNIST, with 1,663,370 parameters, is
            ``LeNet(1, channels=(32, 64), hidden=(512,), padding=2)``.
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
        padding: int = 0,
    ) -> None:
        super().__init__()
        if image_size is None:
            image_size = 28 if in_channels == 1 else 32
        at_least(self, 1, in_channels=in_channels, num_classes=num_classes, image_size=image_size, kernel_size=kernel_size)
        all_at_least(self, 1, channels=channels, hidden=hidden)
        at_least(self, 0, padding=padding)
        size = image_size
        for _ in channels:
            size = (size + 2 * padding - kernel_size + 1) // 2
        at_least(self, 1, **{f"what the layers leave of image_size {image_size}": size}, hint="choose a larger image_size")
        self.in_channels, self.image_size = in_channels, image_size
        convolutions: list[nn.Module] = []
        for before, after in pairwise([in_channels, *channels]):
            # ReLU and max-pooling commute; after the pooling ReLU has a quarter of the work.
            convolutions += [nn.Conv2d(before, after, kernel_size, padding=padding), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        self.convolutions = nn.Sequential(*convolutions)
        self.hidden = fully_connected([channels[-1] * size * size, *hidden])
        self.dropout = Dropout(dropout) if dropout else nn.Identity()
        self.num_features = hidden[-1]
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        size = self.image_size
        self._check_input(x, self.in_channels, size, size, fix="set in_channels and image_size to the data's")
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


class PflCNN(FeatureModel):
    """The CIFAR-10 CNN of pfl-research's benchmarks: 1,626,442 parameters for 10 classes of 32x32 colour images.

    Two unpadded 3x3 convolutions of 32 and 64 channels, one pooling by 2, a fully connected layer of 128, which holds nearly all
    of the parameters. Weights begin as Glorot's uniform ones.

    Granqvist et al., pfl-research: simulation framework for accelerating research in Private Federated Learning, 2024,
    https://arxiv.org/abs/2404.06430; https://github.com/apple/pfl-research.

    Args:
        in_channels: 1 for grey images, 3 for colour.
        num_classes: the number of outputs.
        image_size: side of the square images, at least 6.
        dropout: probabilities to drop a pooled value, and a feature before the head; 0 and 0 for none.
    """

    def __init__(
        self, in_channels: int = 3, num_classes: int = 10, image_size: int = 32, dropout: tuple[float, float] = (0.25, 0.5)
    ) -> None:
        super().__init__()
        at_least(self, 1, in_channels=in_channels, num_classes=num_classes)
        at_least(self, 6, image_size=image_size)
        self.in_channels, self.image_size, self.num_features = in_channels, image_size, 128
        after_pooling, before_head = dropout
        # ReLU and max-pooling commute; after the pooling ReLU has a quarter of the work.
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)
        )
        self.hidden = nn.Sequential(
            Dropout(after_pooling),
            nn.Linear(64 * ((image_size - 4) // 2) ** 2, self.num_features),
            nn.ReLU(inplace=True),
            Dropout(before_head),
        )
        self.head = nn.Linear(self.num_features, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def features(self, x: Tensor) -> Tensor:
        size = self.image_size
        self._check_input(x, self.in_channels, size, size, fix="set in_channels and image_size to the data's")
        return self.hidden(self.convolutions(x).flatten(1))


class SampleConvNet(FeatureModel):
    """The network of Opacus' MNIST example, for 28x28 grey images: 26,010 parameters for 10 classes.

    Two convolutions with stride 2, each pooled by windows of 2 with stride 1, and a fully connected layer of 32. Yousefpour et al.,
    Opacus: User-Friendly Differential Privacy Library in PyTorch, 2021, https://arxiv.org/abs/2109.12298.

    Args:
        num_classes: the number of outputs.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        at_least(self, 1, num_classes=num_classes)
        self.num_features = 32
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        )  # fmt: skip
        self.hidden = nn.Sequential(nn.Linear(32 * 4 * 4, self.num_features), nn.ReLU())
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        self._check_input(x, 1, 28, 28, fix="take 28x28 grey images")
        return self.hidden(self.convolutions(x).flatten(1))


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
        num_groups: groups of each GroupNorm, with norm="group"; divides 64.
        weights: a file with the ``state_dict`` of this model or of torchvision's, ``.pth`` or ``.safetensors``, or "imagenet" for
            torchvision's pretrained ones, from torch hub's cache or downloaded into it. A head of another number of classes is not
            loaded.
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
        norm_layer = nn.BatchNorm2d if norm == "batch" else lambda width: nn.GroupNorm(num_groups, width)
        layers = dict(resnet18(num_classes=num_classes, norm_layer=norm_layer).named_children())
        if stem == "3x3" or in_channels != 3:
            kernel_size, stride, padding = (3, 1, 1) if stem == "3x3" else (7, 2, 3)
            layers["conv1"] = nn.Conv2d(in_channels, 64, kernel_size, stride, padding, bias=False)
            nn.init.kaiming_normal_(layers["conv1"].weight, mode="fan_out", nonlinearity="relu")
        if stem == "3x3":
            del layers["maxpool"]
        del layers["avgpool"]  # a mean, which features() takes: torch's own layer would take it client by client under vmap
        head = layers.pop("fc")
        self.in_channels, self.num_features = in_channels, 512
        self.body, self.head = nn.Sequential(OrderedDict(layers)), head
        if weights is not None:
            self._load(weights)

    def features(self, x: Tensor) -> Tensor:
        self._check_input(x, self.in_channels, *x.shape[2:], fix="set in_channels to the data's")
        return self.body(x).mean((-2, -1))

    def _load(self, weights: str | Path) -> None:
        state = _imagenet_state() if weights == "imagenet" else read_weights(Path(weights), "ResNet18")
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
        self.load_state_dict(loaded)


def _imagenet_state() -> dict[str, Tensor]:
    from torchvision.models import ResNet18_Weights

    try:
        return ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except OSError as error:
        url = ResNet18_Weights.IMAGENET1K_V1.url
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        raise ValueError(f"weights='imagenet' could not be downloaded ({error}): copy {url} into {folder}") from error
