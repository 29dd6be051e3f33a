"""Networks for rows of values and for sequences of tokens."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.core.checks import all_at_least, at_least
from flcog.models.base import Dropout, FeatureModel, fully_connected


class TextCNN(FeatureModel):
    """Kim's convolutional network for sentences (https://arxiv.org/abs/1408.5882), on token ids with 0 for padding.

    Widths and dropout are Kim's. The embedding is trained from scratch and has FedDisco's 32 dimensions rather than word2vec's
    300: with a vocabulary of 100,000 words the embedding is almost the whole model, and almost the whole traffic of a round.

    Args:
        vocab_size: the number of token ids, padding included.
        embedding_dim: dimensions of a token's embedding.
        num_classes: the number of outputs.
        kernel_sizes: tokens that a filter spans, for each group of filters.
        num_filters: filters in a group.
        dropout: probability to drop a feature before the head.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int = 32,
        num_classes: int = 4,
        kernel_sizes: Sequence[int] = (3, 4, 5),
        num_filters: int = 100,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        at_least(self, 1, vocab_size=vocab_size, embedding_dim=embedding_dim, num_classes=num_classes, num_filters=num_filters)
        all_at_least(self, 1, kernel_sizes=kernel_sizes)
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding_dim, num_filters, size) for size in kernel_sizes)
        self.shortest = max(kernel_sizes)
        self.dropout = Dropout(dropout)
        self.num_features = num_filters * len(kernel_sizes)
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.shortest:
            x = F.pad(x, (0, self.shortest - x.shape[1]))
        embedded = self.embedding(x).transpose(1, 2)
        # ReLU and the maximum over time commute, and after it there is one value in place of L.
        strongest = torch.cat([convolution(embedded).amax(-1) for convolution in self.convolutions], 1)
        return self.dropout(strongest.relu())


class FastText(FeatureModel):
    """fastText (https://arxiv.org/abs/1607.01759) in PFLlib's form: the mean of the tokens' embeddings, a linear layer and the head.

    Padding, the token 0, counts in the mean as zeros.

    Args:
        vocab_size: the number of token ids, padding included.
        embedding_dim: dimensions of a token's embedding, and of the linear layer.
        num_classes: the number of outputs.
    """

    def __init__(self, vocab_size: int, embedding_dim: int = 32, num_classes: int = 4) -> None:
        super().__init__()
        at_least(self, 1, vocab_size=vocab_size, embedding_dim=embedding_dim, num_classes=num_classes)
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.hidden = nn.Linear(embedding_dim, embedding_dim)
        self.num_features = embedding_dim
        self.head = nn.Linear(embedding_dim, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return self.hidden(self.embedding(x).mean(1))


class MLP(FeatureModel):
    """Fully connected layers with ReLU, for tables. The outputs keep their axis: [B, num_classes].

    Args:
        in_features: values per sample; 53 in Facebook's comment volumes.
        hidden: widths of the hidden layers; with none the model is linear.
        num_classes: the number of outputs: classes, labels, or the values of a regression (1 by default).
    """

    def __init__(
        self,
        in_features: int = 53,
        hidden: Sequence[int] = (64, 64),
        num_classes: int = 1,
    ) -> None:
        super().__init__()
        at_least(self, 1, in_features=in_features, num_classes=num_classes)
        all_at_least(self, 1, hidden=hidden or None)
        self.in_features = in_features
        self.hidden = fully_connected([in_features, *hidden])
        self.num_features = hidden[-1] if hidden else in_features
        self.head = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self._check_input(x, self.in_features, fix="set in_features to the number of values per sample")
        return self.hidden(x)


class SoftmaxRegression(MLP):
    """A linear classifier on the flattened input, which is also its features: the convex model of the theory papers.

    Args:
        in_features: values per sample, channels x height x width for images.
        num_classes: the number of outputs.
    """

    def __init__(self, in_features: int = 784, num_classes: int = 10) -> None:
        super().__init__(in_features, (), num_classes)
