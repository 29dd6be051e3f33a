"""Rankings of a public data set's labels by similarity to a user's classes, without a language model."""

import re
from collections.abc import Sequence

import numpy as np


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
