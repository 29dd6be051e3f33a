"""The command ``flcog leash``: choose a leash's classes from a public data set's labels, by the similarity of their names."""

import argparse
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from flcog.core.checks import within
from flcog.core.commands import parser_of

Ranking = dict[str, list[str]]
"""For each of the user's classes, the most similar labels of the reference, best first."""


def text_similarity(classes: Sequence[str], reference: dict[str, str]) -> np.ndarray:
    """The similarity in spelling of each class and the nearest name of each label, in [0, 1], [classes, labels].

    Cosines of TF-IDF vectors of letter sequences: "tabby cat" is near "cat", but "deer" and "gazelle" are not near each other.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    names = [[part.strip().lower() for part in text.replace("_", " ").split(",") if part.strip()] for text in reference.values()]
    flat = [name for group in names for name in group]
    vectorise = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 6)).fit([*flat, *(name.lower() for name in classes)])
    cosines = (vectorise.transform([name.lower() for name in classes]) @ vectorise.transform(flat).T).toarray()
    return np.maximum.reduceat(cosines, np.cumsum([0, *(len(group) for group in names[:-1])]), axis=1)


def wordnet_similarity(classes: Sequence[str], reference: dict[str, str]) -> np.ndarray:
    """Wu and Palmer's similarity in WordNet of the most frequent meanings, in [0, 1], [classes, labels]; 0 for unknown words."""
    from nltk.corpus import wordnet

    def meaning(label: str, names: str) -> object:
        if re.fullmatch(r"n\d{8}", label):
            return wordnet.synset_from_pos_and_offset("n", int(label[1:]))
        return next(
            (found[0] for name in names.split(",") if (found := wordnet.synsets(name.strip().replace(" ", "_"), "n"))), None
        )

    rows, columns = [meaning("", name) for name in classes], [meaning(*item) for item in reference.items()]
    return np.array([[(r.wup_similarity(c) or 0.0) if r and c else 0.0 for c in columns] for r in rows])  # type: ignore[attr-defined]


def rank(similarity: np.ndarray, classes: Sequence[str], reference: dict[str, str], count: int) -> dict[str, list[str]]:
    """The ``count`` most similar labels of each class; equally similar ones in the reference's order.

    >>> rank(np.array([[0.2, 0.9]]), ["cat"], {"n1": "dog", "n2": "tabby"}, count=1)
    {'cat': ['n2']}
    """
    labels = list(reference)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    return {name: [labels[i] for i in row] for name, row in zip(classes, order, strict=True)}


def choose(ranking: Ranking, per_class: int, random: int = 0, reference: Iterable[str] = (), seed: int = 0) -> list[str]:
    """The leash's classes: first the best label of every class, then the second best of every class, and so on, each label once.

    Labels drawn at random from the reference replace the last ``random`` of them: 0 for low heterogeneity (LH), half of them for the
    paper's MH, all for HH.

    >>> choose({"cat": ["tabby", "lynx"], "tiger": ["tabby", "lynx", "puma"]}, per_class=1)
    ['tabby', 'lynx']
    """
    chosen: list[str] = []
    for _ in range(per_class):
        for name, labels in ranking.items():
            new = next((label for label in labels if label not in chosen), None)
            if new is None:
                raise ValueError(f"other classes have taken all {len(labels)} labels of {name!r}: raise --count, or lower --keep")
            chosen.append(new)
    within(None, f"[0, {len(chosen)}]", random=random)
    kept = chosen[: len(chosen) - random]
    others = [label for label in reference if label not in kept]
    return kept + [others[i] for i in np.random.default_rng(seed).permutation(len(others))[:random]]


def read_classes(source: str) -> list[str]:
    """The user's class names: separated by commas, or the lines of a file.

    >>> read_classes("cat, polar bear")
    ['cat', 'polar bear']
    """
    # Not Path.is_file, which fails on a long list of names because it is too long for a path.
    names = Path(source).read_text(encoding="utf-8").splitlines() if os.path.isfile(source) else source.split(",")
    return [name.strip() for name in names if name.strip()]


