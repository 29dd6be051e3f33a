"""Personal models: a run has one kind of them, and they beat the global model if clients have opposed tasks."""

from dataclasses import dataclass
from typing import Any

import pytest
from harness import Clusters, train
from torch import Tensor

from flcog import Context, Method, Params, Personal
from flcog.callbacks import Ditto
from flcog.callbacks.personal.fedrep import FedRep
from flcog.callbacks.personal.fine_tune import FineTune

pytestmark = pytest.mark.filterwarnings("error")


def test_a_run_has_one_kind_of_personal_model() -> None:
    with pytest.raises(ValueError, match="FineTune and Ditto both give clients models of their own"):
        train(FineTune(), Ditto())


@pytest.mark.slow
def test_personal_models_beat_the_global_one_on_unlike_clients() -> None:
    for method in (FineTune(steps=10), Ditto(lambda_prox=0.1), FedRep(body_share=0.2)):
        data = Clusters("opposed", client_test=0.3)
        trainer = train(method, data=data, rounds=6, local_steps=8, clients_per_round=6, executor="vmap")
        figures = trainer.evaluate()
        assert figures["test/personal_accuracy_mean"] > figures["test/client_accuracy_mean"] + 0.15
        assert figures["test/personal_accuracy_mean"] > 0.85


@dataclass(frozen=True)
class Mixture(Ditto):
    """Mixes the outputs of Ditto's personal model with the global model's, as APFL does (https://arxiv.org/abs/2003.13461)."""

    share: float = 0.5

    def personal(self, params: Params, ctx: Context) -> Personal:
        def mixed(apply: Any, own: Params, inputs: Any) -> Tensor:
            return self.share * apply(own, inputs) + (1 - self.share) * apply(params, inputs)

        return super().personal(params, ctx)._replace(forward=mixed)


def personal_accuracy(method: Method) -> tuple[float, float]:
    data = Clusters("opposed", client_test=0.3)
    figures = train(method, data=data, rounds=3, local_steps=8, clients_per_round=6, executor="vmap").evaluate()
    return figures["test/personal_accuracy_mean"], figures["test/client_accuracy_mean"]


@pytest.mark.slow
def test_a_personal_model_may_have_a_forward_of_its_own() -> None:
    personal, shared = personal_accuracy(Ditto(lambda_prox=0.1))
    assert personal_accuracy(Mixture(lambda_prox=0.1, share=1.0)) == (personal, shared)
    assert personal_accuracy(Mixture(lambda_prox=0.1, share=0.0)) == (shared, shared)
    assert personal != shared
