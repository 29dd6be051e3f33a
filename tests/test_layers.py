"""The floor plan holds: who may import whom, no circles, no method named by the engine, observers that see a run and nothing else."""

import ast
import inspect
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import flcog.callbacks
from flcog.hooks import OBSERVER_HOOKS, Method, Run
from harness import ROOT

FOLDERS = {"flcog": ROOT / "flcog", "flcog.callbacks": ROOT / "callbacks", "flcog.datamodules": ROOT / "datamodules"}

LAYERS = (
    ("flcog.core",),
    ("flcog.data", "flcog.models", "flcog.metrics", "flcog.schedules", "flcog.settings"),
    ("flcog.client", "flcog.apply", "flcog.reading", "flcog.label_statistics"),
    ("flcog.evaluation",),
    ("flcog.hooks",),
    ("flcog.engine",),
    ("flcog.run",),
    ("flcog.trainer",),
    ("flcog",),
    ("flcog.datamodules",),
    ("flcog.callbacks",),
    ("flcog.commands", "flcog.__main__"),
)
"""From the ground up: a module imports its own floor and those below it. What a floor may not use of those below stands in ``CLOSED``."""

CLOSED = {
    "flcog.datamodules": ("flcog.evaluation", "flcog.hooks", "flcog.engine", "flcog.run", "flcog.trainer", "flcog"),
    "flcog.callbacks": ("flcog.engine", "flcog.run", "flcog.trainer", "flcog", "flcog.datamodules"),
    "flcog.engine": ("flcog.run",),
}

FACES = {"flcog.callbacks": ("flcog.run.observers",)}
"""What a package's face, its own ``__init__``, shows of other rooms."""
