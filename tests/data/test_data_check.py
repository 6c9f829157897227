"""A look at the data says what is there, what is missing and what to do, for good data and for every common mistake."""

import dataclasses
import shutil
import sys
import zipfile

import pytest

from sirc.data import DataReport, benchmark, benchmarks, check, write_noise
from sirc.data.catalogue.benchmarks import Split
from support.benchmark_folders import (
    MAKERS,
    colorectal,
    imagenet1k,
    imagenet_bench,
    inaturalist,
    openimage_o,
    paint,
    textures,
)


@pytest.fixture
def small(monkeypatch):
    """The registry with the sizes of the test's small folders, so that good data can be good."""
    sizes = {"textures": 2, "colonoscopy": 4, "colorectal": 4, "noise": 4}
    shrunk = []
    for one in benchmarks():
        parts = [Split(part.name, part.folders, part.size and sizes.get(one.key, 3)) for part in one.splits]
        if one.key == "imagenet1k":
            parts[0] = Split("train", ("train",), 6)
        shrunk.append(dataclasses.replace(one, splits=tuple(parts), classes=one.classes and 3))
    monkeypatch.setattr("sirc.data.catalogue.benchmarks.benchmarks", lambda: tuple(shrunk))
    assert benchmark("imagenet200").classes == 3


def problems(report):
    assert isinstance(report, DataReport)
    return [f"{finding.text} | {finding.advice}" for finding in report.problems]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("key", MAKERS)
def test_good_data_is_ready(tmp_path, key):
    report = check(key, MAKERS[key](tmp_path), decode=True)
    assert problems(report) == []
    assert report.ok
    assert str(report).splitlines()[0].endswith(": ready")
    if key.startswith("imagenet") and key != "imagenet-o":
        assert report.counts == {"train": 6, "test": 3}
        assert report.classes == {"train": 3, "test": 3}
    else:
        assert list(report.counts) == ["test"]
    assert "every image can be read" in str(report)


@pytest.mark.usefixtures("small")
def test_noise_is_ready_with_files_and_without(tmp_path):
    assert check("noise", None).ok
    write_noise(tmp_path / "n", 4)
    assert check("Noise", tmp_path / "n").ok
    with pytest.raises(ValueError, match="`path` must be given for textures"):
        check("textures", None)


@pytest.mark.parametrize("key", MAKERS)
def test_the_wrong_number_of_images_is_counted(tmp_path, key):
    report = check(key, MAKERS[key](tmp_path))
    assert not report.ok
    if key == "imagenet200":
        assert problems(report) == [
            f"{part}: 3 class folders of 200 | Unpack the data again." for part in ("train", "test")
        ]
    else:
        assert any(f", of {benchmarks_size(key):,}" in text for text in problems(report))


def benchmarks_size(key):
    return next(one.splits[-1].size for one in benchmarks() if one.key == key)


def test_a_path_that_is_not_there_says_where_to_get_it(tmp_path):
    report = check("inaturalist", tmp_path / "x" / "y")
    assert problems(report)[0].startswith(
        f"'{tmp_path}/x/y' does not exist | Get it with `sirc data get inaturalist ROOT`, or from https://github.com/deeplearning-wisc"
    )
    assert "iNaturalist/images/" in str(report)
    assert not check("folder", tmp_path / "z").ok


def test_a_path_almost_right_is_guessed(tmp_path):
    inaturalist(tmp_path)
    [text] = problems(check("inaturalist", tmp_path / "inaturalist"))
    assert text.endswith(f"Did you mean '{tmp_path}/iNaturalist'?")


def test_an_archive_is_to_be_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "iNaturalist.zip", "w") as file:
        file.writestr("a", "b")
    [text] = problems(check("inaturalist", tmp_path / "iNaturalist"))
    assert text.endswith(f"Unpack '{tmp_path}/iNaturalist.zip', and pass the folder.")
    [text] = problems(check("inaturalist", tmp_path / "iNaturalist.zip"))
    assert text == f"'{tmp_path}/iNaturalist.zip' is a file | Unpack '{tmp_path}/iNaturalist.zip', and pass the folder."
    [text] = problems(check("inaturalist", tmp_path))
    assert text == "test: there is no folder 'images' | Unpack iNaturalist.zip."


@pytest.mark.parametrize("key", MAKERS)
def test_the_parent_is_a_level_too_high(tmp_path, key):
    top = MAKERS[key](tmp_path / "data")
    for other in ("inaturalist", "textures"):
        if other != key:
            MAKERS[other](tmp_path / "data")
    if key in ("colorectal", "imagenet-o"):
        return  # they are read at any depth, and counted
    [text] = problems(check(key, tmp_path / "data"))
    assert "is not in this folder, but below it" in text
    assert text.endswith(f"Pass '{top}'.")


def test_another_sets_images_are_not_taken_for_it(tmp_path):
    inaturalist(tmp_path)
    [text] = problems(check("textures", tmp_path))
    assert text.startswith(
        "test: there is no folder 'images' or 'dtd_images' | Get it with `sirc data get textures ROOT`, or from"
    )


