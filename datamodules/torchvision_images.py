"""TorchvisionImages: the base class of data sets of images that torchvision downloads and stores."""

from abc import abstractmethod
from typing import Any

from flcog.datamodules.augmentations import AugmentedImages


class TorchvisionImages(AugmentedImages):
    """Images in the files that torchvision's class of the same name downloads into ``data_dir``, where ``download`` is set."""

    _name: str
    data_dir: str
    download: bool

    @property
    def _source(self) -> Any:
        """torchvision's class of this set, which knows the addresses of its files."""
        from torchvision import datasets  # which takes half a second

        return getattr(datasets, self._name)

    @property
    @abstractmethod
    def _by_hand(self) -> str:
        """How to get the files without this download."""

    def prepare_data(self) -> None:
        if self.download:
            try:
                self._source(self.data_dir, download=True)
            except Exception as error:  # of the network, nearly every kind
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise ValueError(
                    f"{self._name} could not be downloaded to {self.data_dir} ({reason}): {self._by_hand}"
                ) from error
