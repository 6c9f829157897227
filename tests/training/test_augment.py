"""Augmentation on the device is torchvision's, and depends on (seed, epoch, index) alone."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torchvision.transforms import RandomResizedCrop, v2
from torchvision.transforms.v2 import functional as tvf

from sirc.data import CachedImages
from sirc.data.preprocess import Preprocess
from sirc.training.augment import DeviceAugment, normaliser, random_key, resample, training_transform
from sirc.training.recipe import Augment

SMALL = Preprocess(resize=None, crop=None, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def pictures(count=6, height=20, width=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def cached(images):
    return CachedImages(images, None, ())


@pytest.mark.parametrize("box", [(0, 0, 20, 24), (3, 5, 7, 9), (19, 23, 1, 1), (0, 4, 20, 2), (2, 0, 11, 24)], ids=str)
@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("antialias", [False, True])
def test_a_box_is_cropped_and_scaled_as_torchvision_does(box, flip, antialias):
    images = pictures(2, 20, 24).float()
    output = (32, 30)  # larger than any crop: there antialiasing changes nothing
    got = resample(images, torch.tensor([[*box, flip]] * 2), output, clamp=True)
    expected = tvf.resized_crop(images, *box, list(output), antialias=antialias)
    expected = expected.flip(-1) if flip else expected
    torch.testing.assert_close(got, expected, atol=2e-3, rtol=0)


def test_a_downscaled_box_is_the_bilinear_one_without_antialiasing():
    images = pictures(1, 40, 40).float()
    got = resample(images, torch.tensor([[4, 6, 30, 33, 0]]), (12, 11), clamp=True)
    torch.testing.assert_close(
        got, tvf.resized_crop(images, 4, 6, 30, 33, [12, 11], antialias=False), atol=2e-3, rtol=0
    )


@pytest.mark.parametrize("shift", [(-4, 3), (0, 0), (4, -4), (2, 1)])
def test_a_padded_crop_is_black_outside_the_image(shift):
    images = pictures(2).float()
    got = resample(images, torch.tensor([[*shift, 20, 20, 0]] * 2), (20, 20), clamp=False)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    expected = padded[..., 4 + shift[0] : 24 + shift[0], 4 + shift[1] : 24 + shift[1]]
    torch.testing.assert_close(got, expected, atol=2e-3, rtol=0)


def test_normalising_on_the_device_is_the_test_time_preprocessing():
    images = pictures()
    normalise = normaliser(SMALL, torch.device("cpu"))
    got = normalise(images)
    assert torch.equal(got, normalise(images.float()))
    for pixels, row in zip(images, got, strict=True):
        expected = SMALL.test()(Image.fromarray(pixels.permute(1, 2, 0).numpy()))
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)


def boxes_of(augment, height, width, count, seed=1, epoch=0):
    images = torch.zeros(count, 1, height, width, dtype=torch.uint8)
    one = Preprocess(resize=None, crop=None)
    device = DeviceAugment(augment, one, cached(images), seed=seed)
    device.start(epoch)
    return device._boxes.double()


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 90), (30, 200)])
def test_random_crops_have_the_distribution_of_torchvision_s(height, width):
    augment = Augment()
    mine = boxes_of(augment, height, width, 4000)
    torch.manual_seed(0)
    image = torch.zeros(1, height, width)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, list(augment.scale), list(augment.ratio)) for _ in range(4000)]
    ).double()
    for column in range(4):
        assert stats.ks_2samp(mine[:, column], theirs[:, column]).pvalue > 1e-3
    area, shape = mine[:, 2] * mine[:, 3], mine[:, 3] / mine[:, 2]
    assert stats.ks_2samp(area, theirs[:, 2] * theirs[:, 3]).pvalue > 1e-3
    assert stats.ks_2samp(shape, theirs[:, 3] / theirs[:, 2]).pvalue > 1e-3
    top, left, tall, wide = mine[:, :4].unbind(-1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    assert abs(float(mine[:, 4].mean()) - 0.5) < 0.03


@pytest.mark.parametrize(("height", "width"), [(4, 100), (100, 4)])
def test_where_no_crop_fits_it_is_the_central_one(height, width):
    augment = Augment(scale=(1.0, 1.0))
    expected = RandomResizedCrop.get_params(torch.zeros(1, height, width), [1.0, 1.0], list(augment.ratio))
    assert boxes_of(augment, height, width, 5)[:, :4].tolist() == [[float(x) for x in expected]] * 5


def test_padded_shifts_are_uniform_over_the_padding():
    augment = Augment(crop="padded", padding=4, flip=0.0)
    boxes = boxes_of(augment, 32, 32, 9000)
    assert set(boxes[:, 0].tolist()) == set(range(-4, 5))
    counts = np.bincount(boxes[:, 1].int().numpy() + 4, minlength=9)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert not boxes[:, 4].any()


def test_without_crop_and_flip_the_images_are_only_normalised():
    images = pictures()
    augment = DeviceAugment(Augment(crop="none", flip=0.0), SMALL, cached(images), seed=3)
    augment.start(0)
    got = augment(torch.arange(6))
    torch.testing.assert_close(got, normaliser(SMALL, images.device)(images.float()), atol=1e-4, rtol=0)


def test_an_image_s_crop_depends_on_seed_epoch_and_index_only():
    images = pictures(50)
    augment = DeviceAugment(Augment(), SMALL, cached(images), seed=3)
    augment.start(2)
    whole = augment(torch.arange(50))
    torch.testing.assert_close(augment(torch.tensor([17, 3])), whole[[17, 3]], atol=0, rtol=0)
    augment.start(3)
    assert not torch.equal(augment(torch.arange(50)), whole)
    other = DeviceAugment(Augment(), SMALL, cached(images), seed=4)
    other.start(2)
    assert not torch.equal(other(torch.arange(50)), whole)
    again = DeviceAugment(Augment(), SMALL, cached(images), seed=3)
    again.start(2)
    assert torch.equal(again(torch.arange(50)), whole)


def test_keys_of_neighbouring_samples_have_nothing_in_common():
    keys = {random_key("image", seed, epoch, index) for seed in range(3) for epoch in range(5) for index in range(200)}
    assert len(keys) == 3000
    assert all(0 <= key < 2**63 for key in keys)
    bits = np.array([[key >> bit & 1 for bit in range(63)] for key in keys])
    assert stats.chisquare(bits.sum(0), np.full(63, bits.sum() / 63)).pvalue > 1e-3


def test_no_two_uses_draw_the_same_numbers():
    numbers = [(1,), (1, 0), (1, 0, 0), (1, 1), (11,), (2**32,), (0, 1)]
    keys = {random_key(use, *some) for use in ("order", "image", "boxes", "network") for some in numbers}
    assert len(keys) == 4 * len(numbers)


def test_the_paper_s_training_transform_is_resized_crop_and_flip():
    whole = training_transform(Augment(), Preprocess())
    crop, flip, _ = whole.transforms
    assert isinstance(crop, v2.RandomResizedCrop)
    assert tuple(crop.size) == (224, 224)
    assert tuple(crop.scale) == (0.08, 1.0)
    assert tuple(crop.ratio) == pytest.approx((3 / 4, 4 / 3))
    assert isinstance(flip, v2.RandomHorizontalFlip)
    assert flip.p == 0.5
    assert whole(Image.new("RGB", (300, 200))).shape == (3, 224, 224)


def test_other_training_transforms():
    padded = training_transform(Augment(crop="padded"), Preprocess(resize=32, crop=32))
    assert padded(Image.new("RGB", (40, 50))).shape == (3, 32, 32)
    plain = training_transform(Augment(crop="none", flip=0.0), Preprocess(resize=40, crop=32))
    image = Image.fromarray(pictures(1, 60, 50)[0].permute(1, 2, 0).numpy())
    expected = np.asarray(tvf.center_crop(tvf.resize(image, 40), 32)).transpose(2, 0, 1)
    assert plain(image).dtype == torch.uint8
    assert np.array_equal(plain(image), expected)


def test_a_random_crop_needs_a_size():
    with pytest.raises(ValueError, match=r"`preprocess\.crop` or `preprocess\.resize` must be given"):
        training_transform(Augment(), SMALL)
