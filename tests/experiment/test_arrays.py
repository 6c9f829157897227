"""Arrays of any framework become tensors without a copy, and the shared checks say what is wrong."""

import numpy as np
import pytest
import torch

from sirc._utils.arrays import as_tensor
from sirc._utils.checks import (
    check_finite,
    check_floating,
    check_labels,
    check_positive,
    check_same_device,
    check_same_length,
    check_shape,
    check_unit_interval,
)


class OnlyDLPack:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


class OnlyArray:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class UnwillingDLPack(OnlyArray):
    def __dlpack__(self, **keywords):
        raise BufferError("read-only")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_])
def test_numpy_memory_is_shared(dtype):
    array = np.ones((3, 2), dtype)
    tensor = as_tensor("x", array)
    assert tensor.data_ptr() == array.ctypes.data
    assert np.array_equal(tensor.numpy(), array)


def test_a_read_only_array_is_shared_without_a_warning_and_stays_read_only():
    array = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    tensor = as_tensor("x", array.T)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert not array.flags.writeable


def test_a_tensor_keeps_the_memory_of_its_read_only_source_alive():
    array = np.full(1_000_000, 7.0)
    array.flags.writeable = False
    tensor = as_tensor("x", array)
    del array
    junk = [np.zeros(1_000_000) for _ in range(8)]
    assert tensor.eq(7).all()
    assert len(junk) == 8


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3)[::-1],
        np.arange(6.0).reshape(2, 3)[:, ::-1],
        np.arange(6).astype(">f4").reshape(2, 3),
        np.array([(1.5, 1), (2.5, 2)], dtype=[("a", "f4"), ("b", "i1")])["a"],
    ],
    ids=["negative rows", "negative columns", "big-endian", "unaligned stride"],
)
def test_layouts_torch_does_not_know_are_copied_faithfully(array):
    assert as_tensor("x", array).tolist() == array.tolist()


def test_bfloat16_from_ml_dtypes_is_shared():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.5, -2.0], [0.25, 3.0]], ml_dtypes.bfloat16)
    array.flags.writeable = False
    tensor = as_tensor("x", array)
    assert tensor.dtype == torch.bfloat16
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == [[1.5, -2.0], [0.25, 3.0]]


def test_a_dlpack_array_is_shared():
    source = torch.randn(4, 3)
    tensor = as_tensor("x", OnlyDLPack(source))
    assert tensor.data_ptr() == source.data_ptr()
    assert torch.equal(tensor, source)


@pytest.mark.parametrize("kind", [OnlyArray, UnwillingDLPack])
def test_an_array_protocol_is_shared_also_where_dlpack_refuses(kind):
    source = np.random.default_rng(0).normal(size=(4, 3))
    assert as_tensor("x", kind(source)).data_ptr() == source.ctypes.data


def test_a_pandas_frame_is_read():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert as_tensor("x", frame).tolist() == [[1, 3], [2, 4]]


def test_tensors_are_detached_and_shared():
    source = torch.nn.Parameter(torch.randn(3))
    tensor = as_tensor("x", source)
    assert not tensor.requires_grad
    assert type(tensor) is torch.Tensor
    assert tensor.data_ptr() == source.data_ptr()


def test_lists_keep_python_precision():
    assert as_tensor("x", [[0.1, 2.0]]).dtype == torch.float64
    assert as_tensor("x", [1, 2]).dtype == torch.int64
    assert as_tensor("x", [torch.zeros(2), torch.ones(2, requires_grad=True)]).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "`x` must be an array of numbers torch can hold; got NoneType of dtype object"),
        ("text", "`x` must be an array of numbers torch can hold; got str"),
        ([[1.0], [2.0, 3.0]], "`x` must be an array of numbers; got list.*Give every row the same length"),
        ([torch.ones(1), torch.ones(2)], "`x` must be one array; got a list of tensors that do not stack"),
        (np.array([1, None]), "got ndarray of dtype object. Convert it"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "`x` must have no masked values; got 1"),
        (torch.eye(2).to_sparse(), r"`x` must be a dense tensor; got torch.sparse_coo. Use `x.to_dense\(\)`"),
    ],
    ids=["none", "string", "ragged", "ragged tensors", "objects", "masked", "sparse"],
)
def test_what_is_no_array_of_numbers_is_refused_in_words(value, words):
    with pytest.raises(ValueError, match=words):
        as_tensor("x", value)


