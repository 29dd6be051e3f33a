"""Arms that are the same until a round share the rounds before it: one of them trains these, the others branch from it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonargparse import ArgumentParser

from flcog.commands.compare.plan import Cell, Trunk
from flcog.commands.compare.resolved import Config, callbacks_of, class_of, without_place
from flcog.hooks import Callback, Method
from flcog.run.branching import methods_until
from flcog.run.directory import kept_checkpoint


@dataclass(frozen=True)
class Arm:
    """A cell and what it is.

    Args:
        cell: which.
        config: its configuration.
        methods: in the order in which they act.
        rest: all else of the configuration, as text.
    """

    cell: Cell
    config: Config
    methods: Sequence[Method]
    rest: str

    def until(self, round: int) -> tuple[str, Mapping[str, Any]]:
        """What acts in the rounds before this one, and what the methods that wait for it gather meanwhile."""
        found = methods_until(self.methods, round)
        acting = {name: part for name, part in found.items() if not part["waits"]}
        return json.dumps(acting, default=str), {name: part for name, part in found.items() if part["waits"]}


def share_rounds(cells: Sequence[Cell], configs: Mapping[str, Config]) -> int:
    """Decide which cells branch from which; returns how many rounds need not be trained twice.

    Args:
        cells: of a table.
        configs: their configurations, by their names, as far as they are known.
    """
    late = {part["class_path"] for config in configs.values() for part in callbacks_of(config) if _start(part)}
    if not late:
        return 0
    arms = [arm for cell in cells if cell.name in configs and (arm := _arm(cell, configs[cell.name]))]
    for rest in dict.fromkeys(arm.rest for arm in arms):
        alike = [arm for arm in arms if arm.rest == rest]
        starts = {method.start_round for arm in alike for method in arm.methods}
        # The latest first, for those who share most.
        for round in sorted((start for start in starts if 0 < start < alike[0].config["trainer"]["rounds"]), reverse=True):
            for acting in dict.fromkeys(arm.until(round)[0] for arm in alike):
                _share([arm for arm in alike if arm.until(round)[0] == acting], round)
    branching = [arm.cell.trunk for arm in arms if arm.cell.trunk]
    for arm in arms:
        arm.cell.keep_options = _keep_options(arm, sorted({trunk.round for trunk in branching if trunk.cell is arm.cell}))
    return sum(trunk.round for trunk in branching)


def _start(part: Config) -> int:
    start = (part.get("init_args") or {}).get("start_round")
    return start if isinstance(start, int) else 0


def _arm(cell: Cell, config: Config) -> Arm | None:
    """None where its callbacks cannot be made, which its run will say."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callbacks", type=list[Callback])
    parts = callbacks_of(config)
    try:
        made = parser.instantiate(parser.parse_object({"callbacks": parts})).callbacks
    except Exception:  # whatever a constructor raises
        return None
    observers = [part for part, callback in zip(parts, made, strict=True) if not isinstance(callback, Method)]
    return Arm(cell, config, [callback for callback in made if isinstance(callback, Method)], without_place(config, observers))


def _share(arms: Sequence[Arm], round: int) -> None:
    """Let these arms, which are the same until this round, branch from as few of them as may be."""
    gathered = {arm.cell.name: arm.until(round)[1] for arm in arms}
    waiting = [arm for arm in arms if not (arm.cell.finished or arm.cell.begun or arm.cell.trunk)]

    def followers(trunk: Arm) -> list[Arm]:
        """Those who find with this one all that their methods need, and from whom it does not itself branch."""
        has = gathered[trunk.cell.name].items()
        return [arm for arm in waiting if arm is not trunk and gathered[arm.cell.name].items() <= has and not _leads(trunk, arm)]

    while trunks := [arm for arm in arms if _can_be_trunk(arm.cell, round) and followers(arm)]:
        best = max(trunks, key=lambda arm: (len(followers(arm)), _keeps(arm.cell, round)))
        for arm in followers(best):
            arm.cell.trunk = Trunk(best.cell, round)
            waiting.remove(arm)
        if best in waiting:
            waiting.remove(best)


def _leads(trunk: Arm, arm: Arm) -> bool:
    """Whether one branches from the other, directly or not."""
    cell: Cell | None = trunk.cell
    while cell is not None:
        if cell is arm.cell:
            return True
        cell = cell.trunk.cell if cell.trunk else None
    return False


def _can_be_trunk(cell: Cell, round: int) -> bool:
    """Whether it has the checkpoint of that round, or will train that round."""
    return _keeps(cell, round) or (not cell.finished and cell.trunk is None and len(cell.history()) < round)


def _keeps(cell: Cell, round: int) -> bool:
    return cell.run is not None and kept_checkpoint(cell.run, round).is_file()


def _keep_options(arm: Arm, rounds: Sequence[int]) -> list[str]:
    """What makes a run keep its checkpoints of these rounds."""
    if not rounds:
        return []
    listed = [part for part in arm.config["trainer"].get("callbacks") or () if class_of(part) == "Checkpoint"]
    more = [round for part in listed for round in (part.get("init_args") or {}).get("keep_rounds") or ()]
    add = [] if listed else ["--trainer.callbacks+=Checkpoint"]
    return [*add, "--trainer.callbacks.Checkpoint.keep_rounds", json.dumps(sorted({*more, *rounds}))]
