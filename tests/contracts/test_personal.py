"""Personal models: one kind a run, and better than the global model where clients are unlike."""

import pytest
from harness import Clusters, train

from flcog.callbacks import Ditto
from flcog.callbacks.fedrep import FedRep
from flcog.callbacks.fine_tune import FineTune

pytestmark = pytest.mark.filterwarnings("error")


def test_a_run_has_one_kind_of_personal_model() -> None:
    with pytest.raises(ValueError, match="FineTune and Ditto both define 'personal', of which a run can have one"):
        train(FineTune(), Ditto())


def test_personal_models_beat_the_global_one_on_unlike_clients() -> None:
    for method in (FineTune(steps=10), Ditto(lambda_prox=0.1), FedRep(body_share=0.2)):
        data = Clusters("opposed", client_test=0.3)
        trainer = train(method, data=data, rounds=6, local_steps=8, clients_per_round=6, executor="vmap")
        figures = trainer.evaluate()
        assert figures["test/personal_accuracy_mean"] > figures["test/client_accuracy_mean"] + 0.15
        assert figures["test/personal_accuracy_mean"] > 0.85
