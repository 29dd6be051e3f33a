"""The server's part for clients in several processes, which combines the hosts' answers."""

from typing import Any

import pytest
import torch

from flcog.client.messages import RollCall, Scores
from flcog.client.remote import RemoteClients


class Host:
    """A host with one client (of two), which answers evaluations with given figures."""

    def __init__(self, client: int, held_out: int, figures: dict[str, float]) -> None:
        self._mine, self._held_out, self._figures = torch.arange(2) == client, held_out, figures

    def send(self, name: str, *arguments: Any) -> None:
        self._asked = name

    def answer(self) -> Any:
        if self._asked == "begin":
            return RollCall(10 * self._mine, self._held_out * self._mine, None, 2, "classification", 3)
        return Scores(torch.full((2,), torch.nan, dtype=torch.float64), self._figures)


class Answers:
    """A host that answers requests in their order, each by its name."""

    def __init__(self, call: RollCall, **answers: Any) -> None:
        self.answers, self.requests = {"begin": call, **answers}, list[str]()

    def send(self, name: str, *arguments: Any) -> None:
        self.requests.append(name)

    def answer(self) -> Any:
        answer = self.answers[self.requests.pop(0)]
        if isinstance(answer, Exception):
            raise answer
        return answer


def call(*sizes: int, **changes: Any) -> RollCall:
    """The roll call of a host whose clients have these numbers of samples."""
    return RollCall(torch.tensor(sizes), None, None, len(sizes), "classification", 3)._replace(**changes)


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
        RemoteClients([Answers(call(*own)) for own in sizes]).begin()


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
    clients = RemoteClients([Host(0, *first), Host(1, *second)])
    clients.begin()
    assert clients.evaluate({}, {}, "val", figures=True).figures == figures
