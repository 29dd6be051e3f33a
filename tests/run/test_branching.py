"""A run that branches from another run's round equals a run from round 1 on, bit for bit; a branch that would differ is refused."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from contracts.registry import client_states
from harness import (
    MOMENTUM,
    BatchNormFeatures,
    BatchNormMLP,
    RecordingTrainer,
    TinyData,
    classifier,
    fit,
    make_trainer,
    without_times,
)

import flcog
from flcog.callbacks import (
    MOON,
    SCAFFOLD,
    Checkpoint,
    Ditto,
    DPFedAvg,
    FedAvgM,
    FedCOG,
    FedDisco,
    FedDyn,
    FedProx,
    FedSAM,
    FineTune,
    Local,
    RoundsToTarget,
)
from flcog.core.types import Params, Slot
from flcog.method import Context, Method, Upload
from flcog.run import checkpoint
from flcog.run.metrics_rows import read_rows

COG = FedCOG(start_round=2, num_samples=8, steps=2, lambda_dis=2.0, lambda_kd=0.5, batch_size=4)
OTHER_COG = FedCOG(start_round=2, num_samples=6, steps=1, lambda_kd="balance", targets="complementary", batch_size=4)
SETTING: dict[str, Any] = {"eval_every": 1, "rounds": 4}


@dataclasses.dataclass(frozen=True)
class CountsRounds(Method):
    """A user's own method that collects states from round 1 on, as FedCOG does, without declaring it."""

    strength: float = 0.5

    def active(self, round: int) -> bool:
        return super().active(max(round, self.start_round))

    def init_client(self, params: Params, buffers: Params, client: Any) -> Slot:
        return {"rounds": next(iter(params.values())).new_zeros(())}

    def draw(self, rng: torch.Generator, client: Any) -> Slot:
        return {"acts": torch.tensor(float(client.round >= self.start_round))}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        rounds = ctx.state["rounds"] + 1
        scale = 1 - self.strength * ctx.draws["acts"] * rounds / 10
        return Upload({name: value * scale for name, value in delta.items()}, {"rounds": rounds})


def trunk(root: Path, *callbacks: flcog.Callback, **options: Any) -> Path:
    """A run of four rounds that keeps its checkpoint of round 2."""
    run = fit(root / "trunk", *callbacks, Checkpoint(keep_rounds=[2]), **(SETTING | options)).run_dir
    assert run is not None
    return run


def branch(root: Path, run: Path, *callbacks: flcog.Callback, round: int = 2, **options: Any) -> RecordingTrainer:
    options = SETTING | options
    module, data = options.pop("module", None) or classifier(), options.pop("data", None) or TinyData()
    trainer = make_trainer(root / "branched", *callbacks, **options)
    trainer.fit(module, data, branch=str(run), round=round)
    return trainer


def assert_same(branched: RecordingTrainer, straight: RecordingTrainer) -> None:
    assert without_times(branched.history) == without_times(straight.history)
    assert branched.run_dir is not None
    assert without_times(read_rows(branched.run_dir / "metrics.csv")[0]) == without_times(straight.history)
    for ours, theirs in (
        (branched.state, straight.state),
        (client_states(branched), client_states(straight)),
        *((branched.servers[name], straight.servers[name]) for name in straight.servers),
    ):
        assert ours.keys() == theirs.keys()
        leaves, expected = (torch.utils._pytree.tree_leaves(tree) for tree in (ours, theirs))
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(leaves, expected, strict=True))
    assert branched.ledger == straight.ledger and len(branched.recorded) == 2


