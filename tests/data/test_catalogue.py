"""The paper's image sets are all there, in its order and groups, and open in the shape their makers gave them."""

import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import imagenet as torchvision_imagenet

from sirc.data import Noise, Source, benchmark, benchmarks, check, ood_sets, open_source, write_noise
from sirc.data.preprocess import Preprocess
from support.benchmark_folders import MAKERS, imagenet1k, imagenet_bench, inaturalist, openimage_o, paint, textures

COLUMNS = [
    *("Near-ImageNet-200", "Caltech-45", "Openimage-O", "iNaturalist"),
    *("Textures", "Colonoscopy", "Colorectal", "Noise", "ImageNet-O"),
]


def test_the_papers_columns_in_its_order():
    assert [one.title for one in ood_sets("imagenet200")] == COLUMNS
    assert [one.title for one in ood_sets("ImageNet-1k")] == COLUMNS[2:]
    assert [one.title for one in benchmarks()] == ["ImageNet-200", "ImageNet-1k", *COLUMNS]


def test_the_papers_groups():
    groups = {
        group: [one.title for one in ood_sets("imagenet200") if one.group == group] for group in ("Close", "Far", None)
    }
    assert groups == {"Close": COLUMNS[:4], "Far": COLUMNS[4:8], None: ["ImageNet-O"]}


def test_sizes_are_given_where_they_are_known():
    sizes = {one.key: [part.size for part in one.splits] for one in benchmarks()}
    assert sizes["imagenet1k"] == [1_281_167, 50_000]
    assert sizes["imagenet200"] == [None, None]
    assert "differs" in benchmark("imagenet200").note
    known = {key: size[0] for key, size in sizes.items() if len(size) == 1}
    assert known == {
        "near-imagenet200": 10_000,
        "caltech45": 4_792,
        "openimage-o": 17_632,
        "inaturalist": 10_000,
        "textures": 5_160,
        "colonoscopy": 12_312,
        "colorectal": 5_000,
        "noise": 10_000,
        "imagenet-o": 2_000,
    }


@pytest.mark.parametrize("one", benchmarks(), ids=lambda one: one.key)
def test_every_benchmark_says_where_it_comes_from_and_how_it_lies(one):
    assert "http" in one.source or "sirc data" in one.source
    assert one.layout.startswith(one.folder)
    assert len(one.layout.splitlines()) == len(one.splits) + bool(one.lists)
    assert bool(one.list_source) == bool(one.lists)
    assert benchmark(one.key.upper()) is benchmark(f" {one.title} ") is one
    assert (one.classes is not None) == (one.role == "ID")


def test_an_unknown_name_lists_the_known_and_the_closest():
    with pytest.raises(
        ValueError, match=r"`name` must be one of imagenet200, .* got 'texture'. Did you mean `textures`\?"
    ):
        benchmark("texture")
    with pytest.raises(ValueError, match=r"`id_name` must be an ID set, one of imagenet200, imagenet1k; got 'noise'"):
        ood_sets("noise")
    with pytest.raises(ValueError, match=r'`split` must be "test" for Textures; got \'train\''):
        benchmark("textures").split("train")


@pytest.mark.parametrize("key", [key for key in MAKERS if benchmark(key).role == "OOD"])
def test_every_ood_set_opens_from_its_folder_under_the_root(tmp_path, key):
    MAKERS[key](tmp_path)
    images = open_source(Source(key), root=tmp_path, split="test", preprocess=Preprocess(), labelled=False)
    assert images.name == benchmark(key).title
    assert len(images) == {"textures": 2, "colonoscopy": 4, "colorectal": 4}.get(key, 3)
    assert images.labels is None
    assert images[0].shape == (3, 224, 224)
    with pytest.raises(ValueError, match="`labelled` must be False for"):
        open_source(Source(key), root=tmp_path, preprocess=None)
    with pytest.raises(ValueError, match='`split` must be "test"'):
        open_source(Source(key, split="train"), root=tmp_path, preprocess=None, labelled=False)


@pytest.mark.parametrize("key", ["imagenet200", "imagenet1k"])
def test_the_id_sets_open_by_split(tmp_path, key):
    MAKERS[key](tmp_path)
    train = open_source(Source(key), root=tmp_path, split="train", preprocess=None)
    test = open_source(Source(key), root=tmp_path, split="test", preprocess=None).named("mine")
    assert (len(train), len(test)) == (6, 3)
    assert train.classes == test.classes == ("n00000000", "n00000001", "n00000002")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1, 1, 2, 2], [0, 1, 2])
    assert (train.name, test.name) == (benchmark(key).title, "mine")
    with pytest.raises(ValueError, match='`split` must be "train" or "test"'):
        open_source(Source(key), root=tmp_path, preprocess=None)
    assert len(open_source(Source(key, split="test"), root=tmp_path, split="train", preprocess=None)) == 3


