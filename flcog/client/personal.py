"""Personal models of clients, for methods that keep them. They are made where the client's data are."""

from typing import NamedTuple

from flcog.client.executor import Assignment, Placement
from flcog.client.messages import ClientTask, Download
from flcog.client.program import ClientTensors, Program
from flcog.client.work import ClientWork, make_work
from flcog.core.randomness import fold
from flcog.core.types import Params
from flcog.data import Federation
from flcog.data.batching import Batching
from flcog.data.reading import Reader
from flcog.functional.apply import OwnForward
from flcog.functional.evaluation import Evaluator
from flcog.functional.model_function import ModelFunction
from flcog.method import GlobalModel, Method, Personalisation


class PersonalModel(NamedTuple):
    """A client's own parameters and buffers, and the way in which they give outputs."""

    params: Params
    buffers: Params
    forward: OwnForward | None


class PersonalModels(NamedTuple):
    """Makes the personal models of clients. ``loop`` fine-tunes one client at a time."""

    model: ModelFunction
    federation: Federation
    batching: Batching
    reader: Reader
    evaluator: Evaluator
    loop: Placement

    def work(self, received: Download, client: int, steps: int = 1) -> ClientWork:
        """The work of a client, with samples in a different order than training reads them."""
        seed = fold(received.seed, "personal")
        return make_work(self.federation, self.batching, [ClientTask(client, steps, 1.0)], seed, received.round)[0]

    def make(self, received: Download, method: Personalisation, work: ClientWork) -> PersonalModel:
        """Make one client's own model, with the fine-tuning that the method asks for."""
        buffers = received.buffers
        program = self._program(received, [method], received.params)
        tensors = ClientTensors(work.states(), work.draws(), [{}], work.num_steps, work.num_samples, 1.0)
        context = program.contexts(tensors, buffers, 0)[0]
        own, steps, own_statistics, forward = method.personal(dict(received.params), context)
        if steps:
            tuning = self.work(received, work.client, steps)
            seed = fold(received.seed, "personal")
            program = self._program(received, [], own)
            assignment = Assignment(program, [tuning], self.reader, received.rates, seed, received.round)
            envelope = next(self.loop.run(assignment)).envelope
            own = {name: value + envelope.delta[name][0] for name, value in own.items()}
            buffers = {name: value[0].clone() for name, value in envelope.buffers.items()}
        elif own_statistics and self.model.mixes_rows:
            buffers = self.evaluator.statistics(own, buffers, work.own)
        return PersonalModel(own, buffers, forward)

    def _program(self, received: Download, methods: list[Method], params: Params) -> Program:
        broadcasts = [received.server[method.name] for method in methods]
        return Program(self.model, methods, broadcasts, GlobalModel(params, received.buffers), received.optimisation)
