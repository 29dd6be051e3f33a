"""Lists of ImageNet classes (WordNet ids) for FedWalk's leash tasks: ``ImageFolders(classes="cifar10_lh")`` reads their folders.

Those of ImageNet-1k are the paper's: Zhai et al., 2024, https://arxiv.org/abs/2404.11888, appendix B.

>>> LEASHES["cifar10_lh"][:2]
('n01644900', 'n04552348')
"""

from typing import Literal

LeashName = Literal["cifar10_lh", "cifar10_mh", "cifar10_hh", "cifar100_lh", "cifar10_tiny_imagenet"]

# fmt: off
LEASHES: dict[LeashName, tuple[str, ...]] = {
    # Low heterogeneity: the first two of each row of Table 3, which lists the ImageNet classes nearest to CIFAR-10's.
    "cifar10_lh": (
        "n01644900", "n04552348", "n03673027", "n02814533", "n03417042", "n02124075", "n02389026", "n01796340",
        "n02085782", "n02437616", "n01644373", "n02690373", "n02981792", "n03100240", "n04467665", "n02123597",
        "n02391049", "n01797886", "n02085620", "n02412080",
    ),
    # Medium heterogeneity: the first of each row, and ten classes at random.
    "cifar10_mh": (
        "n01644900", "n04552348", "n03673027", "n02814533", "n03417042", "n02124075", "n02389026", "n01796340",
        "n02085782", "n02437616", "n01440764", "n01692333", "n02279972", "n02480495", "n01753488", "n04356056",
        "n03637318", "n02132136", "n01697457", "n04501370",
    ),
    # High heterogeneity: twenty classes at random. The paper prints the last as "n0685654", which ImageNet does not have.
    "cifar10_hh": (
        "n01518878", "n01692333", "n01776313", "n02033041", "n02086079", "n02124075", "n02236044", "n02279972",
        "n02480495", "n02497673", "n03188531", "n03443371", "n03637318", "n03786901", "n04111531", "n04285008",
        "n04318186", "n04356056", "n04501370", "n06785654",
    ),
    # Low heterogeneity for CIFAR-100.
    "cifar100_lh": (
        "n01484850", "n01729322", "n01667778", "n11939491", "n03063599", "n02708093", "n03388549", "n02276258",
        "n02132136", "n02504013", "n04311004", "n02437312", "n02119022", "n01978287", "n02804414", "n02342885",
        "n03478589", "n02066245", "n07742313", "n09193705", "n03792782", "n02077923", "n07730033", "n03775546",
        "n07734744", "n03187595", "n04344873", "n02165456", "n02129604", "n02980441", "n02894605", "n02403003",
        "n02509815", "n01944390", "n03763968", "n03272562", "n04465501", "n12057211", "n11879895", "n03785016",
    ),
    # Tiny-ImageNet's classes nearest to CIFAR-10's, which anybody can get. It has no aeroplane and no horse. Not the paper's.
    "cifar10_tiny_imagenet": (
        "n02917067", "n04366367", "n02814533", "n03100240", "n01855672", "n02058221", "n02124075", "n02123045",
        "n02423022", "n02415577", "n02085620", "n02106662", "n01644900", "n01641577", "n02403003", "n02437312",
        "n03662601", "n03447447", "n03796401", "n04146614",
    ),
}
# fmt: on
