"""Order that matters is said: what a later method overwrites, and what one needs and is not there, gets one line."""

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from harness import SGD, TinyData, adapted, classifier, distance, make_trainer, train

import flcog
from flcog.callbacks import SCAFFOLD, ClipGradient, EqualWeights, FedAvgM, FedDisco, FedDM, FedProx, FedSAM, FlexLoRA, Stragglers
from flcog.data import Exchange
from flcog.method import Method, Plan, Upload
from flcog.schedules import Piecewise


@dataclass(frozen=True)
class TopKMessages(Method):
    """Sends the largest changes as a message, and no weights."""

    def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
        return Upload(
            None, ctx.state, mean={"kept": {name: value * (value.abs() > value.abs().mean()) for name, value in delta.items()}}
        )

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        return messages.mean["kept"], server


@dataclass(frozen=True)
class SignFlip(Method):
    """An attack: every client sends the opposite."""

    def finish_client(self, delta: Any, params: Any, ctx: Any) -> Upload:
        return Upload({name: -value for name, value in delta.items()}, ctx.state)


@dataclass(frozen=True)
class Median(Method):
    """Takes the median of what single clients send."""

    individual_uploads: ClassVar[bool] = True

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        return {name: torch.stack([u.delta[name] for u in messages.individual]).median(0).values for name in params}, server


@dataclass(frozen=True)
class MedianOfAll(Median):
    """The same, written over what there is."""

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        names = messages.individual[0].delta
        return {name: torch.stack([u.delta[name] for u in messages.individual]).median(0).values for name in names}, server


@dataclass(frozen=True)
class Replacing(Method):
    """Ignores what it is given, in one hook after another."""

    def plan(self, plan: Any, client: Any, rng: Any) -> Plan:
        return Plan(2)

    def start(self, apply: Any, params: Any, ctx: Any) -> Any:
        return dict(ctx.received.params), {}

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return {name: value.sign() for name, value in params.items()}

    def after_step(self, apply: Any, params: Any, before: Any, batch: Any, ctx: Any) -> Any:
        return dict(ctx.received.params), ctx.state

    def evaluate_at(self, server: Any, params: Any) -> Any:
        return {name: torch.zeros_like(value) for name, value in params.items()}


@dataclass(frozen=True)
class Shifting(Method):
    """Changes what it is given, in the same hooks."""

    def plan(self, plan: Any, client: Any, rng: Any) -> Plan | None:
        return None if plan is None else Plan(plan.num_steps + 1)

    def start(self, apply: Any, params: Any, ctx: Any) -> Any:
        return {name: value + 1 for name, value in params.items()}, {}

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return {name: 2 * value for name, value in gradient.items()}

    def after_step(self, apply: Any, params: Any, before: Any, batch: Any, ctx: Any) -> Any:
        return {name: value + 1 for name, value in params.items()}, ctx.state

    def evaluate_at(self, server: Any, params: Any) -> Any:
        return {name: value + 1 for name, value in params.items()}


@dataclass(frozen=True)
class Unseen(Method):
    """Looks at what only a round brings, and so cannot be tried before."""

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return dict.fromkeys(gradient, ctx.inputs["made"])


def warned(*methods: Method, module: Any = None, **options: Any) -> list[str]:
    trainer = make_trainer(None, *methods, **options)
    trainer.prepare(module or classifier(), TinyData())
    return [note.removeprefix("warning: ") for note in trainer.notes if note.startswith("warning: ")]


