"""flcog epsilon: the accountant on the command line."""

import pytest

from flcog.commands.cli import main

pytestmark = pytest.mark.usefixtures("command_line")

TRAINING = ["epsilon", "--clients", "10000", "--rate", "1", "--rounds", "50", "--delta", "1e-5"]


def test_epsilon_of_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TRAINING, "--noise", "5"])
    assert capsys.readouterr().out.splitlines() == [
        "epsilon 6.57297 by PLD",
        "epsilon 7.07739 by RDP",
        "of 50 rounds with delta 1e-05; all clients in every round, without amplification; hides whether one client is added or removed",
    ]


def test_epsilon_with_pauses(capsys: pytest.CaptureFixture[str]) -> None:
    # Each client takes part in at most 50 rounds.
    main([*TRAINING, "--noise", "5", "--rate", "0.01", "--rounds", "400", "--separation", "8"])
    out = capsys.readouterr().out
    assert out.startswith("epsilon 6.57297 by PLD\nepsilon 7.07739 by RDP\n") and "each at most once in 8 rounds" in out


@pytest.mark.slow
def test_noise_for_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TRAINING, "--target_epsilon", "6.57297"])
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert 5 <= float(first.split()[2]) <= 5.005 and first.endswith("meets the target epsilon 6.57297")
    assert float(second.split()[1]) <= 6.57297


def test_no_noise_is_no_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TRAINING, "--noise", "0"])
    assert capsys.readouterr().out.startswith("no guarantee: without noise, epsilon is infinite\n")
