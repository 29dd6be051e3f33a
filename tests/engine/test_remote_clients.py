"""The server's part for clients in several processes, which combines the hosts' answers."""

import math
import warnings
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, SIZES, TinyData, make_trainer
from torchmetrics.classification import MulticlassF1Score

import flcog
from flcog.client.messages import ClientTask, Question, RollCall, Scores
from flcog.client.remote import NoAnswer, RemoteClients, answer_of
from flcog.models import MLP
from flcog.run.hosting import host_clients

OWN: Any = None
"""The server's own runtime, which tells the form of replies to tasks."""

ON_ALL = Question("evaluate", ({}, {}, "val", True))


class Answers:
    """A host that answers requests in their order, each by its name."""

    def __init__(self, call: RollCall, **answers: Any) -> None:
        self.answers, self.requests = {"begin": call, **answers}, list[str]()

    def send(self, name: str, *arguments: Any) -> None:
        self.requests.append(name)

    def answer(self, limits: Any) -> Any:
        answer = self.answers[self.requests.pop(0)]
        if isinstance(answer, Exception):
            raise answer
        return answer


def call(*sizes: int, **changes: Any) -> RollCall:
    """The roll call of a host whose clients have these numbers of samples."""
    return RollCall(torch.tensor(sizes), None, None, len(sizes), "classification", 3)._replace(**changes)


def held(client: int, held_out: int, figures: dict[str, float], joins: Any = None) -> Answers:
    """A host with one client (of two) and held-out samples, whose evaluation has these figures."""
    mine, nobody = torch.arange(2) == client, torch.full((2,), torch.nan, dtype=torch.float64)
    of_data = RollCall(10 * mine, held_out * mine, None, 2, "classification", 3)
    return Answers(of_data, evaluate=[Scores(nobody, figures, joins or {})])


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (((5, 7, 6), (5, 7, 6)), "2 hosts host client 0: give each host its own clients, such as data.only"),
        (((5, 7, 0), (0, 7, 6)), "2 hosts host client 1: "),
        (((5, 0, 0), (0, 7, 0)), "no connected host hosts client 2: "),
    ],
)
def test_each_client_has_one_host(sizes: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RemoteClients([Answers(call(*own)) for own in sizes]).begin(OWN, False)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ({"task": "regression"}, {}, "task=regression, and those of the host of client 1 task=classification: "),
        ({}, {"num_classes": 2}, "num_classes=3, and those of the host of client 1 num_classes=2: "),
        ({}, {"test": torch.tensor([0, 2])}, "client_test=0, and those of the host of client 1 client_test=a held-out part: "),
    ],
)
def test_hosts_with_unlike_data_are_named(one: Any, other: Any, says: str) -> None:
    with pytest.raises(ValueError, match="the data of the host of client 0 have " + says) as caught:
        RemoteClients([Answers(call(5, 0, **one)), Answers(call(0, 5, **other))]).begin(OWN, False)
    assert "\n" not in str(caught.value)


def test_answers_after_an_error_in_a_round_are_not_taken_for_later_ones() -> None:
    """A refused reply of the first host closes the round, and the second host's answer comes before that to the next request."""
    hosts = [Answers(call(5, 0), train=["first"]), Answers(call(0, 5), train=["second"])]
    clients = RemoteClients(hosts)
    clients.begin(OWN, False)
    clients._belief.wanted = lambda *asked: None  # type: ignore[method-assign]
    for _ in range(2):
        round = clients.train(None, [ClientTask(client, 1, 0.5) for client in (0, 1)])  # type: ignore[arg-type]
        assert next(round) == "first"  # type: ignore[comparison-overlap]
        round.close()
    assert clients.begin(OWN, False).sizes.tolist() == [5, 5]
    assert not hosts[0].requests and not hosts[1].requests


@pytest.mark.parametrize(
    ("first", "second", "figures"),
    [
        ((1, {"loss": 1.0}), (3, {"loss": 2.0}), {"loss": 1.75}),
        ((0, {}), (3, {"loss": 2.0}), {"loss": 2.0}),
        ((3, {"loss": 2.0}), (0, {}), {"loss": 2.0}),
        ((1, {"loss": 1.0}), (3, {"loss": 2.0, "logged": 5.0}), {"loss": 1.75, "logged": 5.0}),
        ((0, {}), (0, {}), {}),
    ],
)
def test_hosts_without_a_figure_have_no_part_in_it(first: Any, second: Any, figures: dict[str, float]) -> None:
    clients = RemoteClients([held(0, *first), held(1, *second)])
    clients.begin(OWN, False)
    assert clients.ask([ON_ALL])[0].figures == figures


