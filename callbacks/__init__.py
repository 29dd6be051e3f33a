"""Federated methods and observers for ``FederatedTrainer(callbacks=[...])``, which calls them in the order of the list."""

from typing import TYPE_CHECKING

from flcog.callbacks.papers import BOUNDS as BOUNDS
from flcog.callbacks.papers import PAPERS as PAPERS
from flcog.core.commands import Command, TrainerCommand
from flcog.core.lazy import lazily

if TYPE_CHECKING:
    from flcog.callbacks.attacks.batches import Backdoor, LabelFlip
    from flcog.callbacks.attacks.omniscient import ALittleIsEnough, InnerProductManipulation, Mimic, MinMax
    from flcog.callbacks.attacks.uploads import GaussianAttack, SignFlip
    from flcog.callbacks.bounds import Centralized, Local
    from flcog.callbacks.clip_update import ClipUpdate
    from flcog.callbacks.clock.cutoffs import Deadline, OverSelect
    from flcog.callbacks.clock.fedbuff import FedBuff
    from flcog.callbacks.clock.system_model import SystemModel
    from flcog.callbacks.codecs.encoded_broadcast import EncodedBroadcast
    from flcog.callbacks.codecs.low_precision import LowPrecision
    from flcog.callbacks.codecs.quantize import Quantize, RotatedQuantize
    from flcog.callbacks.codecs.sign_sgd import SignSGD
    from flcog.callbacks.codecs.sparse import RandomK, TopK
    from flcog.callbacks.dense import DENSE
    from flcog.callbacks.ditto import Ditto
    from flcog.callbacks.fedavgm import FedAvgM
    from flcog.callbacks.fedcog.fedcog import FedCOG
    from flcog.callbacks.fedcog.observers import GeneratedImages, GenerationTime
    from flcog.callbacks.feddc import FedDC
    from flcog.callbacks.feddecorr import FedDecorr
    from flcog.callbacks.feddisco import FedDisco
    from flcog.callbacks.feddm import FedDM
    from flcog.callbacks.feddyn import FedDyn
    from flcog.callbacks.fedexp import FedExP
    from flcog.callbacks.fedgen import FedGen
    from flcog.callbacks.fednova import FedNova
    from flcog.callbacks.fedopt import FedAdagrad, FedAdam, FedYogi
    from flcog.callbacks.fedprox import FedProx
    from flcog.callbacks.fedpvr import FedPVR
    from flcog.callbacks.fedreg import FedReg
    from flcog.callbacks.fedrep import FedRep
    from flcog.callbacks.fedsam import FedSAM
    from flcog.callbacks.fedssyn.fedssyn import Fedssyn
    from flcog.callbacks.fedssyn.generators.beta_vae import BetaVAE
    from flcog.callbacks.fedssyn.generators.conditional_gan import ConditionalGAN
    from flcog.callbacks.fedssyn.generators.ddpm import DDPM
    from flcog.callbacks.fedssyn.generators.private_training import PrivateTraining
    from flcog.callbacks.fedwalk.fedwalk import FedWalk
    from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining
    from flcog.callbacks.fine_tune import FineTune
    from flcog.callbacks.gradients import ClipGradient, GradientNoise
    from flcog.callbacks.lora import FFALoRA, FlexLoRA
    from flcog.callbacks.moon import MOON
    from flcog.callbacks.observers.class_accuracy import ClassAccuracy
    from flcog.callbacks.observers.client_fairness import ClientFairness
    from flcog.callbacks.observers.generated_answers import GeneratedAnswers
    from flcog.callbacks.observers.local_models import LocalModels
    from flcog.callbacks.observers.rounds_to_target import RoundsToTarget
    from flcog.callbacks.observers.stopping import EarlyStopping, StopAfter
    from flcog.callbacks.observers.training_scores import TrainingScores
    from flcog.callbacks.papers.fedcog import FedAvgMInFedCOG
    from flcog.callbacks.papers.feddisco import (
        FedAvgMInFedDisco,
        FedDCInFedDisco,
        FedDynInFedDisco,
        FedNovaInFedDisco,
        SCAFFOLDInFedDisco,
    )
    from flcog.callbacks.participation import ClientDropout, EqualWeights, Stragglers
    from flcog.callbacks.privacy.banded_noise import BandedNoise
    from flcog.callbacks.privacy.dp_fedavg import DPFedAvg
    from flcog.callbacks.privacy.dpsgd import DPSGD
    from flcog.callbacks.robust.before_a_rule import AdaptiveRobustClipping, Bucketing, NearestNeighbourMixing, StaticClipping
    from flcog.callbacks.robust.bounded import CenteredClipping, NormBound
    from flcog.callbacks.robust.krum import Bulyan, Krum, MultiKrum
    from flcog.callbacks.robust.medians import CoordinateMedian, GeometricMedian, TrimmedMean
    from flcog.callbacks.scaffold import SCAFFOLD
    from flcog.callbacks.secure_aggregation import SecureAggregation
    from flcog.callbacks.selection.availability import Availability, DiurnalAvailability
    from flcog.callbacks.selection.fixed_number import RoundRobin, UniformSelection, WeightedSelection
    from flcog.callbacks.selection.oort import Oort
    from flcog.callbacks.selection.poisson_sampling import PoissonSampling
    from flcog.callbacks.selection.power_of_choice import PowerOfChoice
    from flcog.callbacks.vhl import VHL
    from flcog.callbacks.worker_momentum import WorkerMomentum
    from flcog.run.observers.defaults import Checkpoint, ProgressBar, Summary