def test_a_validation_folder_will_do_for_imagenet(tmp_path):
    imagenet1k(tmp_path, val="validation")
    assert len(open_source(Source("imagenet1k"), root=tmp_path, split="test", preprocess=None)) == 3


@pytest.mark.parametrize(("name", "within"), [("openimages_datalist.txt", ""), ("openimage_o.txt", "test/")])
def test_either_list_of_openimage_o_will_do(tmp_path, name, within):
    openimage_o(tmp_path, name, within)
    images = open_source(Source("openimage-o"), root=tmp_path, preprocess=None, labelled=False)
    assert [images.where(i)[-5] for i in range(3)] == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("name", "within"), [("textures_datalist.txt", ""), ("texture.txt", "dtd_images/"), ("texture.txt", "images/")]
)
def test_either_list_of_textures_will_do(tmp_path, name, within):
    textures(tmp_path, name, within)
    images = open_source(Source("textures"), root=tmp_path, preprocess=None, labelled=False)
    assert len(images) == 2
    assert all("banded" in images.where(i) for i in range(2))


def test_a_list_may_be_named(tmp_path):
    (textures(tmp_path) / "mine.txt").write_text("bubbly/bubbly_0000.jpg\n", encoding="utf-8")
    images = open_source(Source("textures", list="mine.txt"), root=tmp_path, preprocess=None, labelled=False)
    assert len(images) == 1


def test_a_missing_list_says_where_to_get_it(tmp_path):
    (textures(tmp_path) / "textures_datalist.txt").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"textures_datalist.txt or texture.txt, is not in .*Get it from https://github.com/haoqiwang/vim",
    ):
        open_source(Source("textures"), root=tmp_path, preprocess=None, labelled=False)


def test_a_missing_folder_says_where_to_get_it_and_how_to_look(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"iNaturalist must have its test images in 'images' below .*large_scale_ood.*sirc data check inaturalist",
    ):
        open_source(Source("inaturalist"), root=tmp_path, preprocess=None, labelled=False)


def test_colorectal_is_scaled_with_lanczos_and_not_cropped(tmp_path):
    MAKERS["colorectal"](tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (150, 150, 3), dtype=np.uint8)
    for file in (tmp_path / "Kather_texture_2016_image_tiles_5000").rglob("*.tif"):
        Image.fromarray(pixels).save(file)
    preprocess = Preprocess(mean=(0, 0, 0), std=(1, 1, 1))
    images = open_source(Source("colorectal"), root=tmp_path, preprocess=preprocess, labelled=False)
    expected = Image.fromarray(pixels).resize((224, 224), Image.Resampling.LANCZOS)
    assert torch.allclose(
        images[0], torch.from_numpy(np.asarray(expected) / np.float32(255)).permute(2, 0, 1), atol=1e-6
    )


def test_noise_needs_no_files_but_takes_them(tmp_path):
    made = open_source(Source("noise", count=3, seed=5), root=tmp_path, preprocess=None, labelled=False)
    assert isinstance(made, Noise)
    assert (len(made), made.seed) == (3, 5)
    assert len(open_source(Source("Noise"), root=tmp_path, preprocess=None, labelled=False)) == 10_000
    write_noise(tmp_path / "noise", 4, 5)
    read = open_source(Source("noise", path="noise"), root=tmp_path, preprocess=None, labelled=False)
    assert len(read) == 4
    assert read[2].tobytes() == made[2].tobytes()
    few = open_source(Source("noise", path="noise", count=2), root=tmp_path, preprocess=None, labelled=False)
    assert len(few) == 2


def test_a_benchmark_may_lie_elsewhere(tmp_path):
    inaturalist(tmp_path / "disk")
    source = Source("inaturalist", path=str(tmp_path / "disk" / "iNaturalist"), count=2, seed=1)
    images = open_source(source, root=tmp_path / "nowhere", preprocess=None, labelled=False)
    assert len(images) == 2


