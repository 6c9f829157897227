"""The small networks: shapes, size, a head that is found, and learning that reaches every weight."""

import pytest
import torch

from sirc import find_head, models
from sirc.models import small

NETWORKS = [("resnet", 80), ("densenet", 84)]


@pytest.mark.parametrize(("name", "features"), NETWORKS)
def test_the_head_is_found_with_its_features(name, features):
    torch.manual_seed(0)
    model = models.build(f"sirc.models.small:{name}", num_classes=26).eval()
    x = torch.randn(3, 3, 32, 32)
    assert model(x).shape == (3, 26)
    head = find_head(model, x)
    assert head.weight.shape == (26, features)
    assert head.bias.shape == (26,)


@pytest.mark.parametrize(("name", "features"), NETWORKS)
def test_the_network_is_small(name, features):
    count = sum(p.numel() for p in getattr(small, name)().parameters())
    assert 40_000 < count < 200_000


@pytest.mark.parametrize(("name", "features"), NETWORKS)
def test_every_weight_gets_a_gradient(name, features):
    torch.manual_seed(0)
    model = getattr(small, name)(num_classes=5)
    torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.arange(8) % 5).backward()
    for key, weight in model.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.abs().max() > 0, key


@pytest.mark.slow
@pytest.mark.parametrize(("name", "features"), NETWORKS)
def test_a_few_steps_learn_a_few_images_by_heart(name, features):
    torch.manual_seed(0)
    model = getattr(small, name)(num_classes=4)
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(15):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_features_grow_with_the_width():
    x = torch.randn(2, 3, 32, 32)
    assert find_head(small.resnet(width=8).eval(), x).weight.shape == (26, 32)
    assert find_head(small.densenet(growth=8).eval(), x).weight.shape == (26, 42)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: small.resnet(width=0), "`width` must be a whole number ≥ 1; got 0"),
        (lambda: small.densenet(growth=-2), "`growth` must be a whole number ≥ 1; got -2"),
        (lambda: small.resnet(num_classes=0), "`num_classes` must be a whole number ≥ 1; got 0"),
    ],
)
def test_bad_sizes_are_refused_in_words(make, words):
    with pytest.raises(ValueError, match=words):
        make()
