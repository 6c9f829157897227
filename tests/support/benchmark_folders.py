"""Small data in the real shape of each benchmark, for tests."""

from PIL import Image


def paint(path, value=0, size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value % 256, 10, 20)).save(path)
    return path


def imagenet_bench(root, classes=3, train=2, test=1):
    """The unknown-detection benchmark's archive: train, valid and test, the latter two with `labels`."""
    top = root / "imagenet-bench"
    for k in range(classes):
        wnid = f"n{k:08}"
        for i in range(train):
            paint(top / "train" / "imagenet200" / wnid / f"{wnid}_{i}.JPEG", 10 * k + i)
        for i in range(test):
            paint(top / "test" / "imagenet200" / "labels" / wnid / f"{i}.JPEG", 10 * k + i)
        paint(top / "test" / "imagenet200" / "no-labels" / "0" / f"{k}.JPEG")
        paint(top / "test" / "near-imagenet200" / "labels" / f"n9{k:07}" / "0.JPEG", k)
        paint(top / "test" / "caltech256" / "labels" / f"{k:03}.cow" / "0.jpg", k)
    return top


def openimage_o(root, name="openimages_datalist.txt", within=""):
    """The Open Images test set, and the list of those that count."""
    top = root / "openimage-o"
    for i in range(5):
        paint(top / "test" / f"{i:016x}.jpg", i)
    (top / name).write_text("".join(f"{within}{i:016x}.jpg\n" for i in (0, 2, 4)), encoding="utf-8")
    return top


def inaturalist(root):
    for i in range(3):
        paint(root / "iNaturalist" / "images" / f"{i:040x}.jpg", i)
    return root / "iNaturalist"


def textures(root, name="textures_datalist.txt", within=""):
    """DTD as it unpacks: images, imdb, labels; and the list."""
    top = root / "dtd"
    for kind in ("banded", "bubbly"):
        for i in range(2):
            paint(top / "images" / kind / f"{kind}_{i:04}.jpg", i)
    (top / "imdb").mkdir()
    (top / "imdb" / "imdb.mat").write_bytes(b"x")
    (top / name).write_text("".join(f"{within}banded/banded_{i:04}.jpg\n" for i in range(2)), encoding="utf-8")
    return top


def colonoscopy(root):
    for i in range(4):
        paint(root / "colonoscopy" / "images" / f"adenoma_01_NBI_{i:05}.jpg", i)
    return root / "colonoscopy"


def colorectal(root):
    top = root / "Kather_texture_2016_image_tiles_5000"
    for kind in ("01_TUMOR", "08_EMPTY"):
        for i in range(2):
            paint(top / kind / f"{i:04X}_CRC-Prim-HE-01.tif_Row_1_Col_{i}.tif", i, (150, 150))
    return top


def imagenet_o(root):
    for i in range(3):
        paint(root / "imagenet-o" / f"n0{i:07}" / f"n0{i:07}_1.JPEG", i)
    (root / "imagenet-o" / "README.txt").write_text("about", encoding="utf-8")
    return root / "imagenet-o"


def imagenet1k(root, val="val"):
    top = root / "imagenet"
    for k in range(3):
        for i in range(2):
            paint(top / "train" / f"n{k:08}" / f"n{k:08}_{i}.JPEG", k)
        paint(top / val / f"n{k:08}" / f"ILSVRC2012_val_{k:08}.JPEG", k)
    return top


MAKERS = {
    "imagenet200": imagenet_bench,
    "near-imagenet200": imagenet_bench,
    "caltech45": imagenet_bench,
    "openimage-o": openimage_o,
    "inaturalist": inaturalist,
    "textures": textures,
    "colonoscopy": colonoscopy,
    "colorectal": colorectal,
    "imagenet-o": imagenet_o,
    "imagenet1k": imagenet1k,
}
