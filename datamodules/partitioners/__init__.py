"""Partitioners: how a training set is split over clients, one class for each split of the literature.

Every class here is a frozen dataclass of hyper-parameters that maps ``(samples, num_clients, seed)`` to a ``Partition``. For splits
that need classes, :func:`class_labels` defines them for multi-label and regression targets. All randomness is NumPy's PCG64 seeded
by ``seed``, so a split does not depend on the machine, on torch or on any global stream. (A later NumPy may draw gamma variates
differently: save the partition, or cite its hash, if a split must outlive the software.) Only ``NIIDBench`` draws like an older
program.

"Dirichlet" names at least four different splits, and the choice alone changes the accuracies in papers:

==================================  ==========================================================================================
``Dirichlet(beta)``                 each class is cut over the clients by Dirichlet shares; clients that hold the average already
                                    get no more (NIID-Bench, MOON, FedCOG, FedDisco): the "Dir" of most papers
``NIIDBench(beta)``                 the same, sample for sample as the code of FedCOG and FedDisco draws it from its seed
``Dirichlet(beta, capped=False)``   the same without that cap: client sizes vary far more (Yurochkin et al., FL-bench)
``ClientDirichlet(beta)``           each client draws its own mix of classes; all clients have the same size (Hsu et al., pfl)
``InnerDirichlet(beta, sizes)``     the same with sizes given or log-normal, clients filled side by side (FedDyn, flwr, FedLab)
``EqualDirichlet(beta)``            the capped split, concatenated and cut again into equal clients (Fedssyn)
==================================  ==========================================================================================

``IID``, ``Quantity``, ``Natural`` and ``ClientDirichlet`` split a million samples over a million clients in seconds. The other
splits by label need a table of clients by classes, and are fast up to about 100,000 clients.
"""

from flcog.data import IID as IID
from flcog.data import Natural as Natural
from flcog.data import Partitioner as Partitioner
from flcog.datamodules.partitioners.client_mixes import ClientDirichlet as ClientDirichlet
from flcog.datamodules.partitioners.client_mixes import InnerDirichlet as InnerDirichlet
from flcog.datamodules.partitioners.dirichlet import Dirichlet as Dirichlet
from flcog.datamodules.partitioners.dirichlet import EqualDirichlet as EqualDirichlet
from flcog.datamodules.partitioners.dirichlet import NIIDBench as NIIDBench
from flcog.datamodules.partitioners.dirichlet import Quantity as Quantity
from flcog.datamodules.partitioners.draws import class_labels as class_labels
from flcog.datamodules.partitioners.label_shards import BiasedUnbiased as BiasedUnbiased
from flcog.datamodules.partitioners.label_shards import ByClass as ByClass
from flcog.datamodules.partitioners.label_shards import LabelShards as LabelShards
from flcog.datamodules.partitioners.label_shards import SortedShards as SortedShards
from flcog.datamodules.partitioners.saved import Saved as Saved
from flcog.datamodules.partitioners.wrapping import LongTail as LongTail
from flcog.datamodules.partitioners.wrapping import Shuffled as Shuffled