else:
    __getattr__, __dir__ = lazily(__name__)

COMMANDS = (
    TrainerCommand("synthesize", "flcog.callbacks.fedssyn.fedssyn:synthesize"),
    Command("leash", "flcog.callbacks.fedwalk.command:leash"),
    Command("epsilon", "flcog.callbacks.privacy.command:report"),
)
"""The subcommands of ``flcog`` that belong to a method."""

__all__ = [
    "DDPM",
    "DENSE",
    "DPSGD",
    "MOON",
    "SCAFFOLD",
    "VHL",
    "ALittleIsEnough",
    "AdaptiveRobustClipping",
    "Availability",
    "Backdoor",
    "BandedNoise",
    "BetaVAE",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "Centralized",
    "Checkpoint",
    "ClassAccuracy",
    "ClientDropout",
    "ClientFairness",
    "ClipGradient",
    "ClipUpdate",
    "ConditionalGAN",
    "CoordinateMedian",
    "DPFedAvg",
    "Deadline",
    "Ditto",
    "DiurnalAvailability",
    "EarlyStopping",
    "EncodedBroadcast",
    "EqualWeights",
    "FFALoRA",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedAvgMInFedCOG",
    "FedAvgMInFedDisco",
    "FedBuff",
    "FedCOG",
    "FedDC",
    "FedDCInFedDisco",
    "FedDM",
    "FedDecorr",
    "FedDisco",
    "FedDyn",
    "FedDynInFedDisco",
    "FedExP",
    "FedGen",
    "FedNova",
    "FedNovaInFedDisco",
    "FedPVR",
    "FedProx",
    "FedReg",
    "FedRep",
    "FedSAM",
    "FedWalk",
    "FedYogi",
    "Fedssyn",
    "FineTune",
    "FlexLoRA",
    "GaussianAttack",
    "GeneratedAnswers",
    "GeneratedImages",
    "GenerationTime",
    "GeometricMedian",
    "GradientNoise",
    "InnerProductManipulation",
    "Krum",
    "LabelFlip",
    "LeashPretraining",
    "Local",
    "LocalModels",
    "LowPrecision",
    "Mimic",
    "MinMax",
    "MultiKrum",
    "NearestNeighbourMixing",
    "NormBound",
    "Oort",
    "OverSelect",
    "PoissonSampling",
    "PowerOfChoice",
    "PrivateTraining",
    "ProgressBar",
    "Quantize",
    "RandomK",
    "RotatedQuantize",
    "RoundRobin",
    "RoundsToTarget",
    "SCAFFOLDInFedDisco",
    "SecureAggregation",
    "SignFlip",
    "SignSGD",
    "StaticClipping",
    "StopAfter",
    "Stragglers",
    "Summary",
    "SystemModel",
    "TopK",
    "TrainingScores",
    "TrimmedMean",
    "UniformSelection",
    "WeightedSelection",
    "WorkerMomentum",
]
