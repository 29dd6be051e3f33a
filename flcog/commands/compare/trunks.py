"""Arms with equal rounds up to some round share them: one arm, the trunk, trains these rounds, and the others branch from it.

A method may collect state before its first round, as MOON collects clients' last models. If such an arm branches, its trunk must collect
that state too. So the trunk carries the method, with a start after the trunk's last round.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser

from flcog import SavedRun
from flcog.commands.compare.plan import Cell, Trunk
from flcog.commands.compare.resolved import Config, arguments_of, callbacks_of, class_of, resolved, start_of, without_place
from flcog.commands.refusals import refusal
from flcog.method import Callback, Method, check_methods, methods_until


class MethodEntry(NamedTuple):
    """A method and its entry in the configuration."""

    method: Method
    part: Config


@dataclass(frozen=True)
class Arm:
    """A cell with its methods.

    Args:
        cell: the cell.
        config: its configuration.
        methods: its methods, which act in this order.
        rest: the other parts of the configuration, as text.
        carried: methods that only collect state in its run, for arms that branch from it.
    """

    cell: Cell
    config: Config
    methods: Sequence[MethodEntry]
    rest: str
    carried: list[MethodEntry] = field(default_factory=list)

    def until(self, round: int) -> tuple[str, Mapping[str, Any]]:
        """The methods that act before this round, as text, and the methods that only collect state meanwhile."""
        found = _until([*self.methods, *self.carried], round)
        acting = {name: part for name, part in found.items() if not part["waits"]}
        return json.dumps(acting, default=str), {name: part for name, part in found.items() if part["waits"]}

    def waiting(self, name: str) -> MethodEntry:
        """One of its methods, as another run carries it without ever using it."""
        method, part = next(listed for listed in (*self.methods, *self.carried) if listed.method.name == name)
        never = {"start_round": self.config["trainer"]["rounds"], "stop_round": None}
        return MethodEntry(replace(method, **never), {**part, "init_args": {**arguments_of(part), **never}})


def share_rounds(cells: Sequence[Cell], configs: Mapping[str, Config]) -> int:
    """Choose a trunk for each cell that can branch. Returns the number of rounds that are not trained twice.

    Args:
        cells: of a table.
        configs: their configurations, by their names, as far as they are known.
    """
    if not any(start_of(part) for config in configs.values() for part in callbacks_of(config)):
        return 0
    arms = [arm for cell in cells if cell.name in configs and (arm := _arm(cell, configs[cell.name]))]
    for rest in dict.fromkeys(arm.rest for arm in arms):
        alike = [arm for arm in arms if arm.rest == rest]
        starts = {listed.method.start_round for arm in alike for listed in arm.methods}
        # The latest round first, because it saves most.
        for round in sorted((start for start in starts if 0 < start < alike[0].config["trainer"]["rounds"]), reverse=True):
            for acting in dict.fromkeys(arm.until(round)[0] for arm in alike):
                _share([arm for arm in alike if arm.until(round)[0] == acting], round)
    branching = [arm.cell.trunk for arm in arms if arm.cell.trunk]
    for arm in arms:
        arm.cell.keep_options = _keep_options(arm, sorted({trunk.round for trunk in branching if trunk.cell is arm.cell}))
        arm.cell.carried = [listed.part for listed in arm.carried]
    return sum(trunk.round for trunk in branching)


def _arm(cell: Cell, config: Config) -> Arm | None:
    """The arm; None if its callbacks cannot be constructed, which its run will report."""
    parts, earlier = callbacks_of(config), cell.files.source.carried if cell.begun or cell.finished else []
    try:
        made, carried = _made(parts), _made(earlier)
    except Exception:  # constructors may raise anything
        return None
    listed = [MethodEntry(callback, part) for callback, part in zip(made, parts, strict=True) if isinstance(callback, Method)]
    observers = [part for part, callback in zip(parts, made, strict=True) if not isinstance(callback, Method)]
    before = [MethodEntry(method, part) for method, part in zip(carried, earlier, strict=True) if isinstance(method, Method)]
    return Arm(cell, config, listed, without_place(config, observers), before)


def unmade(cell: Cell) -> str:
    """The refusal of a method's constructor, such as that of an impossible value; empty if there is none."""
    for part in callbacks_of(resolved(cell, cell.common_arguments) or {"trainer": {}}):
        try:
            _made([part])
        except Exception as error:  # A callback of Lightning's is none of ours, and has no refusal.
            if reason := refusal(error):
                return reason
    return ""


