"""Cases of the registry: FineTune, Ditto, FedRep, VHL, FedGen, DENSE and FedDM."""

from functools import partial

from contracts.cases import MOMENTUM, RAGGED, Case
from reference import fedavg, fedrep

from flcog.callbacks.dense import DENSE
from flcog.callbacks.ditto import Ditto
from flcog.callbacks.feddm import FedDM
from flcog.callbacks.fedgen import FedGen
from flcog.callbacks.fedrep import FedRep
from flcog.callbacks.fine_tune import FineTune
from flcog.callbacks.vhl import VHL
from methods.cases_baselines_a import ODD_BATCHES

FEDGEN = FedGen(alpha=0.7, beta=1.3, decay=0.9, guided_steps=2, batch_size=6, noise_dim=3, hidden=5, server_steps=4, lr=0.02)
DENSE_ = DENSE(epochs=2, generator_steps=3, batch_size=8, generator_lr=0.05, lr=0.1, latent=4, width=6)
FEDDM = FedDM(images_per_class=2, image_lr=0.5, rho=0.5, server_epochs=5, server_batch_size=7, server_lr=0.1)

CASES: dict[str, Case] = {
    "FedRep": Case(FedRep(body_share=0.5), partial(fedrep.run, body_share=0.5)),
    "FedRep-momentum": Case(
        FedRep(body_share=0.3), partial(fedrep.run, body_share=0.3), optimizer=MOMENTUM, data=ODD_BATCHES, options=RAGGED
    ),
    "FedGen": Case(
        FEDGEN,
        None,
        neutral=FedGen(alpha=0.0, beta=0.0, noise_dim=3, hidden=5, server_steps=1),
        data=ODD_BATCHES,
        options=RAGGED,
        random=True,
    ),
    "DENSE": Case(DENSE_, None, options=RAGGED),
    "FedDM": Case(FEDDM, None, data=ODD_BATCHES, options=RAGGED, random=True),
}

NO_REFERENCE = {
    "FedGen": "its losses, its server's training and its clients' terms have theirs in test_baselines_b.py",
    "DENSE": "its losses and its student's training have theirs in test_baselines_b.py",
    "FedDM": "with rho = 0 it has one in test_baselines_b.py",
}

LIKE_FEDAVG: dict[str, Case] = {
    "Ditto": Case(Ditto(lambda_prox=0.7), fedavg.run, data=ODD_BATCHES, options=RAGGED),
    "FineTune": Case(FineTune(steps=2), fedavg.run),
}
"""Their global model is FedAvg's; their clients' own are compared with the papers in test_baselines_b.py."""

LARGER: dict[str, Case] = {
    "VHL": Case(VHL(batch_size=7, samples_per_class=4, temperature=0.5), None, data=ODD_BATCHES, options=RAGGED, random=True),
}
"""Their model has more parameters than FedAvg's; test_baselines_b.py compares it with the paper."""
