"""Noise follows the paper's recipe, depends on seed and number alone, and is the same with files and without."""

import hashlib
import json

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from sirc.data import Noise, image_folder, write_noise
from sirc.data import noise as module
from sirc.data.noise import draw_noise
from sirc.errors import StoreError
from sirc.progress import Progress


@pytest.fixture(scope="module")
def drawn():
    """The recipe's own random numbers of many images: standard deviation and width, without the pixels."""
    found = []
    for index in range(6000):
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, index])))
        found.append((random.standard_normal() ** 2, random.integers(2, 257)))
    return np.array(found)


def test_the_draws_are_those_of_the_fixture(drawn):
    for index in (0, 1, 99):
        width = drawn[index, 1]
        pixels = draw_noise(7, index)
        assert pixels.shape == (width, width, 3)
        assert pixels.dtype == np.uint8


def test_contrasts_are_squares_of_unit_gaussians(drawn):
    std = drawn[:, 0]
    assert stats.kstest(std, stats.chi2(1).cdf).pvalue > 0.01
    assert std.mean() == pytest.approx(1, abs=4 * np.sqrt(2 / len(std)))


def test_widths_are_uniform_with_both_ends(drawn):
    width = drawn[:, 1].astype(int)
    assert (width.min(), width.max()) == (2, 256)
    counts = np.bincount(width - 2, minlength=255)
    assert len(counts) == 255
    assert stats.chisquare(counts).pvalue > 0.01


def test_pixels_are_clipped_gaussians_around_one_half(drawn):
    large = [index for index in range(400) if drawn[index, 1] > 150][:40]
    for index in large:
        std, values = drawn[index, 0], draw_noise(7, index).ravel()
        n = len(values)
        # A value is 0 after rounding below 0.5/255, and 255 above 254.5/255.
        low = stats.norm.cdf(0.5 / 255, 0.5, std)
        error = 5 * np.sqrt(low * (1 - low) / n) + 1e-9
        assert (values == 0).mean() == pytest.approx(low, abs=error)
        assert (values == 255).mean() == pytest.approx(low, abs=error)
        assert values.mean() / 255 == pytest.approx(0.5, abs=5 * (min(std, 0.5) + 0.5 / 255) / np.sqrt(n))


def test_faint_images_have_the_standard_deviation_drawn(drawn):
    index = next(i for i in range(6000) if 0.03 < drawn[i, 0] < 0.1 and drawn[i, 1] > 200)
    assert (draw_noise(7, index) / 255).std() == pytest.approx(drawn[index, 0], rel=0.01)


def test_channels_and_neighbours_are_independent(drawn):
    index = next(i for i in range(6000) if 0.1 < drawn[i, 0] < 0.3 and drawn[i, 1] > 200)
    pixels = draw_noise(7, index).astype(float)
    bound = 5 / np.sqrt(pixels[..., 0].size)
    assert abs(np.corrcoef(pixels[..., 0].ravel(), pixels[..., 1].ravel())[0, 1]) < bound
    assert abs(np.corrcoef(pixels[1:, :, 0].ravel(), pixels[:-1, :, 0].ravel())[0, 1]) < bound


def test_images_are_scaled_with_lanczos_to_one_size():
    noise = Noise(5, seed=3)
    for index in range(5):
        image = noise.image(index)
        assert (image.size, image.mode) == ((256, 256), "RGB")
        small = Image.fromarray(draw_noise(3, index))
        assert image.tobytes() == small.resize((256, 256), Image.Resampling.LANCZOS).tobytes()


def test_these_bits_never_change():
    digest = hashlib.sha256(b"".join(draw_noise(0, index).tobytes() for index in range(20))).hexdigest()
    assert digest[:16] == PINNED, "NumPy draws otherwise now: Noise is another dataset, say so in the changelog"


PINNED = "9a1266631b66767a"


