"""The faithful contract: Lightning's own trainer and loops, in which an epoch is a round."""

import warnings

# Lightning 2.6 asks newer versions of torch for a class by its old name.
warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