@pytest.mark.parametrize(
    ("key", "below"),
    [
        ("imagenet200", "train"),
        ("imagenet200", "train/imagenet200"),
        ("near-imagenet200", "test/near-imagenet200/labels"),
        ("inaturalist", "images"),
        ("textures", "images"),
        ("imagenet1k", "train"),
        ("colonoscopy", "images"),
    ],
)
def test_a_folder_inside_is_a_level_too_low(tmp_path, key, below):
    top = MAKERS[key](tmp_path)
    [text] = problems(check(key, top / below))
    assert text.endswith(f"but above it | Pass '{top}'.")


def test_one_class_of_colorectal_is_a_level_too_low(tmp_path):
    top = colorectal(tmp_path)
    [text] = problems(check("colorectal", top / "01_TUMOR"))
    assert text.endswith(f"2 images in '{top}/01_TUMOR', of 5,000 | Pass '{top}'.")


@pytest.mark.usefixtures("small")
def test_a_missing_split_is_named_and_the_other_still_counted(tmp_path):
    top = imagenet_bench(tmp_path)
    shutil.rmtree(top / "train")
    report = check("imagenet200", top)
    [text] = problems(report)
    assert text.startswith(
        "train: there is no folder 'train/imagenet200' | Get it with `sirc data get imagenet200 ROOT`, or from https://"
    )
    assert report.counts == {"test": 3}
    assert check("imagenet200", top, split="test").ok
    with pytest.raises(ValueError, match="`split` must be"):
        check("imagenet200", top, split="val")


@pytest.mark.usefixtures("small")
def test_empty_class_folders_are_named(tmp_path):
    top = imagenet1k(tmp_path)
    shutil.rmtree(top / "val" / "n00000001")
    (top / "val" / "n00000001").mkdir()
    found = problems(check("imagenet1k", top))
    assert found[0].startswith("test: 1 (n00000001) of 3 class folders are empty | Unpack the data again")
    assert "2 images" in found[1]


@pytest.mark.usefixtures("small")
def test_classes_in_one_split_only_are_named(tmp_path):
    top = imagenet1k(tmp_path)
    (top / "val" / "n00000001").rename(top / "val" / "n77777777")
    [text] = problems(check("imagenet1k", top))
    assert "the same classes; 2 (n00000001, n77777777) are in one only" in text


@pytest.mark.usefixtures("small")
def test_validation_images_that_nobody_sorted_are_seen(tmp_path):
    top = imagenet1k(tmp_path)
    for file in list((top / "val").rglob("*.JPEG")):
        file.rename(top / "val" / file.name)
        file.parent.rmdir()
    found = problems(check("imagenet1k", top))
    assert found[0].startswith("test: 3 (ILSVRC2012_val_00000000.JPEG, ")
    assert "lie outside the class folders" in found[0]


def test_imagenets_archives_will_do_with_the_devkit(tmp_path):
    for name in ("ILSVRC2012_img_val.tar", "ILSVRC2012_img_train.tar"):
        (tmp_path / name).write_bytes(b"")
    assert "put 'ILSVRC2012_devkit_t12.tar.gz' beside it" in problems(check("imagenet1k", tmp_path))[0]
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"")
    report = check("imagenet1k", tmp_path)
    assert report.ok
    assert "is unpacked when first opened" in str(report)


def test_a_missing_list_says_where_to_get_it(tmp_path):
    top = textures(tmp_path)
    (top / "textures_datalist.txt").unlink()
    [text] = problems(check("textures", top))
    assert "textures_datalist.txt or texture.txt, is not in" in text
    assert "Get it from https://github.com/haoqiwang/vim" in text


@pytest.mark.usefixtures("small")
def test_missing_listed_files_are_counted_and_named(tmp_path):
    top = openimage_o(tmp_path)
    (top / "test" / f"{2:016x}.jpg").unlink()
    found = problems(check("openimage-o", top))
    assert found[0].startswith("test: 1 (0000000000000002.jpg) of 3 listed files are missing in")
    assert "2 images" in found[1]
    (top / "openimages_datalist.txt").write_text("\n", encoding="utf-8")
    assert "it is empty" in problems(check("openimage-o", top))[0]


def test_lines_that_repeat_are_counted(tmp_path):
    top = openimage_o(tmp_path)
    listed = top / "openimages_datalist.txt"
    listed.write_text(listed.read_text(encoding="utf-8") * 2, encoding="utf-8")
    assert any("3 lines name an image again" in text for text in problems(check("openimage-o", top)))


