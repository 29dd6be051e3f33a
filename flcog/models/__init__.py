"""Networks of the literature, each split into features and a head, and LoRA, which fine-tunes any network."""

from flcog.models.base import Dropout, FeatureModel
from flcog.models.causal_lm import CausalLM
from flcog.models.hugging_face import HuggingFace
from flcog.models.images import CIFAR100CNN, VGG11, FedDynCNN, FedRepCNN, LeNet, ResNet18, SimpleCNN
from flcog.models.instruction_tuning import InstructionTuning
from flcog.models.lora import LoRA
from flcog.models.pfl_cnn import PflCNN
from flcog.models.sample_conv_net import SampleConvNet
from flcog.models.timm import Timm
from flcog.models.vectors import MLP, SoftmaxRegression, TextCNN

__all__ = [
    "CIFAR100CNN",
    "MLP",
    "VGG11",
    "CausalLM",
    "Dropout",
    "FeatureModel",
    "FedDynCNN",
    "FedRepCNN",
    "HuggingFace",
    "InstructionTuning",
    "LeNet",
    "LoRA",
    "PflCNN",
    "ResNet18",
    "SampleConvNet",
    "SimpleCNN",
    "SoftmaxRegression",
    "TextCNN",
    "Timm",
]