def test_what_is_made_of_weights_that_are_not_sent_is_said() -> None:
    text = "TopKMessages sends no change of the model, so what SignFlip makes of it is lost: list SignFlip before TopKMessages"
    assert warned(TopKMessages(), SignFlip()) == [text]
    assert warned(SignFlip(), TopKMessages()) == []
    alone, lost, attacked = (
        train(*methods) for methods in ((TopKMessages(),), (TopKMessages(), SignFlip()), (SignFlip(), TopKMessages()))
    )
    same = [torch.equal(other.state[name], value) for other in (lost, attacked) for name, value in alone.state.items()]
    assert same[: len(same) // 2] == [True] * (len(same) // 2) and not all(same), "the warning tells the truth"


@pytest.mark.parametrize("method", [Median(), MedianOfAll()])
def test_what_is_needed_and_not_sent_is_said(method: Method) -> None:
    name = "model.layers.0.weight" if "model.layers.0.weight" in dict(classifier().named_parameters()) else r"model\S+"
    with pytest.raises(
        ValueError, match=rf"{method.name} looks at each client's change of {name}, .* beside TopKMessages: remove one"
    ):
        train(TopKMessages(), method)
    train(method)


def test_a_server_step_that_is_not_whole_is_refused() -> None:
    @dataclass(frozen=True)
    class Half(Method):
        def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
            return dict(list(delta.items())[:1]), server

    with pytest.raises(ValueError, match=r"Half.server_step must return a change of every parameter; it returned none of model"):
        train(Half())

    @dataclass(frozen=True)
    class Faulty(Method):
        def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
            return {}["mine"]

    with pytest.raises(KeyError, match="mine"):
        train(Faulty())


def test_a_chain_that_is_cut_is_said_hook_by_hook() -> None:
    expected = {
        f"Replacing is listed after Shifting and replaces {what}: what Shifting makes of it is lost"
        for what in ("the number of local steps", "where clients start", "the gradient", "the model after each local step")
    } | {"Replacing is listed after Shifting and replaces the model that is evaluated: what Shifting makes of it is lost"}
    assert set(warned(Shifting(), Replacing())) == expected
    assert warned(Replacing(), Shifting()) == []
    assert warned(Shifting(stop_round=1), Replacing(start_round=1)) == [], "they never meet"
    assert warned(ClipGradient(), Unseen()) == [], "what cannot be tried is not accused"


def test_a_server_step_that_is_replaced_is_said_in_its_round() -> None:
    with pytest.warns(
        UserWarning, match="Median is listed after FedAvgM and replaces the server's step: what FedAvgM makes of it is lost"
    ):
        train(FedAvgM(beta=0.5), Median(start_round=1))


LOOKS = {
    "item": lambda delta: {name: 2 * delta[name] for name in delta},
    "items": lambda delta: {name: 2 * value for name, value in delta.items()},
    "itself": lambda delta: delta,
    "copy": lambda delta: dict(delta),
    "spread": lambda delta: {**delta},
    "union": lambda delta: delta | {},
    "tree": lambda delta: torch.utils._pytree.tree_map(lambda value: 2 * value, delta),
    "foreach": lambda delta: dict(zip(delta, torch._foreach_mul(list(delta.values()), 2.0), strict=True)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", LOOKS)
def test_however_a_server_step_looks_at_the_change(how: str) -> None:
    seen = []

    @dataclass(frozen=True)
    class Looking(Method):
        def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
            seen.append(cohort.round)
            assert isinstance(delta, dict) and len(delta) == len(params)
            return LOOKS[how](delta), server

    train(FedAvgM(beta=0.5), Looking(), rounds=2, local_steps=1)
    assert seen == [0, 1], "and it is called once a round"


def test_a_server_step_of_which_a_part_is_replaced_is_said() -> None:
    text = r"FlexLoRA is listed after Doubled and replaces the server's step of \S+ and 1 more: what Doubled makes of it is lost"

    @dataclass(frozen=True)
    class Doubled(Method):
        def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
            return {name: 2 * value for name, value in delta.items()}, server

    with pytest.warns(UserWarning, match=text):
        replaced = train(Doubled(), FlexLoRA(ranks=[1, 2]), module=adapted())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert distance(train(FlexLoRA(ranks=[1, 2]), Doubled(), module=adapted()).state, replaced.state) > 1e-4


def test_a_server_step_without_anything_to_take_is_said() -> None:
    brief = FedDM(server_epochs=1, images_per_class=1)
    with pytest.warns(
        UserWarning, match="FedAvgM gets no change of the model, of which clients send none beside FedDM: its server's"
    ):
        train(FedAvgM(beta=0.5), brief)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(brief, FedAvgM(beta=0.5))


@pytest.mark.filterwarnings("error")
def test_a_server_step_that_follows_is_not_accused() -> None:
    train(Median(), FedAvgM(beta=0.5))


def test_a_gradient_that_is_never_taken_is_said() -> None:
    text = "FedDM takes no gradient of the loss: what {} would add to it is never computed"
    assert text.format("FedProx") in warned(FedProx(), FedDM()) and text.format("FedProx") in warned(FedDM(), FedProx())
    assert text.format("FedSAM") in warned(FedSAM(), FedDM())
    text = "FedDM takes no gradient of the loss and moves no model: what {} makes of the gradient is lost"
    assert text.format("SCAFFOLD and ClipGradient") in warned(SCAFFOLD(), FedDM(), ClipGradient())
    assert text.format("FedSAM") in warned(FedDM(), FedSAM())


@pytest.mark.parametrize(
    "methods",
    [
        (SCAFFOLD(), ClipGradient(max_norm=1.0), FedAvgM()),
        (FedProx(), FedSAM(), SCAFFOLD(), FedDisco(), Stragglers(min_steps=1, max_steps=3)),
        (EqualWeights(), FedProx()),
    ],
    ids=lambda methods: "+".join(method.name for method in methods),
)
def test_what_composes_is_not_accused(methods: tuple[Method, ...]) -> None:
    assert warned(*methods) == []


def test_data_that_change_after_they_were_told_of() -> None:
    @dataclass(frozen=True)
    class Doubling(Method):
        sent: bool = True

        def prepare_data(self, federation: Any, rng: Any, workspace: Any) -> Exchange:
            import dataclasses

            return Exchange(dataclasses.replace(federation), (8, 8))

    text = "Doubling changes the data after FedDisco has exchanged what they are: list FedDisco after it"
    assert warned(FedDisco(target="global"), Doubling()) == [text]
    assert warned(Doubling(), FedDisco(target="global")) == [] and warned(FedDisco(), Doubling()) == []


def test_what_never_comes_is_a_warning() -> None:
    assert warned(FedProx(start_round=5), rounds=5) == ["FedProx starts after 5 rounds, so it never acts in this run"]
    assert warned(FedProx(start_round=4), rounds=5) == []

    def module(*boundaries: int) -> flcog.Classifier:
        schedule = Piecewise([1.0] * len(boundaries) + [0.1], list(boundaries))
        return flcog.Classifier(classifier().model, optimizer=SGD, lr_schedule=schedule)

    text = "Classifier: lr_schedule changes after round 9, which a run of 5 rounds never reaches"
    assert warned(module=module(2, 9), rounds=5) == [text] and warned(module=module(2, 4), rounds=5) == []

    @dataclass(frozen=True)
    class Scheduled(Method):
        strength: Piecewise = field(default_factory=partial(Piecewise, [1.0, 0.1], [100]))

    assert warned(Scheduled(), rounds=5) == ["Scheduled: strength changes after round 100, which a run of 5 rounds never reaches"]


@pytest.mark.parametrize("method", [FedDisco(), EqualWeights()])
def test_weights_by_which_nothing_is_averaged_are_said(method: Method) -> None:
    brief = FedDM(server_epochs=1, images_per_class=1)
    text = f"FedDM sends no change of the model and averages nothing but numbers: the weights of {method.name} are lost"
    assert text in warned(method, brief) and text in warned(brief, method)
    assert warned(method, TopKMessages()) == [], "its messages are averaged by them"
    plain, weighed = train(brief), train(method, brief)
    assert all(torch.equal(plain.state[name], value) for name, value in weighed.state.items()), "the warning tells the truth"
