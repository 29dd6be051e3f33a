"""The keys of a table's YAML file: their help, their defaults and their checks."""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from flcog.commands.compare.plan import SPLIT_SEED, Summary
from flcog.commands.compare.published import is_number
from flcog.core.monitor import Mode

SPLIT = SPLIT_SEED.rpartition(".")[2]
SUMMARIES = get_args(Summary)
MODES = get_args(Mode)


class Kind(NamedTuple):
    """The allowed values of a key: a test, and their description in an error."""

    fits: Callable[[Any], bool]
    wanted: str


class Key(NamedTuple):
    """A key: its help, its value if the file has none, and its allowed values, unless another function checks these."""

    meaning: str
    default: Any = None
    kind: Kind | None = None

    def value(self, name: str, content: dict[Any, Any], path: Any) -> Any:
        """Read its value. Empty values count as missing."""
        value = content.get(name)
        if value in (None, "", []):
            return self.default
        if self.kind is not None and not self.kind.fits(value):
            raise ValueError(f"{name} in {path} must {self.kind.wanted}; got {value!r}")
        return value


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _are_seeds(value: Any) -> bool:
    return isinstance(value, list) and all(is_whole(seed) and seed >= 0 for seed in value)


def _is_metric(value: Any) -> bool:
    """Whether it is a column of metrics.csv, or a mapping of a column with its own mode, summary or last round."""
    if not isinstance(value, dict):
        return isinstance(value, str)
    summary, round = value.get("summary", "best"), value.get("round", 1)
    known = isinstance(value.get("metric"), str) and not value.keys() - {"metric", "mode", "summary", "round"}
    return known and value.get("mode") in (None, *MODES) and summary in SUMMARIES and is_whole(round) and round > 0


def _are_margins(value: Any) -> bool:
    margins = value if isinstance(value, dict) else {"score": value}
    known = not margins.keys() - {"score", "rounds", "saved"}
    return known and all(is_number(number) and number > (name == "rounds") for name, number in margins.items())


FLAG = Kind(lambda value: isinstance(value, bool), "be true or false")
TEXT = Kind(lambda value: isinstance(value, str), "be text")
TEXTS = Kind(are_texts, "be a list of texts")
SEEDS = Kind(_are_seeds, "be a list of whole numbers, such as [0, 1, 2]")
DRAWS = Kind(lambda value: value in (["seed"], ["seed", SPLIT]), f"be [seed] or [seed, {SPLIT}]")
METRIC = Kind(lambda value: isinstance(value, str), "be a column of metrics.csv, such as test/accuracy")
METRICS = Kind(
    lambda value: isinstance(value, dict) and all(map(_is_metric, value.values())),
    "be columns of metrics.csv by name, {test: test/accuracy}, or with their own mode (min or max), summary or last round, "
    "{test: {metric: test/accuracy, mode: max, summary: last, round: 10}}",
)
MODE = Kind(lambda value: value in MODES, f"be {' or '.join(MODES)}")
SUMMARY = Kind(lambda value: value in SUMMARIES, f"be {' or '.join(SUMMARIES)}")
COUNT = Kind(lambda value: is_whole(value) and value > 0, "be a whole number of evaluations, at least 1")
MARGIN = Kind(
    _are_margins,
    "be points above 0, such as 1.5, or {score: 1.5, rounds: 1.3, saved: 5} with points above 0 and, for rounds, a ratio above 1",
)
SHARE = Kind(lambda value: is_number(value) and 0 < value < 1, "lie between 0 and 1, such as 0.95")

KEYS = {
    "title": Key("the table's title"),
    "configs": Key("config files for all runs, as after -c of flcog fit"),
    "arguments": Key("options of flcog fit for all runs, {option: value}"),
    "rows": Key(
        "the arms by name, each with configs, arguments, columns: {COLUMN: {option: value}} for options in single columns, and "
        "tune: {option: [values to try with --tune]}; "
        "or the file of another table"
    ),
    "columns": Key(
        "the settings by name, each with configs and arguments, and target: 0.97 for the rounds at which the curve, made monotone and "
        "interpolated between evaluations, crosses a score of the first metric, on the scale of metrics.csv; or the file of another table"
    ),
    "seeds": Key("the seeds of every arm in every setting; [0] by default", [0], SEEDS),
    "tuning_seeds": Key("the seeds of --tune; by default the number after the largest seed", [], SEEDS),
    "halving": Key(
        "true to let --tune stop the worse half of a row's configurations after a quarter, and again after half, of the rounds in which "
        "all of the row's methods act (successive halving)",
        False,
        FLAG,
    ),
    "vary": Key(f"[seed, {SPLIT}] to draw the split of the data from each seed, too; [seed] by default", ["seed"], DRAWS),
    "metric": Key("the column of metrics.csv to compare; by default the task's main one", None, METRIC),
    "mode": Key("min if smaller values of this metric are better, or max; by default the words of its name decide", None, MODE),
    "metrics": Key(
        "several such columns by name, each of which is shown in every setting: {training: training/accuracy, test: test/accuracy}; "
        "{metric: ..., mode: ..., summary: ..., round: ...} gives a metric its own mode or summary, or ends its scores and targets after "
        "fewer rounds",
        {},
        METRICS,
    ),
    "summary": Key(
        "the score of a run to compare with other arms and the paper: best (the default), last, mean (of the last evaluations), or val "
        "(in the round with the best validation)",
        "best",
        SUMMARY,
    ),
    "last": Key("the number of evaluations in this mean; 5 by default", 5, COUNT),
    "over_rounds": Key("true to show the deviation of this mean over its evaluations, not over seeds", False, FLAG),
    "average": Key("the name of a further column with the mean over all settings, which need one metric", "", TEXT),
    "worst": Key("the name of a further column with each run's worst score over all settings, which need one metric", "", TEXT),
    "against": Key("the row to compare the others with, by default the first; or {row: the row to compare it with}"),
    "confidence": Key("the confidence of the shown intervals, on which no verdict depends; 0.95 by default", 0.95, SHARE),
    "published": Key(
        "the paper's figures, shares in percent, {row: {column: figure}}: 73.07 or [73.07, 0.08], or {score: ..., rounds: ..., "
        'seconds: ..., bytes: ..., saved: per cent of the bytes to a target that are saved}; "> 100" if a target was not reached, '
        '"14 to 20" for a range of gains'
    ),
    "margin": Key(
        "the largest difference from the paper that reproduces a figure, in points; or {score: points, rounds: ratio, saved: points}. "
        "It needs a reason, and is fixed before the runs",
        None,
        MARGIN,
    ),
    "reason": Key("the reason for the margin and the summary", "", TEXT),
    "trials": Key("the paper's number of trials, by whose square root its ± is divided; 1 if the paper does not say", 1, COUNT),
    "exploratory": Key("seeds that had been seen before the margin was fixed; verdicts on them are marked", [], SEEDS),
    "hypothesis": Key("the hypothesis that was stated before the runs, shown below the title", "", TEXT),
    "figure": Key(
        "the number that rows or columns vary, for a figure of the scores: {label: TEXT, rows: {ROW: number}}, or {label: TEXT, "
        "columns: {PANEL: {COLUMN: number}}} for a line of each row"
    ),
    "reproduces": Key('["PAPER, Table 1"], the tables and figures of papers that it reproduces', [], TEXTS),
    "deviations": Key("a sentence for each contradiction to the paper; [] for none", [], TEXTS),
    "unstated": Key("a sentence for each setting that the paper does not state: the authors' code, or our choice", [], TEXTS),
}
"""The keys of a table's YAML file."""
