"""Table 3 of FedWalk's paper, as printed: the four ImageNet classes nearest to each class of CIFAR-10, the nearest first.

Three rows name a class twice. A small reference of other classes follows.
"""

CIFAR10_TOP4 = {
    "airplane": ("n04552348", "n02690373", "n02687172", "n04552348"),
    "automobile": ("n02814533", "n03100240", "n03594945", "n04467665"),
    "bird": ("n01796340", "n01797886", "n01608432", "n01795545"),
    "cat": ("n02124075", "n02123597", "n02123045", "n02123394"),
    "deer": ("n02437616", "n02412080", "n02415577", "n02396427"),
    "dog": ("n02085782", "n02085620", "n02085620", "n02085936"),
    "frog": ("n01644900", "n01644373", "n01641577", "n01910747"),
    "horse": ("n02389026", "n02391049", "n02412080", "n02504458"),
    "ship": ("n03673027", "n02981792", "n03095699", "n03673027"),
    "truck": ("n03417042", "n04467665", "n03777568", "n03770679"),
}

CLASSES = ["cat", "polar bear"]
REFERENCE = {
    "n02123045": "tabby, tabby cat",
    "n02123159": "tiger cat",
    "n02127052": "lynx, catamount",
    "n02134084": "ice bear, polar bear, Ursus Maritimus",
    "n02132136": "brown bear, bruin",
    "n02992529": "cellular telephone, cell",
    "n09999999": "cell",
}
