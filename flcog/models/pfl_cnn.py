"""The convolutional network of pfl-research's benchmarks."""

from torch import Tensor, nn

from flcog.core.checks import at_least
from flcog.models.base import Dropout, FeatureModel


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
        if len(dropout) != 2:
            raise ValueError(f"PflCNN: dropout must be two probabilities, after the pooling and before the head; got {dropout}")
        self.in_channels, self.image_size, self.num_features = in_channels, image_size, 128
        # ReLU and max-pooling commute; after the pooling ReLU has a quarter of the work.
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)
        )
        self.hidden = nn.Sequential(
            Dropout(dropout[0]),
            nn.Linear(64 * ((image_size - 4) // 2) ** 2, self.num_features),
            nn.ReLU(inplace=True),
            Dropout(dropout[1]),
        )
        self.head = nn.Linear(self.num_features, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def features(self, x: Tensor) -> Tensor:
        size = self.image_size
        self._check_input(x, self.in_channels, size, size, fix="set in_channels and image_size to the data's")
        return self.hidden(self.convolutions(x).flatten(1))
