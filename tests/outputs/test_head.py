"""A head is held against the outputs it is said to have made: another's is refused, a scaled one is told."""

import pytest
import torch

import sirc
from sirc import DataWarning, Head, Outputs


def network(rows=600, classes=10, features=64, dtype=torch.float32):
    make = torch.Generator().manual_seed(0)
    z = torch.randn(rows, features, generator=make).relu()
    weight, bias = torch.randn(classes, features, generator=make) / 8, torch.randn(classes, generator=make)
    return (z @ weight.T + bias).to(dtype), z.to(dtype), Head(weight.to(dtype), bias.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 1000])
def test_rounding_and_what_all_classes_share_accuse_no_head(dtype, classes):
    logits, z, head = network(classes=classes, features=512, dtype=dtype)
    head.check(Outputs(logits, z))
    head.check(Outputs(logits.float().log_softmax(-1).to(dtype), z))
    head.check(Outputs(logits))  # nothing to compare


def test_a_name_that_no_file_could_hold_is_refused():
    with pytest.raises(ValueError, match="`name` must be a layer's path, as text; got int"):
        Head([[1.0, 2.0]], None, 3)


def test_the_head_of_another_network_is_refused_before_anything_is_fitted():
    logits, z, head = network()
    other = Head(head.weight.flip(0), head.bias.flip(0))
    with pytest.raises(ValueError, match=r"`head` must give the logits from the features, W z \+ b; .* off by \d+"):
        sirc.fit("sirc(msp, residual)", Outputs(logits, z), head=other)
    sirc.fit("sirc(msp, l1)", Outputs(logits, z), head=other)  # which no score reads
    with pytest.raises(ValueError, match="`head` must give the logits"):
        head.check(Outputs(logits, z.flip(0)))
    with pytest.raises(ValueError, match="it maps 64 features to 10 logits, the data have 63 and 10"):
        head.check(Outputs(logits, z[:, 1:]))


@pytest.mark.parametrize(("scale", "bias", "figure"), [(0.5, True, "100%"), (2.0, True, "50%"), (1.0, False, r"\d+")])
def test_a_head_that_is_near_is_told_with_the_figure(scale, bias, figure):
    logits, z, head = network()
    near = head if bias else Head(head.weight)
    with pytest.warns(DataWarning, match=rf"`head` should give the logits .* off by {figure}"):
        near.check(Outputs(scale * logits, z))


def test_a_head_of_zeros_is_told_and_a_network_that_says_one_thing_is_not():
    logits, z, head = network()
    empty = Head(torch.zeros_like(head.weight))
    with pytest.warns(DataWarning, match="off by 100%"):
        empty.check(Outputs(logits, z))
    empty.check(Outputs(torch.zeros_like(logits), z))


@pytest.mark.parametrize("name", ["none.npz", "none.safetensors"])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"there is no file '.*{name}'"):
        Head.load(tmp_path / name)


def test_rows_that_differ_by_rounding_alone_are_no_other_s_logits():
    make = torch.Generator().manual_seed(0)
    head = Head(torch.randn(4, 6, generator=make), torch.randn(4, generator=make))
    features = torch.ones(50, 6) + 1e-8 * torch.rand(50, 6, generator=make)
    logits = features @ head.weight.T + head.bias + 1e-7 * torch.rand(50, 4, generator=make)
    head.check(sirc.Outputs(logits, features))
