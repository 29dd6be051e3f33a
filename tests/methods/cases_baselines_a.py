"""Cases of the registry: MOON, FedDecorr, FedExP, FedDC, FedPVR and FedReg."""

from functools import partial

from contracts.cases import MOMENTUM, RAGGED, Case
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, classifier
from reference import feddc, feddecorr, fedexp, fedpvr, fedreg, moon
from torch import Tensor, nn

from flcog.callbacks.feddc import FedDC
from flcog.callbacks.feddecorr import FedDecorr
from flcog.callbacks.fedexp import FedExP
from flcog.callbacks.fedpvr import FedPVR
from flcog.callbacks.fedreg import FedReg
from flcog.callbacks.moon import MOON
from flcog.models import FeatureModel

ODD_BATCHES = partial(TinyData, batch_size=5)
"""With ``local_epochs``, clients whose passes end in batches of 1, 2 and 4 rows: padded under vmap, and one without variance."""


class BatchNormFeatures(FeatureModel):
    """Features that differ between training and evaluation mode, and between two models of equal parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh())
        self.num_features = 8
        self.head = nn.Linear(8, NUM_CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


CASES: dict[str, Case] = {
    "MOON": Case(
        MOON(mu=2.0, temperature=0.7, projection=None),
        partial(moon.run, mu=2.0, temperature=0.7),
        neutral=MOON(mu=0.0, projection=None),
        data=ODD_BATCHES,
        options=RAGGED,
    ),
    "MOON-batchnorm": Case(
        MOON(mu=2.0, projection=None),
        partial(moon.run, mu=2.0, temperature=0.5),
        neutral=MOON(mu=0.0, projection=None),
        module=partial(classifier, network=BatchNormFeatures),
    ),
    "FedDecorr": Case(
        FedDecorr(beta=0.3),
        partial(feddecorr.run, beta=0.3),
        neutral=FedDecorr(beta=0.0),
        data=ODD_BATCHES,
        options=RAGGED,
    ),
    "FedExP": Case(FedExP(epsilon=1e-4, decay=0.5), partial(fedexp.run, epsilon=1e-4, decay=0.5), neutral=FedExP(epsilon=1e9)),
    "FedExP-paper": Case(
        FedExP(epsilon=5e-4, form="paper"),
        partial(fedexp.run, epsilon=5e-4, form="paper"),
        neutral=FedExP(epsilon=1e9, form="paper"),
    ),
    "FedDC": Case(FedDC(alpha=0.3), partial(feddc.run, alpha=0.3)),
    "FedDC-momentum": Case(FedDC(alpha=0.1), partial(feddc.run, alpha=0.1, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
    "FedPVR": Case(FedPVR(), partial(fedpvr.run, corrected=["head.weight", "head.bias"])),
    "FedPVR-hidden": Case(
        FedPVR(layers=r"hidden\.0\.weight|head"),
        partial(fedpvr.run, corrected=["hidden.0.weight", "head.weight", "head.bias"], momentum=0.9),
        optimizer=MOMENTUM,
        options=RAGGED,
    ),
    "FedReg": Case(
        FedReg(gamma=0.6, eta_s=0.2, eta_p=0.02, steps=2),
        partial(fedreg.run, gamma=0.6, eta_s=0.2, eta_p=0.02, steps=2),
        data=ODD_BATCHES,
        options={"local_epochs": 1},
    ),
}
