"""Methods on kinds of data that they support and that they refuse: kinds of labels, tokens, networks with BatchNorm."""

from functools import partial
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, SGD, BatchNormFeatures, BatchNormMLP, TinyData, assert_close, classifier, train
from methods.test_dense import DENSE_
from methods.test_feddm import FEDDM
from methods.test_fedgen import FEDGEN

import flcog
from contracts.registry import CASES
from flcog.callbacks import Ditto, FedDecorr, FedDM, FedExP
from flcog.callbacks.dense import DENSE
from flcog.callbacks.feddc import FedDC
from flcog.callbacks.fedgen import FedGen
from flcog.callbacks.fedpvr import FedPVR
from flcog.callbacks.moon import MOON
from flcog.callbacks.personal.fedrep import FedRep
from flcog.callbacks.vhl import VHL
from flcog.method import Method
from flcog.models import MLP

pytestmark = pytest.mark.filterwarnings("error")


NETWORKS = {"plain": BatchNormMLP, "features": BatchNormFeatures}


@pytest.mark.parametrize(
    ("method", "network"),
    [
        (Ditto(), "plain"),
        (FedRep(head=r"\.3\."), "plain"),
        (CASES["VHL"].method, "features"),
        (FEDGEN, "features"),
        (DENSE_, "plain"),
        (FEDDM, "features"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else value,
)
@pytest.mark.slow
def test_batchnorm(method: Method, network: str) -> None:
    runs = [
        train(method, module=classifier(network=NETWORKS[network]), executor=executor, local_epochs=2, rounds=2)
        for executor in ("loop", "vmap")
    ]
    assert [run.executor.name for run in runs] == ["loop", "vmap"]
    assert_close(runs[1].state, runs[0].state, 1e-10)
    assert all(value.isfinite().all() for value in runs[0].state.values())


@pytest.mark.parametrize("method", [VHL(), FedGen(), DENSE(), FedDM()], ids=lambda method: method.name)
def test_single_label_methods_refuse_other_data(method: Method) -> None:
    module = flcog.MultiLabelClassifier(MLP(6, (8,), NUM_CLASSES), SGD)
    with pytest.raises(ValueError, match=f"{method.name} is defined for classification, not for multilabel data"):
        train(method, module=module, data=TinyData(targets="multilabel"))


@pytest.mark.parametrize("targets", ["regression", "multilabel"])
def test_the_others_run_on_any_labels(targets: Any) -> None:
    kind, outputs = (flcog.Regressor, 1) if targets == "regression" else (flcog.MultiLabelClassifier, 3)
    methods = [MOON(projection=4), FedDecorr(), FedExP(), FedDC(), FedPVR()]
    loop, vmap = (
        train(
            *methods,
            module=torch.manual_seed(0) and kind(MLP(NUM_FEATURES, (8,), outputs), optimizer=partial(SGD, lr=0.01)),
            data=TinyData(targets=targets),
            executor=executor,
        )
        for executor in ("loop", "vmap")
    )
    assert_close(vmap.state, loop.state, 1e-10)
