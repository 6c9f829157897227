"""Images in files are read as torchvision reads them, and what cannot be read is named."""

import dataclasses
import io
import json
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from sirc.data import FileNames, ImageSet, Preprocess, file_list, image_folder
from sirc.data.decode import printable, read_image
from sirc.errors import ImageError


def paint(path, value=0, *, mode="RGB", size=(6, 5), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 10, 20)).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three classes whose names sort otherwise than they were made, with nested files and strange neighbours."""
    root = tmp_path / "birds"
    for number, name in enumerate(
        [
            "wren/b.png",
            "wren/a.PNG",
            "owl/x 1.png",
            "owl/deep/y.png",
            "owl-2/z.png",
            "owl/deep-er/w.png",
            "Ästling/é.png",
        ]
    ):
        paint(root / name, number)
    (root / "owl" / "notes.txt").write_text("no image", encoding="utf-8")
    paint(root / "owl" / "._x.png")
    (root / ".cache").mkdir()
    (root / "README.md").write_text("hello", encoding="utf-8")
    return root


def test_a_folder_reads_as_torchvisions_image_folder_does(folder):
    (folder / "owl" / "._x.png").unlink()
    (folder / ".cache").rmdir()
    theirs = torchvision.datasets.ImageFolder(folder)
    ours = image_folder(folder)
    assert ours.classes == tuple(theirs.classes)
    assert [str(ours.path(i)) for i in range(len(ours))] == [path for path, _ in theirs.samples]
    assert ours.labels.tolist() == theirs.targets
    for i in range(len(ours)):
        image, label = ours[i]
        assert label == theirs[i][1]
        assert image.tobytes() == theirs[i][0].tobytes()
    assert repr(ours) == "FileSet('birds', 7 images, 4 classes)"


def test_hidden_files_and_folders_are_no_images(folder):
    assert len(image_folder(folder)) == 7
    assert len(image_folder(folder, labelled=False)) == 7


def test_an_unlabelled_folder_takes_images_at_any_depth(folder):
    paint(folder / "top.png")
    flat = image_folder(folder, labelled=False)
    assert flat.labels is None
    assert flat.classes == ()
    assert isinstance(flat[0], Image.Image)
    assert flat.where(0) == str(folder / "top.png")
    labelled = image_folder(folder)
    assert [flat.where(i + 1) for i in range(7)] == [labelled.where(i) for i in range(7)]


def test_links_are_followed_but_not_in_circles(folder, tmp_path):
    os.symlink(folder, folder / "owl" / "round")
    paint(tmp_path / "elsewhere" / "c.png")
    os.symlink(tmp_path / "elsewhere", folder / "linked")
    names = image_folder(folder)
    assert len(names) == 8
    assert "linked" in names.classes


def test_items_count_from_the_end_and_iteration_ends(folder):
    images = image_folder(folder)
    assert images[-1][1] == images[6][1] == 3
    assert len(list(images)) == 7
    with pytest.raises(IndexError, match=r"must be in 0…6 for 'birds'; got 7"):
        images[7]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x", encoding="utf-8"), "is a file, not a folder; unpack it if it is an archive"),
        (lambda path: path.mkdir(), "there is no image in or below"),
        (lambda path: paint(path / "a.png"), "its images lie directly in it, such as 'a.png'"),
    ],
)
def test_a_folder_that_is_none_says_what_it_is(tmp_path, make, words):
    make(tmp_path / "data")
    with pytest.raises(FileNotFoundError, match=words):
        image_folder(tmp_path / "data")


def test_an_empty_class_is_an_error_unless_it_may_keep_its_number(folder):
    (folder / "crow").mkdir()
    with pytest.raises(FileNotFoundError, match=r"1 \(crow\) of 5 have none.*allow_empty=True"):
        image_folder(folder)
    kept = image_folder(folder, allow_empty=True)
    assert kept.classes == ("crow", "owl", "owl-2", "wren", "Ästling")
    assert kept.labels.tolist() == [1, 1, 1, 2, 3, 3, 4]
    with pytest.raises(FileNotFoundError, match="no image in or below"):
        image_folder(folder / "crow", labelled=False)


def test_the_fingerprint_says_which_images_in_which_order_and_how(folder, tmp_path):
    first = image_folder(folder)
    assert first.fingerprint == image_folder(folder, name="other").fingerprint
    assert first.fingerprint != image_folder(folder, labelled=False).fingerprint
    assert first.fingerprint != first.with_transform(torch.nn.ReLU()).fingerprint
    assert first.with_transform(pause).fingerprint == first.with_transform(make_pause()).fingerprint
    folder.rename(tmp_path / "moved")
    moved = image_folder(tmp_path / "moved")
    assert moved.fingerprint == first.fingerprint
    paint(tmp_path / "moved" / "owl-2" / "z.png", size=(60, 50))
    assert image_folder(tmp_path / "moved").fingerprint != first.fingerprint


def pause(image):
    return torch.zeros(1)


def make_pause():
    address = type(pause)(pause.__code__, globals())  # another object, so another address in its repr
    assert repr(address) != repr(pause)
    return address


def test_files_that_vanish_are_named(folder):
    images = image_folder(folder)
    images.path(2).unlink()
    with pytest.raises(ImageError, match=r"1 \(owl/deep-er/w.png\) of 7 are gone"):
        _ = images.fingerprint
    with pytest.raises(OSError, match=r"w.png' is gone"):
        images[2]


def test_a_subset_is_the_seeds_choice_in_order(folder):
    whole = image_folder(folder)
    part = whole.subset(4, seed=3)
    assert isinstance(part, ImageSet)
    chosen = part.indices
    assert (np.diff(chosen) > 0).all()
    assert [part.where(i) for i in range(4)] == [whole.where(int(i)) for i in chosen]
    assert part.labels.tolist() == whole.labels[chosen].tolist()
    assert part.classes == whole.classes
    assert part[3][1] == part[-1][1] == int(whole.labels[chosen[-1]])
    assert part.fingerprint == whole.subset(4, seed=3).fingerprint
    prints = {whole.fingerprint, *(whole.subset(4, seed=seed).fingerprint for seed in range(5))}
    assert len(prints) > 4
    every = whole.subset(7, seed=0)
    assert every.indices.tolist() == list(range(7))


def test_every_image_is_chosen_equally_often(folder):
    whole = image_folder(folder)
    counts = sum(np.bincount(whole.subset(2, seed=seed).indices, minlength=7) for seed in range(700))
    assert counts.sum() == 1400
    assert abs(counts - 200).max() < 5 * np.sqrt(200)


def test_a_subset_keeps_the_transform_and_refuses_too_many(folder):
    whole = image_folder(folder, transform=pause)
    x, _ = whole.subset(2, seed=0)[1]
    assert torch.equal(x, torch.zeros(1))
    with pytest.raises(ValueError, match=r"`count` must be at most .* got 8 of the 7 of 'birds'"):
        whole.subset(8, seed=0)
    with pytest.raises(ValueError, match="`count` must be a whole number"):
        whole.subset(0, seed=0)
    with pytest.raises(ValueError, match="`seed` must be a whole number"):
        whole.subset(1, seed=-1)


def test_unlabelled_and_named_leave_the_first_alone(folder):
    images = image_folder(folder)
    ood = images.unlabelled().named("OOD")
    assert (ood.labels, ood.name, ood.classes) == (None, "OOD", ())
    assert (len(images.labels), images.name) == (7, "birds")


def test_names_are_compact_and_survive_pickling():
    names = [f"n{i:08}/n{i:08}_{j}.JPEG" for i in range(100) for j in range(10)] + [
        "é/ü 1.png",
        os.fsdecode(b"\xff.png"),
    ]
    held = FileNames(names)
    assert list(pickle.loads(pickle.dumps(held))) == names
    assert held[0] == names[0]
    assert held.digest() == FileNames(iter(names)).digest() != FileNames(reversed(names)).digest()
    assert FileNames(["ab", "c"]).digest() != FileNames(["a", "bc"]).digest()
    assert len(pickle.dumps(held)) < sum(map(len, names)) + 10 * len(names)


def test_worker_processes_give_the_same_images(folder):
    images = image_folder(folder, transform=lambda image: torch.tensor(np.asarray(image)).sum())
    alone = [int(x) for x, _ in torch.utils.data.DataLoader(images)]
    assert alone == [int(np.asarray(images.image(i)).astype(int).sum()) for i in range(7)]


def test_a_list_reads_paths_with_spaces_and_labels(folder, tmp_path):
    listed = tmp_path / "some.txt"
    listed.write_text("\ufeffowl/x 1.png 3\n\n  wren/b.png   0 \r\n./owl-2/z.png 12\n", encoding="utf-8")
    images = file_list(listed, folder)
    assert [images.where(i) for i in range(3)] == [
        str(folder / name) for name in ("owl/x 1.png", "wren/b.png", "owl-2/z.png")
    ]
    assert images.labels.tolist() == [3, 0, 12]
    assert images.name == "some"
    assert file_list(listed, folder, labelled=False).labels is None


def test_a_list_may_do_without_labels(folder, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("owl/x 1.png\nwren/b.png\n", encoding="utf-8")
    assert file_list(listed, folder).labels is None
    with pytest.raises(ValueError, match=r"must end in a label.*labelled=False"):
        file_list(listed, folder, labelled=True)
    listed.write_text("owl/x 1.png -1\nwren/b.png 2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"must be 0 or more; got -1 for 'owl/x 1.png'"):
        file_list(listed, folder)


def test_a_folder_that_some_lists_name_is_dropped(folder, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("images/wren/b.png 0\nowl/x 1.png 0\n", encoding="utf-8")
    assert len(file_list(listed, folder, within=("images", "dtd_images"))) == 2


def test_missing_listed_files_are_counted_and_named(folder, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("wren/b.png\n" + "".join(f"gone/{i}.png\n" for i in range(9)), encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"9 \(gone/0.png, .*gone/4.png, …\) of 10 are missing"):
        file_list(listed, folder)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, FileNotFoundError, "there is no list file"),
        (b"", ValueError, "must name at least one image; it is empty"),
        (b"\x89PNG\xff", ValueError, "must be a text file in UTF-8.*byte 0x89 at 0"),
        (b"a\x00b.png\n", FileNotFoundError, "are missing"),
        (b"owl\n", FileNotFoundError, r"1 \(owl\) of 1 are missing"),
    ],
)
def test_a_bad_list_says_what_is_wrong(folder, tmp_path, content, error, words):
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(error, match=words):
        file_list(tmp_path / "list.txt", folder)


def gradient(dtype, high):
    return np.linspace(0, high, 64).reshape(8, 8).astype(dtype)


def test_sixteen_bit_grey_keeps_its_high_byte(tmp_path):
    values = gradient(np.uint16, 65535)
    for name in ("grey.png", "grey.tif"):
        Image.fromarray(values).save(tmp_path / name)
        red, green, blue = read_image(tmp_path / name).split()
        assert np.array_equal(np.asarray(red), (values >> 8).astype(np.uint8))
        assert red.tobytes() == green.tobytes() == blue.tobytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_common_mode_gives_torchvisions_pixels(tmp_path, mode):
    source = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)).convert(mode)
    path = tmp_path / ("x.tif" if mode in ("CMYK", "YCbCr") else "x.png")
    source.save(path)
    ours = read_image(path)
    assert ours.mode == "RGB"
    assert ours.tobytes() == torchvision.datasets.folder.pil_loader(str(path)).tobytes()


def test_a_palette_with_transparency_gives_its_colours_without_a_warning(tmp_path):
    image = Image.new("P", (8, 8))
    image.putdata(range(64))
    image.putpalette([value for i in range(256) for value in (i, 255 - i, 7)])
    image.save(tmp_path / "p.png", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torchvision.datasets.folder.pil_loader(str(tmp_path / "p.png")).tobytes()
    assert read_image(tmp_path / "p.png").tobytes() == expected


def test_orientation_in_the_metadata_is_left_alone(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").size == (8, 4)


def test_odd_metadata_and_large_sizes_do_not_warn(tmp_path, monkeypatch):
    Image.new("RGB", (8, 4)).save(tmp_path / "odd.jpg", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff\x01")
    assert read_image(tmp_path / "odd.jpg").size == (8, 4)
    paint(tmp_path / "large.png", size=(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert read_image(tmp_path / "large.png").size == (40, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ImageError, match=r"large.png' cannot be read: it is too large.*MAX_IMAGE_PIXELS"):
        read_image(tmp_path / "large.png")


def encoded(form, size=(64, 64)):
    stream = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
@pytest.mark.parametrize("kept", [0.9, 0.5, 0.05])
def test_a_file_cut_short_is_named(tmp_path, form, kept):
    content = encoded(form)
    path = tmp_path / "cut.jpg"
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ImageError, match=r"cut.jpg' cannot be read: it is .*Fetch or unpack it again"):
        read_image(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 5000, b"<html>404</html>"])
def test_a_file_that_is_no_image_is_named(tmp_path, content):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(ImageError, match=r"x.png' cannot be read: it is empty or no image that PIL knows"):
        read_image(tmp_path / "x.png")


def test_no_other_program_is_started_to_draw_an_image(tmp_path, monkeypatch):
    (tmp_path / "x.png").write_bytes(encoded("EPS"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    with pytest.raises(ImageError, match=r"x.png' cannot be read: it is an EPS, .* Convert it to 8 bits"):
        read_image(tmp_path / "x.png")


@pytest.mark.slow
def test_a_flipped_byte_never_escapes_as_another_error(tmp_path):
    random = np.random.default_rng(1)
    for form in ("JPEG", "PNG", "TIFF", "WEBP"):
        content = bytearray(encoded(form, (16, 16)))
        for at in random.integers(0, min(400, len(content)), 60):
            damaged = bytearray(content)
            damaged[at] ^= int(random.integers(1, 256))
            (tmp_path / "x").write_bytes(damaged)
            try:
                outcome = read_image(tmp_path / "x").mode
            except ImageError as error:
                outcome = str(error)
            assert outcome == "RGB" or "x' cannot be read" in outcome


def test_numbers_of_no_agreed_range_are_refused(tmp_path):
    Image.fromarray(gradient(np.float32, 1.0)).save(tmp_path / "f.tif")
    with pytest.raises(ImageError, match=r"32-bit numbers \(mode F\).*Convert it to 8 bits"):
        read_image(tmp_path / "f.tif")


def test_names_that_no_terminal_can_show_are_escaped():
    assert printable(os.fsdecode(b"a\xff.png")) == "a\\xff.png"
    assert printable("line\nbreak\x1b[0m.png") == "line\\nbreak\\x1b[0m.png"
    assert printable("é ü.png") == "é ü.png"


@pytest.fixture
def numbered(tmp_path):
    for number in range(12):
        paint(tmp_path / "numbered" / str(number) / "a.png", number)
    return tmp_path / "numbered"


def shades(images):
    """The label of each image, by the number of the folder that it is in."""
    return {images[i][0].getpixel((0, 0))[0]: images[i][1] for i in range(len(images))}


def test_classes_are_numbered_as_text_by_value_or_as_listed(numbered):
    assert image_folder(numbered).classes[:4] == ("0", "1", "10", "11")
    natural = image_folder(numbered, sort="natural")
    assert natural.classes == tuple(map(str, range(12)))
    assert shades(natural) == {number: number for number in range(12)}
    backwards = image_folder(numbered, classes=[str(number) for number in reversed(range(12))])
    assert shades(backwards) == {number: 11 - number for number in range(12)}
    assert len({image_folder(numbered).fingerprint, natural.fingerprint, backwards.fingerprint}) == 3


def test_a_listed_class_without_a_folder_keeps_its_number(numbered):
    images = image_folder(numbered, classes=["none", *map(str, range(12)), "../numbered/3"])
    assert len(images.classes) == 14
    assert shades(images) == {number: number + 1 for number in range(12)}
    (numbered / "7" / "a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"every class folder .* 1 \(7\) of 13 have none"):
        image_folder(numbered, classes=["none", *map(str, range(12))])


def test_an_order_of_classes_that_does_not_fit_is_refused(numbered):
    with pytest.raises(ValueError, match=r"must name every class folder .*; 2 \(10, 11\) of 12 are not"):
        image_folder(numbered, classes=[str(number) for number in range(10)])
    with pytest.raises(ValueError, match=r"each class once; got '3' twice"):
        image_folder(numbered, classes=[*map(str, range(12)), "3"])
    with pytest.raises(ValueError, match='`sort` must be "name" or "natural"; got \'size\''):
        image_folder(numbered, sort="size")
    with pytest.raises(ValueError, match="`sort` must be left out if `classes`"):
        image_folder(numbered, classes=list(map(str, range(12))), sort="natural")


def test_without_torchvision_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    with pytest.raises(
        ImportError, match=r"preprocessing images needs torchvision: pip install 'torch-sirc\[vision\]'"
    ):
        Preprocess().test()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"crop": 0}, "`crop` must be a whole number ≥ 1; got 0"),
        ({"crop": "64"}, "`crop` must be a whole number ≥ 1; got '64'"),
        ({"crop": 10**6}, "`crop` must be at most 13,377 pixels a side; got 1000000"),
        ({"resize": 2.5}, r"`resize` must be a whole number ≥ 1; got 2.5"),
        ({"resize": (8, 9, 10)}, r"`resize` must be one side, or height and width; got \(8, 9, 10\)"),
        ({"resize": (8, None)}, "`resize` must be one side, or height and width"),
        ({"interpolation": "cubic"}, '`interpolation` must be "bilinear", "bicubic" or "lanczos"; got \'cubic\''),
        ({"mean": 0.5}, "`mean` must be three finite numbers, one for each colour; got 0.5"),
        ({"mean": (0, 0, float("nan"))}, "`mean` must be three finite numbers"),
        ({"std": (1, 1)}, "`std` must be three numbers above 0"),
        ({"std": (1, 1, 0)}, "`std` must be three numbers above 0"),
        ({"std": "abc"}, "`std` must be one number; got str"),
    ],
)
def test_preprocessing_that_makes_no_sense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Preprocess(**given)


def test_settings_of_numpy_and_torch_become_plain_numbers():
    given = Preprocess(np.int64(64), np.int64(32), mean=np.array([0.5, 0.25, 0.75]), std=torch.tensor([0.5, 1.0, 2.0]))
    plain = Preprocess(64, 32, mean=(0.5, 0.25, 0.75), std=(0.5, 1.0, 2.0))
    assert given == plain
    assert json.loads(json.dumps(dataclasses.asdict(given))) == json.loads(json.dumps(dataclasses.asdict(plain)))
    assert given.test()(Image.new("RGB", (80, 70))).shape == (3, 32, 32)
    assert Preprocess(resize=[72, 64], mean=[0.485, 0.456, 0.406]) == Preprocess(resize=(72, 64))
    # The fingerprint of a set contains the settings as they were given: a store made with whole numbers stays valid.
    assert "Normalize(mean=[0, 0, 0], std=[1, 1, 1]" in repr(Preprocess(mean=(0, 0, 0), std=[1, 1, 1]).test())


@pytest.mark.parametrize("classes", ["classes.txt", 3])
def test_class_names_must_be_a_list(tmp_path, classes):
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=rf"`classes` must be a list of names; got {classes!r}\."):
        image_folder(tmp_path, classes=classes)
