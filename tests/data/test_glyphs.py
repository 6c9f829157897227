"""Glyphs: every image comes from its own numbers, is what its label says, and no OOD character looks like a letter."""

import hashlib
import importlib.util
import pickle
import tomllib
import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import ImageFont
from sklearn.datasets import load_digits

import sirc
from sirc import models
from sirc.data import Noise, Source, glyphs, open_source
from sirc.data.glyphs import draw, sets
from sirc.data.glyphs.draw import CANVAS, FONTS, SCRIPTS, bitmap, font_file, generator
from sirc.experiment import DEFAULT_SPECS
from sirc.experiment.experiment import Experiment
from sirc.experiment.stages import images_of
from support.interpreters import python

DEMO = sorted((Path(sirc.__file__).parent / "experiment" / "demo").glob("glyphs_*.toml"))
SETS = ["letters", "greek", "cyrillic", "digits", "handwritten", "photos", "noise"]
LATIN_LOOKALIKES = "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "АВЕКМНОРСТУХЗЁІЇЈЅЬ" + "01"


def pixels(images, count=None):
    return np.stack([np.asarray(images.image(i)) for i in range(len(images) if count is None else count)])


@pytest.mark.parametrize("name", SETS)
def test_every_set_holds_rgb_images_of_32_by_32(name):
    images = getattr(glyphs, name)(count=5)
    assert len(images) == 5
    assert len(list(images)) == 5
    for index in (0, 4, -1):
        assert (images.image(index).mode, images.image(index).size) == ("RGB", (32, 32))
    assert (images.labels is None) == (name != "letters")
    with pytest.raises(IndexError, match="must be in 0…4"):
        images.image(5)


@pytest.mark.slow
def test_another_process_draws_the_same_pixels():
    code = (
        "import hashlib, numpy as np\n"
        "from sirc.data import glyphs\n"
        f"for name in {SETS}:\n"
        "    images = getattr(glyphs, name)(count=21)\n"
        "    drawn = b''.join(np.asarray(images.image(i)).tobytes() for i in (20, 0))\n"
        "    print(name, hashlib.sha256(drawn).hexdigest(), images.fingerprint)\n"
    )
    told = python("-c", code).stdout.split("\n")
    for name, line in zip(SETS, told, strict=False):
        images = getattr(glyphs, name)(count=21)
        drawn = hashlib.sha256(b"".join(np.asarray(images.image(i)).tobytes() for i in (20, 0))).hexdigest()
        assert line == f"{name} {drawn} {images.fingerprint}"


def test_fonts_are_those_of_matplotlib():
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    assert [font_file(font) for font in FONTS] == [folder / f"{font}.ttf" for font in FONTS]


def test_an_image_does_not_depend_on_how_many_there_are_or_which_came_first():
    few, many = glyphs.letters(count=3), glyphs.letters(count=300)
    last = np.asarray(many.image(299))
    assert (pixels(few) == pixels(many, 3)).all()
    sets._draw.cache_clear()
    assert (np.asarray(glyphs.letters(count=300).image(299)) == last).all()


@pytest.mark.slow
def test_splits_seeds_and_sets_share_no_random_numbers():
    streams = [f"{name} {split} {seed}" for name in SETS for split in ("train", "test") for seed in (0, 1)]
    first = [generator(stream, index).integers(2**63) for stream in streams for index in (0, 1, 2**40)]
    assert len(set(first)) == len(first)
    train, test = glyphs.letters("train", 52), glyphs.letters("test", 52)
    other = glyphs.letters("test", 52, seed=1)
    sets = [pixels(images).astype(float) for images in (train, test, other)]
    for a in range(3):
        for b in range(a):
            assert (np.abs(sets[a] - sets[b]).mean((1, 2, 3)) > 5).all()
    assert len({images.fingerprint for images in (train, test, other)}) == 3


def test_letters_are_balanced_and_labels_are_their_place_in_the_alphabet():
    images = glyphs.letters("train", count=26 * 4 + 3)
    assert images.classes == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    counts = torch.bincount(images.labels, minlength=26)
    assert counts.tolist() == [5] * 3 + [4] * 23
    assert images.labels[27] == images.classes.index("B")