def read_reference(source: str) -> dict[str, str]:
    """The public set's labels with their names.

    The source is ``imagenet``, which has only names; a folder with one folder per class, whose names are taken from ImageNet's order if
    there are 1000 folders, and otherwise from ``words.txt`` in it or beside it, as Tiny-ImageNet has; or a file with one label per line,
    which may begin with a WordNet id: ``n02123045 tabby, tabby cat``.
    """
    path = Path(source)
    if source == "imagenet":
        return {name: name for name in _imagenet_names()}
    if path.is_dir():
        folders = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        if len(folders) == 1000:
            # ImageNet's classes are numbered in the order of their folders.
            return dict(zip(folders, _imagenet_names(), strict=True))
        lists = [folder / "words.txt" for folder in (path, path.parent) if (folder / "words.txt").is_file()]
        names = _read_labels(lists[0]) if lists else {}
        return {folder: names.get(folder, folder) for folder in folders}
    return _read_labels(path)


def _read_labels(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    pairs = [re.fullmatch(r"(n\d{8})[\s,:]+(.+)", line) for line in lines]
    return {pair[1] if pair else line: pair[2] if pair else line for line, pair in zip(lines, pairs, strict=True)}


def leash(arguments: list[str]) -> None:
    """Choose the classes of a leash, the public data that FedWalk trains on, by the similarity of their names."""
    parser = parser_of("leash", leash)
    ranked = parser.add_subparsers(dest="command", required=True).add_parser("rank", help="rank the labels, and choose")
    add_options(ranked)
    ranked.add_argument("--by", choices=("text", "wordnet"), default="text", help="spelling, or WordNet if nltk has installed it")
    given = parser.parse_args(arguments)
    classes, reference = read_classes(given.classes), read_reference(given.reference)
    similarity = (text_similarity if given.by == "text" else wordnet_similarity)(classes, reference)
    unlike = [name for name, row in zip(classes, similarity, strict=True) if not row.any()]
    if unlike:
        raise ValueError(
            f"--by {given.by} finds no name similar to {', '.join(unlike)} in {given.reference}: give other words or names"
        )
    ranking, columns = rank(similarity, classes, reference, given.count), list(reference)
    notes = {
        (name, label): f" {similarity[classes.index(name), columns.index(label)]:.2f}"
        for name, labels in ranking.items()
        for label in labels
    }
    print_choice(given, ranking, reference, notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a choice."""
    parser.add_argument("--classes", required=True, help="your class names: a,b,c or a file with one per line")
    parser.add_argument("--reference", default="imagenet", help="imagenet, a folder of class folders, or a file of labels")
    parser.add_argument("--count", type=int, default=4, help="labels ranked for each class")
    parser.add_argument("--keep", type=int, default=2, help="labels used for each class")
    parser.add_argument("--random", type=int, default=0, help="number of these that random labels replace")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random labels")


def print_choice(
    given: argparse.Namespace, ranking: Ranking, reference: dict[str, str], notes: Mapping[tuple[str, str], str] | None = None
) -> None:
    """Print a ranking with notes after its labels, and the choice as YAML."""
    for name, labels in ranking.items():
        print(f"# {name}: " + "; ".join(_shown(label, reference) + (notes or {}).get((name, label), "") for label in labels))
    if given.reference == "imagenet":
        print("# These are names. For folders, as ImageFolders needs them, pass ImageNet's class folders: --reference FOLDER.")
    # A list of strings in JSON is also valid YAML.
    print("classes: " + json.dumps(choose(ranking, given.keep, given.random, reference, given.seed)))


def _shown(label: str, reference: dict[str, str]) -> str:
    return label if label == reference[label] else f"{label} {reference[label]}"


def _imagenet_names() -> list[str]:
    from torchvision.models import ResNet18_Weights

    return list(ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