def test_a_dlpack_producer_that_refuses_and_has_no_array_is_named():
    class Broken:
        def __dlpack__(self, **keywords):
            raise BufferError("no thanks")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(ValueError, match=r"`x` could not be read through DLPack: no thanks. Convert it to a NumPy"):
        as_tensor("x", Broken())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("turned", [False, True])
def test_one_bad_value_anywhere_is_found(dtype, bad, turned):
    for row, column in ((0, 0), (37, 5), (99, 16)):
        x = torch.zeros(17, 100, dtype=dtype).t() if turned else torch.zeros(100, 17, dtype=dtype)
        check_finite("x", x)
        x[row, column] = bad
        with pytest.raises(ValueError, match=rf"got 1 NaN or infinite of 1700 .* {bad} at \[{row}, {column}\]"):
            check_finite("x", x)


def test_bad_values_are_counted_and_the_first_is_named():
    x = torch.zeros(50, 4)
    x[31, 2] = float("nan")
    x[49] = float("inf")
    with pytest.raises(ValueError, match=r"got 5 NaN or infinite of 200 values, the first is nan at \[31, 2\]"):
        check_finite("x", x)
    check_finite("x", x[:31].t())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_finite_values_pass_though_their_sum_overflows(dtype):
    check_finite("x", torch.full((1000, 10), torch.finfo(dtype).max, dtype=dtype))


def test_numbers_and_empty_arrays_can_be_checked():
    check_finite("x", torch.tensor(1.0))
    check_finite("x", torch.empty(0, 3))
    with pytest.raises(ValueError, match=r"the first is nan at \[0\]"):
        check_finite("x", torch.tensor(float("nan")))


@pytest.mark.parametrize("value", [0, 1, 0.5, [0.0, 1.0], np.linspace(0, 1, 5), torch.tensor([[0.1, 0.2]])])
def test_shares_lie_in_the_unit_interval(value):
    check_unit_interval("alpha", value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.5, r"`alpha` must lie in \[0, 1\]; got 1.5. Pass a fraction, not a percentage"),
        (-1e-9, r"got -1e-09"),
        (float("nan"), r"got nan\."),
        ([0.1, 0.2, 50], r"got 50 at index 2"),
    ],
)
def test_shares_outside_are_refused(value, words):
    with pytest.raises(ValueError, match=words):
        check_unit_interval("alpha", value)


@pytest.mark.parametrize("value", [0, -3, 2.5, True, "8", None])
def test_counts_are_whole_and_positive(value):
    with pytest.raises(ValueError, match=r"`batch_size` must be a whole number ≥ 1; got .*Pass an int"):
        check_positive("batch_size", value)


def test_a_numpy_count_becomes_an_int():
    assert type(check_positive("n", np.int32(3))) is int


def test_the_other_checks_state_rule_finding_and_way_out():
    x, y = torch.zeros(3, 2), torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"`x` must have shape \(n,\) with n ≥ 1; got \(3, 2\). Flatten it."):
        check_shape("x", x, n=1, hint="Flatten it.")
    with pytest.raises(ValueError, match=r"`x` must have shape \(n, K\) with n ≥ 1, K ≥ 3; got \(3, 2\). Hm."):
        check_shape("x", x, n=1, K=3, hint="Hm.")
    with pytest.raises(ValueError, match=r"`x` must be float16, bfloat16, float32 or float64; got int64. Use float32"):
        check_floating("x", x.long())
    with pytest.raises(ValueError, match=r"`x` must have as many rows as `y`; got 3 and 4. Pass both"):
        check_same_length("x", x, "y", y)
    with pytest.raises(ValueError, match=r"`x` must be on the same device as `y`; got meta and cpu. Use `x.to\(y.dev"):
        check_same_device("x", x.to("meta"), "y", y)
    with pytest.raises(ValueError, match=r"`y` must be in 0…1 for 2 logits; got 2 at row 1. Did you pass"):
        check_labels("y", torch.tensor([0, 2, 3]), 2)
    with pytest.raises(ValueError, match=r"got -1 at row 2. Leave `labels` out for data that has none"):
        check_labels("y", torch.tensor([0, 1, -1]), 2)
