"""The choice of a leash's classes: rankings of a public data set's labels by similarity to a user's classes."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

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
    try:
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
    except (ImportError, LookupError) as error:
        raise ValueError(
            "WordNet is not installed: `pip install nltk` and `python -m nltk.downloader wordnet`, or rank --by text"
        ) from error

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
                raise ValueError(
                    f"all {len(labels)} labels of {name!r} are taken by other classes too: raise --count, or lower --keep"
                )
            chosen.append(new)
    if not 0 <= random <= len(chosen):
        raise ValueError(f"random must lie between 0 and the {len(chosen)} labels chosen; got {random}")
    kept = chosen[: len(chosen) - random]
    others = [label for label in reference if label not in kept]
    if len(others) < random:
        raise ValueError(
            f"the reference has {len(others)} labels besides the {len(kept)} kept, too few for random={random}: lower it"
        )
    return kept + [others[i] for i in np.random.default_rng(seed).permutation(len(others))[:random]]