@pytest.mark.usefixtures("small")
def test_images_in_the_wrong_place_and_archives_among_them(tmp_path):
    for i in range(3):
        paint(tmp_path / "x" / f"{i}.jpg")
    assert "Images lie directly in" in problems(check("inaturalist", tmp_path / "x"))[0]
    top = inaturalist(tmp_path)
    (top / "images" / "notes.txt").write_text("x", encoding="utf-8")
    report = check("inaturalist", top)
    assert report.ok
    assert "1 (notes.txt) other files are ignored" in str(report)
    (top / "images" / "more.tar.gz").write_bytes(b"x")
    assert "1 (more.tar.gz) archives lie among the images | Unpack them." in problems(check("inaturalist", top))[0]
    shutil.rmtree(top / "images")
    (top / "images").mkdir()
    assert "test: 0 images" in problems(check("inaturalist", top))[0]


@pytest.mark.usefixtures("small")
def test_decoding_names_each_broken_image(tmp_path):
    top = inaturalist(tmp_path)
    broken = sorted((top / "images").iterdir())[1]
    broken.write_bytes(broken.read_bytes()[:200])
    assert check("inaturalist", top).ok
    [text] = problems(check("inaturalist", top, decode=True))
    assert text.startswith(f"test: image '{broken}' cannot be read: it is damaged")
    assert "sirc data check" not in text


@pytest.mark.slow
def test_decoding_in_processes_finds_the_same(tmp_path):
    for i in range(70):
        paint(tmp_path / "d" / f"{i:03}.jpg")
    for i in (0, 69):
        (tmp_path / "d" / f"{i:03}.jpg").write_bytes(b"junk")
    apart = check("folder", tmp_path / "d", decode=True, workers=1)
    assert str(apart) == str(check("folder", tmp_path / "d", decode=True))
    assert str(apart).count("cannot be read") == 2


def test_your_own_folder_is_looked_at_by_its_parts(tmp_path):
    for part in ("train", "val"):
        for kind in "ab":
            paint(tmp_path / part / kind / "1.png")
    report = check("folder", tmp_path)
    assert report.ok
    assert report.counts == {"train": 2, "test": 2}
    assert report.classes == {"train": 2, "test": 2}
    assert check("folder", tmp_path, split="test").counts == {"test": 2}
    assert check("folder", tmp_path / "train").counts == {"all": 2}
    assert check("folder", tmp_path / "train" / "a").counts == {"all": 1}
    assert not check("folder", tmp_path / "train", split="test").ok
    (tmp_path / "none").mkdir()
    assert "all: 0 images" in problems(check("folder", tmp_path / "none"))[0]


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_a_link_to_nothing_is_told_for_what_it_is(tmp_path):
    paint(tmp_path / "d" / "1.png")
    (tmp_path / "d" / "2.png").symlink_to("nowhere.png")
    [text] = problems(check("folder", tmp_path / "d", decode=True))
    assert text == (
        f"all: image '{tmp_path}/d/2.png' is a link to a file that does not exist. Restore that file, or remove the "
        "link. | "
    )


def test_your_own_list_is_looked_at(tmp_path):
    for name in ("a b.png", "c.png"):
        paint(tmp_path / name)
    (tmp_path / "l.txt").write_text("a b.png 0\nc.png 1\n", encoding="utf-8")
    report = check("list", tmp_path / "l.txt", decode=True)
    assert report.ok
    assert (report.counts, report.classes) == ({"all": 2}, {"all": 2})
    assert "missing" in str(check("list", tmp_path / "l.txt", root=tmp_path.parent))
    assert not check("list", tmp_path / "none.txt").ok
    assert not check("list", tmp_path).ok


def test_an_unknown_name_lists_what_can_be_looked_at(tmp_path):
    with pytest.raises(
        ValueError, match=r"`name` must be one of imagenet200, .*, folder, list; got 'folders'. Did you mean `folder`\?"
    ):
        check("folders", tmp_path)
    with pytest.raises(ValueError, match=r"`name` must be one of imagenet200, .*; got 3\."):
        check(3, tmp_path)


def test_a_report_reads_as_plain_text(tmp_path):
    lines = str(check("textures", textures(tmp_path))).splitlines()
    assert lines[0] == f"Textures in '{tmp_path}/dtd': 1 problem"
    assert lines[1].startswith("  problem  test: 2 images in")
    assert lines[2] == "           Unpack or fetch the data again."


def test_the_order_of_classes_is_shown_and_numbers_that_sort_as_text_are_pointed_out(tmp_path):
    for name in ("0", "1", "2", "10", "11", "100"):
        paint(tmp_path / "numbers" / name / "a.png")
    report = check("folder", tmp_path / "numbers")
    assert report.ok
    shown = str(report)
    assert "6 classes by name: 0 is '0', 1 is '1', 2 is '10', 3 is '100', …, 5 is '2'" in shown
    assert "class 2 is '10', and by value '2'" in shown
    assert 'write `sort = "natural"`' in shown
    for name in ("cat", "dog"):
        paint(tmp_path / "pets" / name / "a.png")
    assert "2 classes by name: 0 is 'cat', 1 is 'dog'" in str(check("folder", tmp_path / "pets"))
    assert "natural" not in str(check("folder", tmp_path / "pets"))
