"""FedExP as the paper writes it and as its authors run it."""

import pytest
from harness import assert_close, train

from flcog.callbacks import FedExP


def test_the_codes_epsilon_is_the_papers_times_the_number_of_clients() -> None:
    code, same, paper = (
        train(FedExP(epsilon=epsilon, form=form), rounds=2, clients_per_round=5)
        for epsilon, form in ((1e-3, "code"), (5e-3, "paper"), (1e-3, "paper"))
    )
    assert_close(same.params, code.params, 1e-13)
    assert paper.rows[1]["fedexp/eta"] > code.rows[1]["fedexp/eta"] > 1


def test_the_default_is_what_the_tables_have_run() -> None:
    assert (FedExP().form, FedExP().evaluate_mean) == ("code", True)


@pytest.mark.parametrize("evaluate_mean", [True, False])
def test_where_it_is_evaluated(evaluate_mean: bool) -> None:
    trainer = train(FedExP(epsilon=1e-4, evaluate_mean=evaluate_mean), rounds=2)
    before = trainer.servers["FedExP"]["previous"]
    mean = {name: (value + before[name]) / 2 for name, value in trainer.params.items()}
    assert_close(trainer.evaluated_params(), mean if evaluate_mean else trainer.params, 0)
