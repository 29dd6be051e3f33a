"""Data sets of the papers and splits of the literature, as Lightning data modules: one file each."""

from flcog.datamodules.digits import Digits

__all__ = ["Digits"]
