"""The network of Opacus' MNIST example."""

from torch import Tensor, nn

from flcog.core.checks import at_least
from flcog.models.base import FeatureModel


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
