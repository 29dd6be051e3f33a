"""If no SuperLink runs, a node and a run end with an error message of one line."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deploy.deployments import CLIENTS, ENVIRONMENT, NODES, config, until
from flcog.deploy.application import write_app
from flcog.deploy.certificates import make_node_key
from flcog.deploy.loopback import Loopback, reason_in

pytestmark = pytest.mark.slow


class Unanswered(Loopback):
    """A deployment whose SuperLink was never started."""

    def start_superlink(self) -> None:
        pass


def test_a_node_and_a_run_end_with_one_line(tmp_path: Path) -> None:
    write_app(tmp_path / "app", config(), CLIENTS, NODES)
    with Unanswered(tmp_path / "loopback", ENVIRONMENT) as nobody:
        make_node_key(nobody.folder / "node0")
        nobody.start_node("node0", {"clients": "0"})
        with pytest.raises(ValueError, match=r"flwr run failed: .*(refused|connect|Connect|unavailable)") as failed:
            nobody.run(tmp_path / "app", {"root": str(tmp_path / "runs")})
        assert "\n" not in str(failed.value) and not (tmp_path / "runs").exists()
        assert until(120, nobody.processes["node0"].poll) != 0
        reason = reason_in(nobody.log("node0"))
    assert "Failed to initialize the connection to the SuperLink" in reason and "\n" not in reason