CASES: dict[str, tuple[Sequence[Method], Sequence[Method], dict[str, Any]]] = {
    "a loss": ([], [FedProx(mu=0.5, start_round=2)], {}),
    "FedCOG from another": ([COG], [OTHER_COG], {}),
    "FedCOG under vmap": ([OTHER_COG], [COG], {"executor": "vmap"}),
    "what was only gathered is left": ([COG, MOON(projection=None, start_round=3)], [], {}),
    "MOON": (
        [COG, MOON(projection=None, start_round=3)],
        [MOON(mu=2.0, projection=None, start_round=2)],
        {"network": BatchNormFeatures},
    ),
    "state at the server and BatchNorm": (
        [SCAFFOLD(), FedAvgM(), COG],
        [SCAFFOLD(), FedAvgM(), OTHER_COG],
        {"network": BatchNormMLP, "optimizer": MOMENTUM},
    ),
    "state that begins later": ([], [SCAFFOLD(start_round=2), FedDyn(start_round=2)], {}),
    "personal models": ([Ditto()], [Ditto(), FedAvgM(start_round=2)], {"data": {"client_test": 0.3}}),
    "a method of one's own": ([CountsRounds(start_round=3)], [CountsRounds(start_round=2)], {}),
    "every client for itself": ([Local()], [Local(), FedSAM(start_round=2)], {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.slow
def test_it_is_the_run_from_round_1(case: Any, tmp_path: Path) -> None:
    methods, arm, options = case
    options = dict(options)
    network, optimizer = options.pop("network", None), options.pop("optimizer", MOMENTUM)
    data = options.pop("data", {})

    def setting() -> dict[str, Any]:
        return {"module": classifier(optimizer, network), "data": TinyData(**data), **options}

    run = trunk(tmp_path, *methods, **setting())
    branched = branch(tmp_path, run, *arm, **setting())
    straight = fit(tmp_path / "straight", *arm, **(SETTING | setting()))
    assert_same(branched, straight)
    if arm:  # the branch also differs from the trunk
        assert without_times(straight.history)[3] != without_times(read_rows(run / "metrics.csv")[0])[3]


@pytest.mark.slow
def test_it_branches_from_the_end_of_a_run_and_resumes(tmp_path: Path) -> None:
    ended = fit(tmp_path / "trunk", COG, **(SETTING | {"rounds": 2})).run_dir
    assert ended is not None
    branched = branch(tmp_path, ended, OTHER_COG, rounds=3)
    resumed = fit(tmp_path / "branched", OTHER_COG, ckpt_path="last", **SETTING)
    straight = fit(tmp_path / "straight", OTHER_COG, **SETTING)
    assert resumed.run_dir == branched.run_dir and without_times(resumed.history) == without_times(straight.history)
    assert all(torch.equal(resumed.state[name], value) for name, value in straight.state.items())
    assert resumed.run_dir is not None
    record = yaml.safe_load((resumed.run_dir / "run.yaml").read_text())
    assert record["branch"] == {"run": str(ended), "round": 2, "methods": ["FedCOG"]}


@pytest.mark.slow
def test_it_branches_from_a_branch_whose_best_round_came_before(tmp_path: Path) -> None:
    """With such a strong proximal term, later rounds are worse."""
    run = trunk(tmp_path / "first", rounds=2)
    second = branch(tmp_path / "second", run, FedProx(mu=30.0, start_round=2), rounds=3)
    assert second.run_dir is not None and checkpoint.round_of(second.run_dir / "checkpoints/best.ckpt") in (1, 2)
    third = branch(tmp_path / "third", second.run_dir, FedProx(mu=30.0, start_round=2), round=3)
    straight = fit(tmp_path / "straight", FedProx(mu=30.0, start_round=2), **SETTING)
    assert without_times(third.history) == without_times(straight.history)


@pytest.mark.slow
def test_its_directory_is_one_like_any_other(tmp_path: Path) -> None:
    """A branch can be killed before its first round, it has a best checkpoint, and observers keep their states from the trunk."""
    run = trunk(tmp_path, RoundsToTarget(0.01))

    class Dies(flcog.Callback):
        def on_round_start(self, run: flcog.Run, round: int, cohort: Sequence[int]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        branch(tmp_path, run, RoundsToTarget(0.01), Dies())
    resumed = fit(tmp_path / "branched", RoundsToTarget(0.01), ckpt_path="last", **SETTING)
    straight = fit(tmp_path / "straight", RoundsToTarget(0.01), **SETTING)
    assert without_times(resumed.history) == without_times(straight.history)
    best = [make_trainer(tmp_path / name).test(classifier(), TinyData(), "best") for name in ("branched", "straight")]
    assert best[0] == best[1]
    assert resumed.run_dir is not None and not list(resumed.run_dir.glob("checkpoints/round-*"))


def refusal(root: Path, run: Path, *callbacks: flcog.Callback, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        branch(root, run, *callbacks, **options)
    assert "\n" not in str(caught.value) and not (root / "branched").exists()
    return str(caught.value)


@pytest.mark.slow
def test_what_would_be_another_run_is_refused(tmp_path: Path) -> None:
    run = trunk(tmp_path, SCAFFOLD(), COG)
    kept = f"{run}/checkpoints/round-000002.ckpt"
    assert "FedProx would act before round 3, but did not act in the run of" in refusal(tmp_path, run, SCAFFOLD(), FedProx())
    assert "in which SCAFFOLD acted, in this order; here it is no method: list" in refusal(tmp_path, run, COG)
    assert "another SCAFFOLD: SCAFFOLD.start_round" not in refusal(tmp_path, run, SCAFFOLD(start_round=2))
    other = MOON(projection=None, start_round=2)
    assert f"{kept} lacks the client states that MOON collects from round 1 on: list MOON in that run too" in refusal(
        tmp_path, run, SCAFFOLD(), other
    )
    assert "by a run with seed 0; this one has 1" in refusal(tmp_path, run, SCAFFOLD(), seed=1)
    assert "trainer.local_steps was 4, is 5. A branch changes methods only" in refusal(tmp_path, run, SCAFFOLD(), local_steps=5)
    assert "use the same data.num_clients, partitioner" in refusal(
        tmp_path, run, SCAFFOLD(), data=TinyData(order=(0, 1, 2, 3, 4))
    )
    assert "holds another model" in refusal(tmp_path, run, SCAFFOLD(), module=classifier(network=BatchNormMLP))
    assert "trainer.rounds=2 leaves no round to train" in refusal(tmp_path, run, SCAFFOLD(), rounds=2)
    text = refusal(tmp_path, run, SCAFFOLD(), round=3)
    assert text.startswith(f"{run} has no checkpoint of round 3 to branch from, but those of rounds 2, 4: train it with")
    assert "there is no run" in refusal(tmp_path, tmp_path / "nowhere", SCAFFOLD())


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_private_run_is_the_run_from_round_1(executor: Any, tmp_path: Path) -> None:
    """It withholds the times of its rounds and evaluations."""
    private = DPFedAvg(clip=1.0, noise_multiplier=1.0, delta=0.1, repeatable=True)
    options = {"executor": executor, "rounds": 3}
    run = trunk(tmp_path, private, **options)
    branched = branch(tmp_path, run, private, FedProx(mu=5.0, start_round=2), **options)
    straight = fit(tmp_path / "straight", private, FedProx(mu=5.0, start_round=2), **(SETTING | options))
    assert without_times(branched.history) == without_times(straight.history)
    assert all(torch.equal(branched.state[name], value) for name, value in straight.state.items())
    assert without_times(straight.history)[2] != without_times(read_rows(run / "metrics.csv")[0])[2]


class Own(flcog.Classifier):
    """A user's module, which may read the number of rounds."""


class OwnData(TinyData):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class OwnLightning(L.Callback):
    """A user's callback for Lightning."""


PRIVATE = DPFedAvg(clip=1.0, target_epsilon=20.0, delta=0.1, repeatable=True)


@pytest.mark.parametrize(
    ("callbacks", "options", "name"),
    [
        ([PRIVATE], {}, "DPFedAvg"),
        ([OwnLightning()], {}, "OwnLightning"),
        ([], {"module": Own}, "Own"),
        ([], {"data": OwnData}, "OwnData"),
        ([FedDisco(start_round=2)], {}, "FedDisco"),
    ],
)
def test_another_number_of_rounds_is_refused_if_something_may_depend_on_it(
    callbacks: Any, options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    def setting() -> dict[str, Any]:
        made = {"module": lambda kind: kind(classifier().model), "data": lambda kind: kind()}
        return {part: made[part](kind) for part, kind in options.items()}

    ended = fit(tmp_path / "trunk", *callbacks, **(SETTING | {"rounds": 2} | setting())).run_dir
    assert ended is not None
    text = refusal(tmp_path, ended, *callbacks, **setting())
    assert f"written by a run with trainer.rounds=2, this one has 4, and {name} may depend on this number from round 1 on" in text


def test_another_number_of_rounds_remains_another_after_a_resume(tmp_path: Path) -> None:
    """Its first rounds were trained with the other number."""
    fit(tmp_path / "trunk", **(SETTING | {"rounds": 1}))
    resumed = fit(tmp_path / "trunk", Checkpoint(keep_rounds=[2]), **SETTING, ckpt_path="last").run_dir
    assert resumed is not None and "with trainer.rounds=1, this one has 4" in refusal(tmp_path, resumed, OwnLightning())
    assert len(branch(tmp_path, resumed).history) == 4, "nothing of flcog's own depends on it"


def test_rows_that_would_be_others_are_refused(tmp_path: Path) -> None:
    ended = fit(tmp_path / "trunk", rounds=3, eval_every=2).run_dir
    assert ended is not None
    text = refusal(tmp_path, ended, round=3, eval_every=2, rounds=5)
    assert text.startswith(f"round 3 was evaluated as the last of {ended}, and trainer.eval_every=2 would not evaluate it")
    table = ended / "metrics.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith("2,")))
    assert f"{table} has no row of round 2: branch from a run" in refusal(tmp_path, ended, round=3, eval_every=2, rounds=5)
    table.unlink()
    assert f"{table} has no row of round 1" in refusal(tmp_path, ended, round=3, eval_every=2, rounds=5)


@pytest.mark.parametrize(
    "method",
    [
        FedDisco(start_round=2),
        *(pytest.param(slow, marks=pytest.mark.slow) for slow in (FineTune(steps=1, start_round=2), Ditto(start_round=2))),
    ],
)
@pytest.mark.slow
def test_what_methods_do_from_round_1_on_has_no_late_start(method: Method, tmp_path: Path) -> None:
    """The rows of a run without such a method lack the effect of its data, or the columns of its clients' own models."""
    data = TinyData(client_test=0.3)
    run = trunk(tmp_path, data=data)
    text = refusal(tmp_path, run, method, data=data)
    assert f"even before its start_round, and the run that wrote {run}/checkpoints/round-000002.ckpt had no {method.name}" in text
    assert "set its start_round" not in text
    listed = trunk(tmp_path / "listed", method, data=data)
    branched = branch(tmp_path, listed, method, FedProx(mu=0.5, start_round=2), data=data)
    straight = fit(tmp_path / "straight", method, FedProx(mu=0.5, start_round=2), **SETTING, data=data)
    assert_same(branched, straight)


def test_a_best_checkpoint_that_cannot_be_taken_along_is_refused(tmp_path: Path) -> None:
    run, other = trunk(tmp_path), fit(tmp_path / "other", seed=1, **SETTING).run_dir
    assert other is not None
    best = run / "checkpoints/best.ckpt"
    best.write_bytes((other / "checkpoints/best.ckpt").read_bytes())
    assert f"{best} was written by another run than the checkpoints beside it" in refusal(tmp_path, run)
    best.write_bytes(best.read_bytes()[:500])
    assert f"{best} is no readable flcog checkpoint" in refusal(tmp_path, run)
    content = checkpoint.read(run / "checkpoints/last.ckpt")
    content["params"] = {name: value * torch.nan for name, value in content["params"].items()}
    checkpoint.write(best, content)
    assert f"{best}: parameter" in refusal(tmp_path, run)


def test_methods_that_change_model_or_data_have_no_late_start(tmp_path: Path) -> None:
    for method in (MOON(start_round=2), FedDisco(start_round=2), FineTune(start_round=2)):
        assert method.until(2) is method
    assert FedProx(start_round=2).until(2) is None and FedProx(start_round=2).until(3) is not None
    assert COG.until(2) == OTHER_COG.until(2) and COG.until(3) is COG
    assert dataclasses.replace(COG, lambda_dis=0.0).until(2) is None


def test_its_arguments_belong_together(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"branch and round belong together: .*; got branch=None, round=3"):
        trainer.fit(classifier(), TinyData(), round=3)
    with pytest.raises(ValueError, match="give branch=x or ckpt_path=last"):
        trainer.fit(classifier(), TinyData(), "last", branch="x", round=3)
    with pytest.raises(ValueError, match=r"Checkpoint: keep_rounds are rounds, counted from 1; got \[0\]"):
        Checkpoint(keep_rounds=[0])