def _made(parts: Sequence[Config]) -> list[Callback]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--callbacks", type=list[Callback])
    made: list[Callback] = parser.instantiate(parser.parse_object({"callbacks": list(parts)})).callbacks
    return made


def _until(listed: Sequence[MethodEntry], round: int) -> dict[str, dict[str, Any]]:
    return methods_until([method for method, _ in listed], round)


def _share(arms: Sequence[Arm], round: int) -> None:
    """Let these arms, which are equal up to this round, branch from as few trunks as possible."""
    waiting = [arm for arm in arms if not (arm.cell.finished or arm.cell.begun or arm.cell.trunk)]
    while trunks := [(arm, *found) for arm in arms if (found := _followers(arm, waiting, round))[0]]:
        # Prefer many followers, then a checkpoint that exists already, then few carried methods.
        trunk, followers, carried = max(trunks, key=lambda it: (len(it[1]), _keeps(it[0].cell, round), -len(it[2])))
        trunk.carried[:] = carried
        for arm in followers:
            arm.cell.trunk = Trunk(trunk.cell, round)
        waiting = [arm for arm in waiting if arm is not trunk and arm not in followers]


def _followers(trunk: Arm, waiting: Sequence[Arm], round: int) -> tuple[list[Arm], list[MethodEntry]]:
    """The arms that can branch from this trunk, and the methods that the trunk must carry for them."""
    followers, carried = [], list(trunk.carried)
    if _can_be_trunk(trunk.cell, round):
        anew = not trunk.cell.finished and not trunk.cell.begun
        for arm in waiting:
            if arm is trunk or _leads(trunk, arm):
                continue
            more = _lacking(arm, [*trunk.methods, *carried], round)
            if more is not None and (anew or not more):
                followers.append(arm)
                carried += more
    return followers, carried


def _lacking(arm: Arm, listed: Sequence[MethodEntry], round: int) -> list[MethodEntry] | None:
    """The methods that a run with ``listed`` must carry for this arm; None if it cannot."""
    needs, has = arm.until(round)[1], _until(listed, round)
    more = [arm.waiting(name) for name in needs if has.get(name) != needs[name]]
    together = [*listed, *more]
    try:
        check_methods([method for method, _ in together])
    except ValueError:
        return None
    has = _until(together, round)
    return more if all(has.get(name) == needs[name] for name in needs) else None


def _leads(trunk: Arm, arm: Arm) -> bool:
    """Whether the trunk itself branches from the arm, directly or through others."""
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
    return cell.run is not None and cell.run.keeps(round) and _is_whole(cell.run, round)


@functools.cache
def _is_whole(run: SavedRun, round: int) -> bool:
    """Whether a kept checkpoint can be read. A damaged checkpoint is reported once, and no arm branches from it."""
    damage = run.damage_at(round)
    if damage:
        print(f"{damage}. No run branches from it: runs that could do so train these rounds themselves", flush=True)
    return damage is None


def _keep_options(arm: Arm, rounds: Sequence[int]) -> list[str]:
    """Options that make a run keep the checkpoints of these rounds."""
    if not rounds:
        return []
    listed = [part for part in arm.config["trainer"].get("callbacks") or () if class_of(part) == "Checkpoint"]
    more = [round for part in listed for round in arguments_of(part).get("keep_rounds") or ()]
    add = [] if listed else ["--trainer.callbacks+=Checkpoint"]
    return [*add, "--trainer.callbacks.Checkpoint.keep_rounds", json.dumps(sorted({*more, *rounds}))]