def add(tar, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def archives(root, monkeypatch):
    """ILSVRC's three archives with two classes, small, whose checksums torchvision is told."""
    root.mkdir()
    picture = paint(root / "x.JPEG").read_bytes()
    (root / "x.JPEG").unlink()
    wnids = ["n00000002", "n00000001"]  # ILSVRC numbers them otherwise than they sort
    kinds = [("i", "ILSVRC2012_ID"), ("w", "WNID"), ("d", "words"), ("g", "gloss"), ("c", "num_children")]
    synsets = np.array(
        [(i + 1, w, f"thing {i}", "", 0) for i, w in enumerate(wnids)], dtype=[(name, object) for _, name in kinds]
    )
    matrix, truth = io.BytesIO(), b"1\n2\n2\n"
    savemat(matrix, {"synsets": synsets})
    with tarfile.open(root / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        add(tar, "ILSVRC2012_devkit_t12/data/meta.mat", matrix.getvalue())
        add(tar, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", truth)
    with tarfile.open(root / "ILSVRC2012_img_val.tar", "w") as tar:
        for i in range(3):
            add(tar, f"ILSVRC2012_val_{i:08}.JPEG", picture)
    with tarfile.open(root / "ILSVRC2012_img_train.tar", "w") as tar:
        for wnid in wnids:
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as part:
                add(part, f"{wnid}_1.JPEG", picture)
            add(tar, f"{wnid}.tar", inner.getvalue())
    told = {key: (name, None) for key, (name, _) in torchvision_imagenet.ARCHIVE_META.items()}
    monkeypatch.setattr(torchvision_imagenet, "ARCHIVE_META", told)
    return root


@pytest.mark.filterwarnings("ignore:.*tar:DeprecationWarning")
def test_imagenets_archives_are_unpacked_by_torchvision(tmp_path, monkeypatch):
    archives(tmp_path / "imagenet", monkeypatch)
    test = open_source(Source("imagenet1k"), root=tmp_path, split="test", preprocess=None)
    assert test.classes == ("n00000001", "n00000002")
    assert test.labels.tolist() == [0, 0, 1]
    train = open_source(Source("imagenet1k"), root=tmp_path, split="train", preprocess=None)
    assert train.labels.tolist() == [0, 1]
    theirs = torchvision_imagenet.ImageNet(tmp_path / "imagenet", split="val")
    assert [str(test.path(i)) for i in range(3)] == [path for path, _ in theirs.samples]


def test_an_unpacking_that_was_killed_is_not_taken_for_the_whole(tmp_path, monkeypatch):
    root = archives(tmp_path / "imagenet", monkeypatch)

    def killed(path, split):
        paint(root / "val" / "n00000001" / "0.JPEG")
        raise KeyboardInterrupt

    monkeypatch.setattr(torchvision.datasets, "ImageNet", killed)
    with pytest.raises(KeyboardInterrupt):
        open_source(Source("imagenet1k"), root=tmp_path, split="test", preprocess=None)
    with pytest.raises(FileNotFoundError, match=r"that did so was killed.*delete the folder and '.*\.unpacking-test'"):
        open_source(Source("imagenet1k"), root=tmp_path, split="test", preprocess=None)
    assert "the process that did so was killed" in str(check("imagenet1k", root))


def test_archives_are_left_alone_if_so_asked(tmp_path, monkeypatch):
    root = archives(tmp_path / "imagenet", monkeypatch)
    before = sorted(root.iterdir())
    with pytest.raises(FileNotFoundError, match="ImageNet-1k must have its test images in"):
        open_source(Source("imagenet1k"), root=tmp_path, split="test", preprocess=None, unpack=False)
    assert sorted(root.iterdir()) == before


def test_a_damaged_archive_is_said_to_be(tmp_path, monkeypatch):
    archives(tmp_path / "imagenet", monkeypatch)
    monkeypatch.undo()  # the real checksums, which these are not
    with pytest.raises(FileNotFoundError, match=r"ImageNet-1k cannot be unpacked in .*ILSVRC2012_devkit_t12.tar.gz"):
        open_source(Source("imagenet1k"), root=tmp_path, split="test", preprocess=None)
    assert len(list((tmp_path / "imagenet").iterdir())) == 3  # the archives, and nothing half made


def test_the_three_sets_of_one_archive_share_its_folder(tmp_path):
    imagenet_bench(tmp_path)
    assert {benchmark(key).folder for key in ("imagenet200", "near-imagenet200", "caltech45")} == {"imagenet-bench"}


def test_only_what_the_command_can_fetch_is_advised_to_be_fetched_by_it():
    assert "`sirc data get textures ROOT`" in benchmark("textures").how_to_get
    unknown = replace(benchmark("textures"), key="pets", source="https://example.org")
    assert unknown.how_to_get == "Get it from https://example.org"
