"""A decoder with LoRA, and private training, over nodes in this process."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from test_llm import SUMS, llama  # noqa: F401

from deploy.deployments import CLIENTS, NODES, history, rows
from deploy.test_node import softmax
from deploy.test_server import Grid, simulation, train_app
from flcog.deploy.application import write_app

pytestmark = pytest.mark.slow


def deployed(folder: Path, content: dict[str, Any]) -> Path:
    write_app(folder / "app", content, CLIENTS, NODES, 1000)
    train_app(folder, Grid(folder / "app", folder / "state", lambda *message: None))
    return folder / "runs"


def test_a_decoder_with_lora_learns_over_nodes_what_it_learns_in_a_simulation(tmp_path: Path, llama: str) -> None:  # noqa: F811
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, SUMS)) + "\n")
    decoder = {"class_path": "flcog.models.CausalLM", "init_args": {"source": llama}}
    adapted = {"class_path": "flcog.models.LoRA", "init_args": {"model": decoder, "rank": 4, "alpha": 8, "targets": ["q_proj"]}}
    content = softmax()
    content["model"] = {
        "class_path": "flcog.models.InstructionTuning",
        "init_args": {"model": adapted, "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}}},
    }
    own = {"train": str(tmp_path / "sums.jsonl"), "tokenizer": llama, "num_clients": CLIENTS, "batch_size": 3}
    content["data"] = {"class_path": "flcog.datamodules.InstructionData", "init_args": own}
    content["trainer"] |= {"rounds": 2, "callbacks": ["flcog.callbacks.FFALoRA"]}
    assert history(deployed(tmp_path, content)) == simulation(tmp_path)


@pytest.mark.parametrize("method", ["DPFedAvg", "DPSGD"])
def test_private_training_runs_over_nodes(tmp_path: Path, method: str) -> None:
    content = softmax()
    private = {"class_path": f"flcog.callbacks.{method}", "init_args": {"noise_multiplier": 1.0}}
    sampling = {"class_path": "flcog.callbacks.PoissonSampling", "init_args": {"rate": 0.9}}
    content["trainer"] |= {"rounds": 2, "callbacks": [sampling, private] if method == "DPFedAvg" else [private]}
    assert len(rows(deployed(tmp_path, content))) == 2
