"""Federated methods and observers for ``FederatedTrainer(callbacks=[...])``, which calls them in the order of the list."""

from typing import TYPE_CHECKING

from flcog.callbacks.papers import BOUNDS as BOUNDS
from flcog.callbacks.papers import PAPERS as PAPERS
from flcog.core.commands import Command, TrainerCommand
from flcog.core.lazy import lazily

if TYPE_CHECKING:
    from flcog.callbacks.attacks.batches import Backdoor as Backdoor
    from flcog.callbacks.attacks.batches import LabelFlip as LabelFlip
    from flcog.callbacks.attacks.omniscient import ALittleIsEnough as ALittleIsEnough
    from flcog.callbacks.attacks.omniscient import InnerProductManipulation as InnerProductManipulation
    from flcog.callbacks.attacks.omniscient import Mimic as Mimic
    from flcog.callbacks.attacks.omniscient import MinMax as MinMax
    from flcog.callbacks.attacks.uploads import GaussianAttack as GaussianAttack
    from flcog.callbacks.attacks.uploads import SignFlip as SignFlip
    from flcog.callbacks.bounds import Centralized as Centralized
    from flcog.callbacks.bounds import Local as Local
    from flcog.callbacks.clip_update import ClipUpdate as ClipUpdate
    from flcog.callbacks.clock.cutoffs import Deadline as Deadline
    from flcog.callbacks.clock.cutoffs import OverSelect as OverSelect
    from flcog.callbacks.clock.fedbuff import FedBuff as FedBuff
    from flcog.callbacks.clock.system_model import SystemModel as SystemModel
    from flcog.callbacks.codecs.encoded_broadcast import EncodedBroadcast as EncodedBroadcast
    from flcog.callbacks.codecs.low_precision import LowPrecision as LowPrecision
    from flcog.callbacks.codecs.quantize import Quantize as Quantize
    from flcog.callbacks.codecs.quantize import RotatedQuantize as RotatedQuantize
    from flcog.callbacks.codecs.sign_sgd import SignSGD as SignSGD
    from flcog.callbacks.codecs.sparse import RandomK as RandomK
    from flcog.callbacks.codecs.sparse import TopK as TopK
    from flcog.callbacks.dense import DENSE as DENSE
    from flcog.callbacks.fairness import AFL as AFL
    from flcog.callbacks.fairness import QFFL as QFFL
    from flcog.callbacks.fedavgm import FedAvgM as FedAvgM
    from flcog.callbacks.fedcog.fedcog import FedCOG as FedCOG
    from flcog.callbacks.fedcog.observers import GeneratedImages as GeneratedImages
    from flcog.callbacks.fedcog.observers import GenerationTime as GenerationTime
    from flcog.callbacks.feddc import FedDC as FedDC
    from flcog.callbacks.feddecorr import FedDecorr as FedDecorr
    from flcog.callbacks.feddisco import FedDisco as FedDisco
    from flcog.callbacks.feddm import FedDM as FedDM
    from flcog.callbacks.feddyn import FedDyn as FedDyn
    from flcog.callbacks.fedexp import FedExP as FedExP
    from flcog.callbacks.fedgen import FedGen as FedGen
    from flcog.callbacks.fednova import FedNova as FedNova
    from flcog.callbacks.fedopt import FedAdagrad as FedAdagrad
    from flcog.callbacks.fedopt import FedAdam as FedAdam
    from flcog.callbacks.fedopt import FedYogi as FedYogi
    from flcog.callbacks.fedprox import FedProx as FedProx
    from flcog.callbacks.fedpvr import FedPVR as FedPVR
    from flcog.callbacks.fedreg import FedReg as FedReg
    from flcog.callbacks.fedsam import FedSAM as FedSAM
    from flcog.callbacks.fedssyn.fedssyn import Fedssyn as Fedssyn
    from flcog.callbacks.fedssyn.generators.beta_vae import BetaVAE as BetaVAE
    from flcog.callbacks.fedssyn.generators.conditional_gan import ConditionalGAN as ConditionalGAN
    from flcog.callbacks.fedssyn.generators.ddpm import DDPM as DDPM
    from flcog.callbacks.fedssyn.generators.private_training import PrivateTraining as PrivateTraining
    from flcog.callbacks.fedwalk.fedwalk import FedWalk as FedWalk
    from flcog.callbacks.fedwalk.leash_pretraining import LeashPretraining as LeashPretraining
    from flcog.callbacks.gradients import ClipGradient as ClipGradient
    from flcog.callbacks.gradients import GradientNoise as GradientNoise
    from flcog.callbacks.lora import FFALoRA as FFALoRA
    from flcog.callbacks.lora import FlexLoRA as FlexLoRA
    from flcog.callbacks.moon import MOON as MOON
    from flcog.callbacks.observers.class_accuracy import ClassAccuracy as ClassAccuracy
    from flcog.callbacks.observers.client_fairness import ClientFairness as ClientFairness
    from flcog.callbacks.observers.generated_answers import GeneratedAnswers as GeneratedAnswers
    from flcog.callbacks.observers.local_models import LocalModels as LocalModels
    from flcog.callbacks.observers.rounds_to_target import RoundsToTarget as RoundsToTarget
    from flcog.callbacks.observers.stopping import EarlyStopping as EarlyStopping
    from flcog.callbacks.observers.stopping import StopAfter as StopAfter
    from flcog.callbacks.observers.training_scores import TrainingScores as TrainingScores
    from flcog.callbacks.papers.fedcog import FedAvgMInFedCOG as FedAvgMInFedCOG
    from flcog.callbacks.papers.feddisco import FedAvgMInFedDisco as FedAvgMInFedDisco
    from flcog.callbacks.papers.feddisco import FedDCInFedDisco as FedDCInFedDisco
    from flcog.callbacks.papers.feddisco import FedDynInFedDisco as FedDynInFedDisco
    from flcog.callbacks.papers.feddisco import FedNovaInFedDisco as FedNovaInFedDisco
    from flcog.callbacks.papers.feddisco import SCAFFOLDInFedDisco as SCAFFOLDInFedDisco
    from flcog.callbacks.participation import ClientDropout as ClientDropout
    from flcog.callbacks.participation import EqualWeights as EqualWeights
    from flcog.callbacks.participation import Stragglers as Stragglers
    from flcog.callbacks.personal.apfl import APFL as APFL
    from flcog.callbacks.personal.ditto import Ditto as Ditto
    from flcog.callbacks.personal.fedala import FedALA as FedALA
    from flcog.callbacks.personal.fedamp import FedAMP as FedAMP
    from flcog.callbacks.personal.feddbe import FedDBE as FedDBE
    from flcog.callbacks.personal.fedfomo import FedFomo as FedFomo
    from flcog.callbacks.personal.fedpac import FedPAC as FedPAC
    from flcog.callbacks.personal.fedphp import FedPHP as FedPHP
    from flcog.callbacks.personal.fedproto import FedProto as FedProto
    from flcog.callbacks.personal.fedrep import FedRep as FedRep
    from flcog.callbacks.personal.fedrod import FedRoD as FedRoD
    from flcog.callbacks.personal.fine_tune import FineTune as FineTune
    from flcog.callbacks.personal.ifca import IFCA as IFCA
    from flcog.callbacks.personal.keep_local import Freeze as Freeze
    from flcog.callbacks.personal.keep_local import KeepLocal as KeepLocal
    from flcog.callbacks.personal.per_fedavg import PerFedAvg as PerFedAvg
    from flcog.callbacks.personal.pfedme import PFedMe as PFedMe
    from flcog.callbacks.privacy.banded_noise import BandedNoise as BandedNoise
    from flcog.callbacks.privacy.dp_fedavg import DPFedAvg as DPFedAvg
    from flcog.callbacks.privacy.dpsgd import DPSGD as DPSGD
    from flcog.callbacks.robust.before_a_rule import AdaptiveRobustClipping as AdaptiveRobustClipping
    from flcog.callbacks.robust.before_a_rule import Bucketing as Bucketing
    from flcog.callbacks.robust.before_a_rule import NearestNeighbourMixing as NearestNeighbourMixing
    from flcog.callbacks.robust.before_a_rule import StaticClipping as StaticClipping
    from flcog.callbacks.robust.bounded import CenteredClipping as CenteredClipping
    from flcog.callbacks.robust.bounded import NormBound as NormBound
    from flcog.callbacks.robust.krum import Bulyan as Bulyan
    from flcog.callbacks.robust.krum import Krum as Krum
    from flcog.callbacks.robust.krum import MultiKrum as MultiKrum
    from flcog.callbacks.robust.medians import CoordinateMedian as CoordinateMedian
    from flcog.callbacks.robust.medians import GeometricMedian as GeometricMedian
    from flcog.callbacks.robust.medians import TrimmedMean as TrimmedMean
    from flcog.callbacks.scaffold import SCAFFOLD as SCAFFOLD
    from flcog.callbacks.secure_aggregation import SecureAggregation as SecureAggregation
    from flcog.callbacks.selection.availability import Availability as Availability
    from flcog.callbacks.selection.availability import DiurnalAvailability as DiurnalAvailability
    from flcog.callbacks.selection.fixed_number import RoundRobin as RoundRobin
    from flcog.callbacks.selection.fixed_number import UniformSelection as UniformSelection
    from flcog.callbacks.selection.fixed_number import WeightedSelection as WeightedSelection
    from flcog.callbacks.selection.oort import Oort as Oort
    from flcog.callbacks.selection.poisson_sampling import PoissonSampling as PoissonSampling
    from flcog.callbacks.selection.power_of_choice import PowerOfChoice as PowerOfChoice
    from flcog.callbacks.vhl import VHL as VHL
    from flcog.callbacks.worker_momentum import WorkerMomentum as WorkerMomentum
    from flcog.run.observers.defaults import Checkpoint as Checkpoint
    from flcog.run.observers.defaults import ProgressBar as ProgressBar
    from flcog.run.observers.defaults import Summary as Summary
else:
    __getattr__, __dir__ = lazily(__name__)

COMMANDS = (
    TrainerCommand("synthesize", "flcog.callbacks.fedssyn.fedssyn:synthesize"),
    Command("leash", "flcog.callbacks.fedwalk.command:leash"),
    Command("epsilon", "flcog.callbacks.privacy.command:report"),
)
"""The subcommands of ``flcog`` that belong to a method."""
