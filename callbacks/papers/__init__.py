"""The methods of each of the four papers that flcog reproduces: the proposed method, its parts, and its competitors.

>>> [paper for paper, methods in PAPERS.items() if "FedNova" in methods]
['FedWalk']
"""

PAPERS = {
    # Tables 1 to 3 (its ten baselines), 9 (fine-tuning and personal models), figure 2 (local models).
    "FedCOG": (
        *("FedCOG", "FedAvgMInFedCOG", "FedProx", "SCAFFOLD", "MOON", "FedSAM", "VHL", "FedExP", "FedDecorr", "FedReg", "FedGen"),
        *("FineTune", "FedRep", "Ditto", "LocalModels"),
    ),
    # Figure 3 (its five algorithms, and lines), table 2 (FedGen and DENSE), A.2 (FedDM), figure 2 (noisy gradients).
    "Fedssyn": (
        *("Fedssyn", "FedProx", "SCAFFOLD", "FedDyn", "FedPVR", "FedGen", "DENSE", "FedDM", "GradientNoise", "Centralized"),
    ),
    # Table 2, section 5.3 (pre-training); its algorithm 1 uses the clients' unweighted mean.
    "FedWalk": ("FedWalk", "FedProx", "SCAFFOLD", "FedNova", "LeashPretraining", "EqualWeights"),
    # Tables 1 and 2 (its eight baselines), 13 (equal weights), B.7 (stragglers).
    "FedDisco": (
        *("FedDisco", "FedAvgMInFedDisco", "FedProx", "SCAFFOLDInFedDisco", "FedDynInFedDisco", "FedNovaInFedDisco", "MOON"),
        *("FedDCInFedDisco", "EqualWeights", "Stragglers"),
    ),
}

BOUNDS = {"Centralized": "all data pooled, as many steps", "Local": "every client for itself"}
"""Methods that papers draw as lines for comparison, each with a description; each has a config of its name."""
