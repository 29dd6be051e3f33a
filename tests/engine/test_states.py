"""The states of methods: what a client and the server may keep, which a resumed run must be able to read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import assert_close, fit, making, train

from flcog import FirstContact, Method, Upload

BIAS = "model.hidden.0.bias"
both = pytest.mark.parametrize("executor", ["loop", "vmap"])


def counting(first: Any, **hooks: Any) -> Method:
    """A method for which a client's change of the model counts ``n`` times in its ``n``-th round. ``first`` is from ``init_client``."""

    def finish(delta: Any, params: Any, ctx: Any) -> Upload:
        n = ctx.state["n"] + ctx.draws["one"]
        return Upload({name: n * value for name, value in delta.items()}, {"n": n})

    return making(init_client=lambda *_: first, draw=lambda *_: {"one": 1}, finish_client=finish, **hooks)


@both
def test_numbers_in_states_are_tensors_everywhere(executor: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"executor": executor, "clients_per_round": 3}
    straight = train(counting({"n": torch.tensor(0)}), rounds=3, **options)
    half = fit(tmp_path, counting({"n": 0}), rounds=2, **options)
    checkpoint = str(half.run_dir / "checkpoints/last.ckpt")
    assert_close(fit(tmp_path, counting({"n": 0}), rounds=3, ckpt_path=checkpoint, **options).state, straight.state, 0)
    introduced = counting(FirstContact({"n": 0}, 1.0), weights=lambda weights, messages, cohort: weights)
    assert_close(train(introduced, rounds=3, **options).state, straight.state, 0)


def test_a_number_may_become_a_tensor_without_axes(tmp_path: Path) -> None:
    def mine() -> Method:
        return making(
            init_server=lambda params: {"norm": 0.0},
            server_step=lambda s, params, delta, *_: (delta, {"norm": delta[BIAS].norm()}),
        )

    half = fit(tmp_path, mine(), rounds=1)
    resumed = fit(tmp_path, mine(), rounds=2, ckpt_path=str(half.run_dir / "checkpoints/last.ckpt"))
    assert_close(resumed.state, train(mine(), rounds=2).state, 0)
