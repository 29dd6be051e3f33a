"""Every shipped method with ``trainer.compile`` and torch's own compiler, which takes seconds to a minute per method.

``tests/engine/test_compile.py`` has the tests that need no compiler, for example that all steps share one program.
"""

import pytest
import torch
from harness import assert_close, needs_compiler
from torch import Tensor
from torch._dynamo.utils import counters

from contracts.case import Case
from contracts.registry import CASES, client_states, run
from flcog.callbacks.parts.noise import normal
from flcog.execute import programs

pytestmark = [needs_compiler, pytest.mark.slow, pytest.mark.long, pytest.mark.filterwarnings("error:trainer.compile")]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_compiled_steps_are_the_plain_ones(case: Case) -> None:
    loop = run(case, case.method, executor="loop")
    counters.clear()
    vmap = run(case, case.method, executor="vmap", compile=True)
    assert vmap.executor.name == "vmap" and vmap.executor.compiled is True
    assert counters["stats"]["unique_graphs"] == 1
    assert_close(vmap.state, loop.state, 1e-11)
    assert_close(client_states(vmap), client_states(loop), 1e-10)
    assert vmap.rows == [pytest.approx(row, rel=1e-9) for row in loop.rows]


@pytest.mark.parametrize("chunk_size", [1, 2])
def test_under_the_loop_and_on_threads(chunk_size: int) -> None:
    case = CASES["SCAFFOLD-momentum"]
    loop = run(case, case.method, executor="loop")
    counters.clear()
    trainer = run(case, case.method, executor="loop", compile=True, chunk_size=chunk_size)
    assert trainer.executor.compiled is True and counters["stats"]["unique_graphs"] == 1
    assert_close(trainer.state, loop.state, 1e-11)


def test_keyed_noise_stays_where_it_belongs() -> None:
    """The noise multiplies integers that overflow on purpose. A C++ compiler that rules this out may write beyond the end of the noise."""
    place = torch.ones(83 + 64)

    def fill(key: Tensor, place: Tensor) -> None:
        place.copy_(normal(key, 3, (83,)))

    programs.compiled(fill, [torch.tensor(5), torch.empty(83)])(torch.tensor(5), place[:83])
    torch.testing.assert_close(place[:83], normal(torch.tensor(5), 3, (83,)))
    assert bool((place[83:] == 1).all())


def test_what_was_compiled_is_read_from_disk(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))

    def program(scale: Tensor, place: Tensor) -> None:
        place.add_(scale.cos() * 3)

    examples = [torch.rand(50), torch.rand(50)]
    hits = []
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        programs.compiled(program, examples)(*examples)
        hits.append(counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"])
    assert hits[0] == 0 and hits[1] > 0
