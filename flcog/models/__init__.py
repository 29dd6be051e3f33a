"""Networks of the literature, each split into features and a head, and LoRA, which fine-tunes any network."""

from flcog.models.base import Dropout as Dropout
from flcog.models.base import FeatureModel as FeatureModel
from flcog.models.causal_lm import CausalLM as CausalLM
from flcog.models.hugging_face import HuggingFace as HuggingFace
from flcog.models.images import CIFAR100CNN as CIFAR100CNN
from flcog.models.images import VGG11 as VGG11
from flcog.models.images import FedDynCNN as FedDynCNN
from flcog.models.images import FedRepCNN as FedRepCNN
from flcog.models.images import LeNet as LeNet
from flcog.models.images import PflCNN as PflCNN
from flcog.models.images import ResNet18 as ResNet18
from flcog.models.images import SampleConvNet as SampleConvNet
from flcog.models.images import SimpleCNN as SimpleCNN
from flcog.models.instruction_tuning import InstructionTuning as InstructionTuning
from flcog.models.lora import LoRA as LoRA
from flcog.models.timm import Timm as Timm
from flcog.models.vectors import MLP as MLP
from flcog.models.vectors import FastText as FastText
from flcog.models.vectors import SoftmaxRegression as SoftmaxRegression
from flcog.models.vectors import TextCNN as TextCNN