def test_clients_of_a_silent_host_report_no_loss() -> None:
    clients = RemoteClients([Answers(call(5, 0, 5), losses=[1.0, 3.0]), Answers(call(0, 5, 0), losses=NoAnswer("silent"))])
    clients.begin(OWN, False)
    losses = clients.losses(None, [2, 1, 0])  # type: ignore[arg-type]
    assert losses[::2] == [1.0, 3.0] and math.isnan(losses[1])


class Inside:
    """A host in this process, with every second client of the data."""

    def __init__(self, trainer: Any, module: Any, data: Any, first: int) -> None:
        with trainer.settings.in_force():
            clients = range(first, len(SIZES), 2)
            self._clients = host_clients(trainer.settings, trainer.methods, module, data.only(clients))
        self._answers = list[Any]()

    def send(self, name: str, *arguments: Any) -> None:
        self._answers.append(answer_of(self._clients, name, arguments))

    def answer(self, limits: Any) -> Any:
        return self._answers.pop(0)


@pytest.mark.parametrize(
    ("task", "kind", "outputs", "means"),
    [
        ("regression", flcog.Regressor, 1, {"val/loss", "val/mse", "val/mae"}),
        ("multilabel", flcog.MultiLabelClassifier, NUM_CLASSES, {"val/loss"}),
        ("classification", flcog.Classifier, NUM_CLASSES, {"val/loss", "val/accuracy"}),
    ],
)
def test_figures_of_several_hosts_are_those_of_all_samples_or_left_out(task: Any, kind: Any, outputs: int, means: Any) -> None:
    """The sizes of the two hosts' parts differ, and r2, F1 and average precision are no means of the hosts' figures."""
    found = []
    for remote in (False, True):
        data, trainer = TinyData(targets=task, client_val=0.3), make_trainer(None)
        modules = [kind(MLP(NUM_FEATURES, (), outputs)) for _ in range(3)]
        if remote:
            trainer.connect(RemoteClients([Inside(trainer, modules[1 + first], data, first) for first in (0, 1)]))
        torch.manual_seed(0)
        for parameter in modules[0].parameters():
            torch.nn.init.normal_(parameter)
        trainer.prepare(modules[0], data)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found.append(
                {name: value for name, value in trainer.evaluate().items() if name.startswith("val/") and "client" not in name}
            )
    here, there = found
    assert there == {name: pytest.approx(here[name], rel=1e-5) for name in means}
    left_out = [str(each.message) for each in warned if "no mean over samples" in str(each.message)]
    assert bool(left_out) == (here.keys() != means) and all(
        name.removeprefix("val/") in left_out[0] for name in here.keys() - means
    )


class LogsMetrics(flcog.Classifier):
    """Logs a mean over samples, and two metrics that are none; one of them replaces the accuracy."""

    def __init__(self) -> None:
        super().__init__(MLP(NUM_FEATURES, (), NUM_CLASSES))
        self.f1 = MulticlassF1Score(NUM_CLASSES, average="macro")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        outputs = self(batch[0])
        self.f1.update(outputs, batch[1])
        self.log("val_margin", outputs.max(1).values.mean())
        self.log("val_f1", self.f1)
        self.log("val_accuracy", self.f1)


def test_metrics_that_a_module_logs_are_no_means_over_samples() -> None:
    trainer = make_trainer(None)
    trainer.prepare(LogsMetrics(), TinyData(client_val=0.3))
    server = trainer.run.server
    (scores,) = trainer.run.engine.clients.ask([Question("evaluate", (server.params, server.buffers, "val", True))])
    assert scores.figures.keys() == {"loss", "margin", "f1", "accuracy"} and set(scores.joins) == {"accuracy", "f1"}


def test_hosts_join_sums_and_maxima_as_such_and_weigh_means_by_the_samples_that_logged_them() -> None:
    kinds = {"sum": ("sum", 1.0), "max": ("max", 1.0), "min": ("min", 1.0)}
    first = held(0, 10, {"sum": 1.0, "max": 5.0, "min": 5.0, "some": 1.0}, kinds | {"some": ("mean", 0.1)})
    second = held(1, 30, {"sum": 2.0, "max": 3.0, "min": 3.0, "some": 2.0}, kinds | {"some": ("mean", 0.1)})
    clients = RemoteClients([first, second])
    clients.begin(OWN, False)
    assert clients.ask([ON_ALL])[0].figures == {"sum": 3, "max": 5, "min": 3, "some": 7 / 4}
