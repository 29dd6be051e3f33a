"""LocalModels in the registry: it trains as FedAvg does. What it measures is compared in test_fedcog.py."""

from contracts.case import Case
from reference import fedavg

from flcog.callbacks import LocalModels

CASES: dict[str, Case] = {"LocalModels": Case(LocalModels(), fedavg.run, like_fedavg=True)}