def test_an_image_depends_on_seed_and_number_alone():
    few, many = Noise(3, seed=1), Noise(50, seed=1)
    assert few.image(2).tobytes() == many.image(2).tobytes() != Noise(3, seed=2).image(2).tobytes()
    assert draw_noise(1, 2).tobytes() != draw_noise(2, 1).tobytes()
    prints = {few.fingerprint, many.fingerprint, Noise(3, seed=2).fingerprint, Noise(3, seed=1, size=64).fingerprint}
    assert len(prints) == 4
    assert few.fingerprint == Noise(3, 1).fingerprint


def test_noise_is_a_set_without_labels_of_ten_thousand():
    assert len(Noise()) == 10_000
    assert Noise().labels is None
    assert isinstance(Noise(2)[-1], Image.Image)
    assert Noise(2).where(1) == "noise image 1 of seed 0"
    with pytest.raises(IndexError):
        Noise(2)[2]


@pytest.mark.parametrize(
    ("kwargs", "words"), [({"count": 0}, "`count`"), ({"seed": -1}, "`seed`"), ({"size": 0}, "`size`")]
)
def test_bad_numbers_are_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        Noise(**kwargs)


def test_files_hold_the_same_pixels(tmp_path):
    assert write_noise(tmp_path / "noise", 6, 4) == 6
    files, made = image_folder(tmp_path / "noise", labelled=False), Noise(6, seed=4)
    assert [files.path(i).name for i in range(6)] == [f"{i:05}.png" for i in range(6)]
    for index in range(6):
        assert files.image(index).tobytes() == made.image(index).tobytes()


class Counted(Progress):
    def __init__(self):
        self.asked = []

    def task(self, name, total, *, done=0, unit="images"):
        self.asked.append((name, total, done, unit))
        return super().task(name, total, done=done, unit=unit)


def test_a_killed_run_goes_on_and_keeps_what_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "noise"
    real = module.atomic_write

    def killed(path, writer):
        if path.name == "00003.png":
            raise KeyboardInterrupt
        real(path, writer)

    monkeypatch.setattr(module, "atomic_write", killed)
    with pytest.raises(KeyboardInterrupt):
        write_noise(folder, 5, 0)
    monkeypatch.undo()
    kept = (folder / "images" / "00001.png").stat().st_mtime_ns
    cut = folder / "images" / "00002.png"
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-5])
    progress = Counted()
    assert write_noise(folder, 5, 0, progress=progress) == 3
    assert progress.asked == [("noise", 5, 2, "images")]
    assert (folder / "images" / "00001.png").stat().st_mtime_ns == kept
    assert cut.read_bytes() == whole
    assert write_noise(folder, 7, 0) == 2
    assert write_noise(folder, 7, 0) == 0


def test_other_noise_is_replaced_only_when_asked(tmp_path):
    write_noise(tmp_path / "n", 4, 0)
    with pytest.raises(StoreError, match=r"holds other noise: seed is 0, got 1.*overwrite=True"):
        write_noise(tmp_path / "n", 4, 1)
    with pytest.raises(StoreError, match="count is 4, got 2"):
        write_noise(tmp_path / "n", 2, 0)
    assert write_noise(tmp_path / "n", 2, 1, overwrite=True) == 2
    assert len(image_folder(tmp_path / "n", labelled=False)) == 2
    assert json.loads((tmp_path / "n" / "noise.json").read_text(encoding="utf-8")) == {
        "seed": 1,
        "size": 256,
        "count": 2,
    }


def test_a_folder_of_other_things_is_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match=r"a folder of its own; .* holds thesis.tex"):
            write_noise(tmp_path, 2, 0, overwrite=overwrite)
    with pytest.raises(StoreError, match="is a file"):
        write_noise(tmp_path / "thesis.tex", 2, 0)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "noise.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(StoreError, match=r"noise\.json' cannot be trusted: it must hold a JSON object"):
        write_noise(tmp_path / "odd", 2, 0)
    for count in ("many", None):
        (tmp_path / "odd" / "noise.json").write_text(
            json.dumps({"seed": 0, "size": 256, "count": count}), encoding="utf-8"
        )
        with pytest.raises(StoreError, match=f"holds other noise: count is {count}, got 2"):
            write_noise(tmp_path / "odd", 2, 0)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["thesis.tex"]