@pytest.mark.parametrize("name", ["letters", "greek", "cyrillic", "digits"])
def test_an_image_shows_its_character(name, monkeypatch):
    """Without what makes it hard, it is the font's own drawing: none of the others is as close."""
    limits = {"HEIGHT": (24, 24), "SHIFT": 0, "TURN": 0, "SHEAR": 0, "BLUR": (0.3, 0.3), "NOISE": (0, 0)}
    for limit, value in limits.items():
        monkeypatch.setattr(draw, limit, value)
    characters = sets._DRAWN[name][0]
    drawn = [draw.draw_character(c, ("DejaVuSans",), generator("test", i)) for i, c in enumerate(characters)]
    box = (CANVAS // 2 - 32, CANVAS // 2 - 32, CANVAS // 2 + 32, CANVAS // 2 + 32)
    plain = [bitmap("DejaVuSans", c).crop(box).resize((32, 32)) for c in characters]
    ink = np.stack([255.0 - d.mean(-1).ravel() for d in drawn])
    closeness = np.corrcoef(ink, np.stack([np.asarray(p, float).ravel() for p in plain]))[: len(ink), len(ink) :]
    assert (closeness.argmax(1) == np.arange(len(characters))).all()
    assert closeness.diagonal().min() > 0.97


@pytest.mark.slow
def test_images_vary_in_every_way_that_is_promised():
    grey = pixels(glyphs.letters(count=26 * 20))[::26].astype(float).mean(-1)  # twenty times A
    paper, ink = np.quantile(grey, 0.9, axis=(1, 2)), np.quantile(grey, 0.02, axis=(1, 2))
    assert np.ptp(paper) > 60
    assert np.ptp(paper - ink) > 80
    rough = np.abs(np.diff(grey, axis=2)).mean((1, 2)) / (paper - ink)
    assert rough.max() > 2 * rough.min()


def test_no_ood_character_is_a_letter_or_looks_like_one():
    for characters in (glyphs.GREEK, glyphs.CYRILLIC, glyphs.DIGITS):
        assert len(set(characters)) == len(characters)
        assert not set(characters) & set(LATIN_LOOKALIKES)
        assert not set(characters) & set(glyphs.LETTERS)
    assert all("GREEK CAPITAL" in unicodedata.name(c) for c in glyphs.GREEK)
    assert all("CYRILLIC CAPITAL" in unicodedata.name(c) for c in glyphs.CYRILLIC)


def test_no_font_draws_an_ood_character_just_as_it_draws_a_letter():
    """The look-alikes that were left out are drawn so: А is A to the pixel."""
    for font in SCRIPTS:
        letters = {bitmap(font, c).tobytes() for c in glyphs.LETTERS}
        others = [bitmap(font, c).tobytes() for c in glyphs.GREEK + glyphs.CYRILLIC + glyphs.DIGITS]
        assert not letters & set(others)
        assert len(set(others)) == len(others)
    assert bitmap("DejaVuSans", "А").tobytes() == bitmap("DejaVuSans", "A").tobytes()


@pytest.mark.parametrize("font", FONTS)
def test_fonts_have_every_character_they_are_asked_for(font):
    asked = glyphs.LETTERS + glyphs.DIGITS + (glyphs.GREEK + glyphs.CYRILLIC if font in SCRIPTS else "")
    opened = ImageFont.truetype(str(font_file(font)), 40)
    missing = {bytes(opened.getmask(unassigned)) for unassigned in ("\u0378", "\U000e0fff")}
    assert not {bytes(opened.getmask(c)) for c in asked} & missing
    drawn = [bitmap(font, c) for c in asked]
    assert len({d.tobytes() for d in drawn}) == len(asked)
    for character, picture in zip(asked, drawn, strict=True):
        left, top, right, bottom = picture.getbbox()
        assert left > 0, character
        assert max(right, bottom) < CANVAS
        assert abs(left + right - CANVAS) <= 1
        assert abs(top + bottom - CANVAS) <= 1


def test_handwritten_digits_are_scikit_learns_in_their_order():
    images, theirs = glyphs.handwritten(), load_digits().images
    assert len(images) == len(theirs) == 1797
    for index in (0, 1000, 1796):
        grey = np.asarray(images.image(index).resize((8, 8)).convert("L")).astype(float)
        assert np.corrcoef(255 - grey.ravel(), theirs[index].ravel())[0, 1] > 0.97


@pytest.mark.slow
def test_noise_is_the_papers_at_this_size():
    ours, theirs = glyphs.noise(count=4, seed=3), Noise(4, seed=3, size=32)
    assert (pixels(ours) == pixels(theirs)).all()


@pytest.mark.slow
def test_photographs_give_thousands_of_patches_of_every_kind():
    drawn = pixels(glyphs.photos(count=400))
    assert len({patch.tobytes() for patch in drawn}) == 400
    assert drawn.std((1, 2, 3)).min() < 15
    assert drawn.std((1, 2, 3)).max() > 60


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: glyphs.letters("validation"), '`split` must be "train" or "test"; got \'validation\''),
        (lambda: glyphs.letters(count=0), "`count` must be a whole number ≥ 1; got 0"),
        (lambda: glyphs.greek(count=2.5), "`count` must be a whole number ≥ 1; got 2.5"),
        (lambda: glyphs.digits(seed=-1), "`seed` must be a whole number ≥ 0; got -1"),
        (lambda: glyphs.handwritten(count=1798), "`count` must be at most 1797, the number of digits; got 1798"),
        (lambda: glyphs.Glyphs("runes"), '`what` must be "letters", "greek", .* or "noise"; got .runes.'),
        (lambda: _open(options={"fonts": 3}), "`options` must be what `sirc.data.glyphs:letters.*` takes: .*'fonts'"),
        (lambda: _open(options={"count": "many"}), "letters cannot be opened: `count` must be .*; got 'many'"),
    ],
)
def test_bad_options_are_refused_in_words(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("letters", "matplotlib", "matplotlib"), ("photos", "sklearn", "scikit-learn"), ("noise", "PIL", "Pillow")],
)
def test_a_missing_package_names_the_extra(name, module, package, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == module else found(asked))
    with pytest.raises(ImportError, match=rf"the set '{name}' needs {package}: pip install 'torch-sirc\[demo\]'"):
        getattr(glyphs, name)()


