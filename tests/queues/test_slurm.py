"""Runs and comparisons in a real Slurm queue survive preemption, lost nodes and restarts, with the same numbers to the last bit."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from harness import ROOT
from two_processes import rounds_done, wait_for

from queues.cluster import PATIENCE, Cluster, reason_to_skip
from queues.runs import ROUNDS, assert_same, assert_same_model, config, fit, quickstart

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip())),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def whole(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run in one process, without Slurm."""
    folder = tmp_path_factory.mktemp("whole")
    cluster.call(*fit(config(folder), folder / "runs"))
    return folder / "runs"


def test_two_nodes_equal_one_process(cluster: Cluster, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    cluster.call(*quickstart(one))
    cluster.call("srun", "-N2", "--ntasks-per-node=1", *quickstart(two, "--trainer.num_nodes", "2"))
    assert_same_model(one, two)


def test_a_preempted_job_finishes_by_itself(cluster: Cluster, whole: Path, tmp_path: Path) -> None:
    """The job uses the script of docs/queues.md."""
    match = re.search(r"```bash\n(#!/bin/bash\n.*?)```", (ROOT / "docs/queues.md").read_text(), re.DOTALL)
    assert match is not None
    script, root = tmp_path / "script.sh", tmp_path / "runs"
    script.write_text(match[1].replace("CONFIG", str(config(tmp_path, sleep=1.0))).replace("runs/mine", str(root)))
    job = cluster.submit(script, f"--output={tmp_path}/output.txt")
    wait_for(lambda: rounds_done(root) >= 2)
    cluster.preempt_all()
    assert 2 <= rounds_done(root) < ROUNDS
    wait_for(lambda: job not in cluster.states())
    assert_same(root, whole)


class Comparison:
    """``flcog compare --launcher slurm`` on a table with two rows."""

    def __init__(self, cluster: Cluster, folder: Path, sleep: float = 1.0) -> None:
        self.cluster, self.folder, self.out = cluster, folder, folder / "out"
        rows = {"SCAFFOLD": {}, "FedProx": {"configs": ["methods/fedprox"]}}
        table = {"configs": [str(config(folder, sleep))], "rows": rows}
        (folder / "table.yaml").write_text(yaml.safe_dump(table))
        self.start()

    def start(self) -> None:
        words = ["flcog", "compare", "table.yaml", "--out", str(self.out), "--launcher", "slurm", "--time", "10"]
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                words, cwd=self.folder, env=self.cluster.environment, stdout=output, stderr=subprocess.STDOUT
            )
        wait_for(lambda: all(rounds_done(root) >= 2 for root in self.roots))

    @property
    def roots(self) -> list[Path]:
        return [self.out / row / "seed0" for row in ("SCAFFOLD", "FedProx")]

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def jobs(self) -> list[str]:
        """The numbers of all jobs that were submitted for the first run."""
        return sorted((path.name.partition("_")[0] for path in self.roots[0].glob("slurm/*_submission.sh")), key=int)

    def wait(self) -> None:
        def has_ended() -> bool:
            if self.cluster.run("squeue").returncode == 0:
                self.cluster.states()
            return self.process.poll() is not None

        wait_for(has_ended, 2 * PATIENCE)
        assert self.process.returncode == 0, self.output


@pytest.fixture(scope="module")
def table_here(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same table, trained without Slurm."""
    folder = tmp_path_factory.mktemp("here")
    rows = {"SCAFFOLD": {}, "FedProx": {"configs": ["methods/fedprox"]}}
    (folder / "table.yaml").write_text(yaml.safe_dump({"configs": [str(config(folder))], "rows": rows}))
    cluster.call("flcog", "compare", "table.yaml", "--out", "out", cwd=folder, timeout=2 * PATIENCE)
    return folder / "out"


def preempt(comparison: Comparison) -> None:
    comparison.cluster.preempt_all()


def cancel(comparison: Comparison) -> None:
    comparison.cluster.call("scancel", comparison.jobs()[0])


def lose_a_node(comparison: Comparison) -> None:
    cluster, job = comparison.cluster, comparison.jobs()[0]
    node = cluster.call("squeue", "-h", "-j", job, "-o", "%N").strip()
    cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_for(lambda: cluster.states().get(job) != "RUNNING")
    cluster.run("scontrol", "update", f"nodename={node}", "state=resume")  # fails if the node has returned by itself


def restart_the_controller(comparison: Comparison) -> None:
    comparison.cluster.end("controller")
    wait_for(lambda: "squeue gets no answer from slurmctld" in comparison.output)
    comparison.cluster.start_controller()


def kill_the_comparison(comparison: Comparison) -> None:
    comparison.process.send_signal(signal.SIGKILL)
    comparison.process.wait()
    comparison.start()


@pytest.mark.parametrize("event", [preempt, cancel, lose_a_node, restart_the_controller, kill_the_comparison])
def test_a_comparison_survives(event: Callable[[Comparison], None], cluster: Cluster, table_here: Path, tmp_path: Path) -> None:
    assert "disabled" in cluster.run("sacct").stderr, "Slurm has no accounting here"
    comparison = Comparison(cluster, tmp_path, sleep=8.0 if event is kill_the_comparison else 1.0)
    event(comparison)
    comparison.wait()
    # Slurm may start the requeued job on the lost node while it is still killing the first job there. It then kills both, and
    # flcog submits the job again.
    submissions = {cancel: {2}, lose_a_node: {1, 2}}.get(event, {1})
    assert len(comparison.jobs()) in submissions, comparison.output
    for root in comparison.roots:
        assert_same(root, table_here / root.relative_to(comparison.out))
    assert event is not kill_the_comparison or " is in the queue" in comparison.output
