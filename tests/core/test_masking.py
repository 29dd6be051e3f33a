"""Secrets are masked in commands and configurations, and everything else is left unchanged."""

import shlex
from typing import Any

import pytest

from flcog.core.masking import masked, masked_command, masked_text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data.token", "s3cret"],
        ["--data.apiKey", "-s3cret"],
        ["--trainer.logger", '{"class_path": "Comet", "init_args": {"api_key": "s3cret", "name": "x"}}'],
        ["--trainer.logger", "{class_path: Comet, init_args: {api_key: s3cret}}"],
        ["--trainer.logger.tracking_uri", "https://me:s3cret@host.example/path"],
        ["--trainer.logger.tracking_uri", "https://host.example/path?user=me&token=s3cret&x=1"],
        ["TOKEN=s3cret"],
    ],
    ids=" ".join,
)
def test_a_command_keeps_its_secrets(arguments: list[str]) -> None:
    shown = masked_command(["flcog", "fit", *arguments, "-c", "file.yaml", "--trainer.rounds", "3"])
    assert "s3cret" not in shown and "***" in shown
    assert shlex.split(shown)[:2] == ["flcog", "fit"] and shlex.split(shown)[-1] == "3"


def test_what_is_no_secret_stays_as_it_is() -> None:
    command = [
        *(
            "flcog",
            "fit",
            "-c",
            "a b.yaml",
            "--trainer.callbacks+=SCAFFOLD",
            "--model.tokenizer",
            "bert",
            "--data.max_tokens=512",
        ),
        *("--trainer.callbacks.generator.privacy.secret", "true", "--data.keypoints", "all", "--data.url", "https://host/a@b"),
        *("--model.token_dim", "1e2", "--data.num_clients=10", "--model.monkey", "business"),
    ]
    assert masked_command(command) == shlex.join(command)
    config: dict[str, Any] = {
        "privacy": {"secret": False},
        "max_tokens": 512,
        "token": None,
        "authors": ["A", "B"],
        "path": "a:b",
    }
    assert masked(config) == config
    assert masked_text("FedProx(mu=0.01, start_round=1)") == "FedProx(mu=0.01, start_round=1)"


def test_a_configuration_keeps_its_secrets_wherever_they_lie() -> None:
    config = {
        "trainer": {"logger": [{"init_args": {"api_key": "s3cret", "project": "mine"}}]},
        "data": {"credentials": {"user": "s3cret", "list": ["s3cret"]}, "password": 12345, "url": "s3://s3cret:s3cret@bucket"},
    }
    shown = masked(config)
    assert "s3cret" not in str(shown) and "12345" not in str(shown)
    assert shown["trainer"]["logger"][0]["init_args"]["project"] == "mine" and shown["data"]["url"] == "s3://***@bucket"
    assert config["data"]["password"] == 12345, "the run's own configuration is left as it is"