def test_an_experiment_gets_the_split_it_asks_for():
    train, test = (_open(split=split) for split in ("train", "test"))
    assert (train.split, test.split) == ("train", "test")
    assert _open(labelled=False).labels is None


def test_a_set_goes_to_another_process_without_its_pixels():
    images = glyphs.letters(count=200)
    before = pixels(images, 2)
    sent = pickle.dumps(images)
    assert len(sent) < 10_000
    assert (pixels(pickle.loads(sent), 2) == before).all()


def test_the_fingerprint_knows_the_fonts(monkeypatch):
    before = glyphs.letters().fingerprint
    monkeypatch.setattr(sets, "fonts_digest", lambda fonts: "another version")
    assert glyphs.letters().fingerprint != before


def test_the_demo_has_two_networks_that_differ_in_nothing_but_the_network():
    assert [path.stem for path in DEMO] == ["glyphs_densenet", "glyphs_resnet"]
    trees = [tomllib.loads(path.read_text(encoding="utf-8")) for path in DEMO]
    for tree in trees:
        tree.pop("name"), tree.pop("title"), tree.pop("model")
    assert trees[0] == trees[1]


@pytest.mark.slow
@pytest.mark.parametrize("path", DEMO, ids=lambda path: path.stem)
def test_a_demo_experiment_opens_all_that_it_names(path):
    experiment = Experiment.read(path)
    assert experiment.name == path.stem
    assert len(experiment.seeds) >= 2
    assert experiment.fit.specs == DEFAULT_SPECS
    assert experiment.train.augment.flip == 0
    experiment.require()
    model = models.build(experiment.model.name, num_classes=experiment.model.num_classes).eval()
    groups = {}
    for name in experiment.names:
        images = images_of(experiment, name)
        x = images[0] if images.labels is None else images[0][0]
        assert x.shape == (3, 32, 32)
        assert model(x[None]).shape == (1, 26)
        assert len(images) >= (1000 if name == "validation" else 1797)
        if images.labels is None:
            groups.setdefault(experiment.source(name).in_group, []).append(name)
    assert groups == {"Close": ["Greek", "Cyrillic", "Digits"], "Far": ["Handwritten", "Photos", "Noise"]}


def _open(split="test", options=None, labelled=True):
    source = Source("sirc.data.glyphs:letters", options=options or {"count": 4})
    return open_source(source, root=Path("."), split=split, preprocess=None, labelled=labelled)
