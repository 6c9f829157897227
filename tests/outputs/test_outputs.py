"""`Outputs` is validated once, shares memory, and comes back from disk as it was."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sirc.errors import StoreError
from sirc.outputs.outputs import Outputs


@pytest.fixture
def arrays():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(20, 5, generator=generator),
        torch.randn(20, 7, generator=generator),
        torch.randint(5, (20,), generator=generator),
    )


@pytest.fixture
def outputs(arrays):
    return Outputs(*arrays)


def same(a, b):
    def equal(x, y):
        return x is y if x is None or y is None else x.dtype == y.dtype and torch.equal(x, y)

    return all(equal(getattr(a, field), getattr(b, field)) for field in ("logits", "features", "labels"))


def refused(words, *args, error=ValueError, **keywords):
    with pytest.raises(error, match=words):
        Outputs(*args, **keywords)


def test_an_outputs_describes_itself(outputs):
    assert len(outputs) == 20
    assert (outputs.num_classes, outputs.num_features) == (5, 7)
    assert (outputs.device, outputs.dtype) == (torch.device("cpu"), torch.float32)
    assert repr(outputs) == "Outputs(20 rows, 5 classes, 7 features, labels, float32 on cpu)"
    bare = Outputs(outputs.logits)
    assert bare.features is bare.labels is bare.num_features is None
    assert repr(bare) == "Outputs(20 rows, 5 classes, no features, no labels, float32 on cpu)"


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.numpy()], ids=["torch", "numpy"])
def test_construction_shares_memory(arrays, convert):
    outputs = Outputs(*map(convert, arrays))
    for tensor, source in zip((outputs.logits, outputs.features, outputs.labels), arrays, strict=True):
        assert tensor.data_ptr() == source.data_ptr()


def test_predictions_and_correct_match_a_plain_loop(outputs):
    best = [max(range(5), key=row.__getitem__) for row in outputs.logits.tolist()]
    assert outputs.predictions.dtype == torch.int64
    assert outputs.predictions.tolist() == best
    assert outputs.predictions is outputs.predictions
    assert outputs.correct.dtype == torch.bool
    assert outputs.correct.tolist() == [a == b for a, b in zip(best, outputs.labels.tolist(), strict=True)]


def test_correct_needs_labels(arrays):
    with pytest.raises(ValueError, match=r"`correct` must have labels.*Outputs\(logits, features, labels\)"):
        _ = Outputs(arrays[0]).correct


def test_an_outputs_does_not_change(outputs):
    for field in ("logits", "features", "labels", "anything"):
        with pytest.raises(AttributeError):
            setattr(outputs, field, None)


def test_gradients_stop_here(arrays):
    logits, features, _ = arrays
    outputs = Outputs(logits.clone().requires_grad_(), features.clone().requires_grad_())
    assert not outputs.logits.requires_grad
    assert not outputs.features.requires_grad


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.uint32, torch.uint64])
def test_labels_of_any_integer_type_become_int64(arrays, dtype):
    logits, features, labels = arrays
    outputs = Outputs(logits, features, labels.to(dtype))
    assert outputs.labels.dtype == torch.int64
    assert torch.equal(outputs.labels, labels)


def test_one_row_of_two_classes_is_enough():
    outputs = Outputs([[0.5, 1.0]], [[2.0]], [1])
    assert (len(outputs), outputs.correct.tolist()) == (1, [True])


def test_bad_logits_are_refused(arrays):
    logits = arrays[0]
    refused(r"`logits` must have shape \(n, K\) with n ≥ 1, K ≥ 2; got \(5,\). .*`logits\[None\]`", logits[0])
    refused(r"K ≥ 2; got \(20, 1\)", logits[:, :1])
    refused(r"n ≥ 1, K ≥ 2; got \(0, 5\). Was everything filtered out", logits[:0])
    refused("`logits` must be float16, bfloat16, float32 or float64; got int64", logits.long())
    refused("`logits` must be .* got complex64", logits.to(torch.complex64))
    wrong = logits.clone()
    wrong[17, 4] = float("nan")
    wrong[18] = float("inf")
    refused(r"`logits` must be finite; got 6 NaN or infinite of 100 values, the first is nan at \[17, 4\]", wrong)


def test_bad_features_are_refused(arrays):
    logits, features, _ = arrays
    refused(
        r"`features` must have shape \(n, L\).*got \(20, 7, 1, 1\). Flatten or pool", logits, features[..., None, None]
    )
    refused("`features` must have as many rows as `logits`; got 19 and 20", logits, features[1:])
    refused("`features` must be float16.*got int64", logits, features.long())
    refused("`features` must hold numbers; got a tensor on the meta device", logits, features.to("meta"))
    wrong = features.clone()
    wrong[0, 6] = float("nan")
    refused(r"`features` must be finite; got 1 .*nan at \[0, 6\]", logits, wrong)


def test_bad_labels_are_refused(arrays):
    logits, features, labels = arrays
    logits = torch.zeros(20, 200)
    wrong = labels.clone()
    wrong[17] = 200
    rule = re.escape("`labels` must be in 0…199 for 200 logits; got 200 at row 17. Did you pass labels of another ")
    way_out = re.escape("class set, say ImageNet-1k? Number them as the logits are, or use `Outputs(..., classes=…)`.")
    refused(rule + way_out, logits, features, wrong)
    wrong[3] = -1
    refused("got -1 at row 3. Leave `labels` out", logits, features, wrong)
    refused("`labels` must be integers; got float32. Convert whole numbers", logits, None, labels.float())
    refused("`labels` must be integers; got bool", logits, None, labels > 2)
    refused("`labels` must have as many rows as `logits`; got 3 and 20", logits, None, labels[:3])
    refused(
        r"`labels` must have shape \(n,\).*got \(20, 5\). For one-hot labels, pass `labels.argmax\(1\)`",
        logits,
        None,
        torch.zeros(20, 5),
    )
    refused("`labels` must be integers; got strings. .*classes=…", logits, None, ["cat"] * 20)


def test_classes_translate_the_datasets_labels_into_columns():
    logits = torch.zeros(4, 3)
    for classes in ([281, 7, 999], np.array([281, 7, 999]), torch.tensor([281, 7, 999], dtype=torch.int16)):
        assert Outputs(logits, labels=[7, 999, 281, 7], classes=classes).labels.tolist() == [1, 2, 0, 1]
    names = Outputs(logits, labels=["n02", "n10", "n01", "n02"], classes=["n01", "n02", "n10"])
    assert names.labels.tolist() == [1, 2, 0, 1]
    objects = np.array(["b", "a", "a", "c"], dtype=object)
    assert Outputs(logits, labels=objects, classes=("c", "b", "a")).labels.tolist() == [1, 2, 2, 0]


def test_bad_classes_are_refused():
    logits = torch.zeros(2, 3)
    refused("`labels` must be among the 3 `classes`; got 8 at row 1. Drop", logits, labels=[7, 8], classes=[7, 9, 1])
    refused("among the 3 `classes`; got 'd' at row 0", logits, labels=["d", "a"], classes=["a", "b", "c"])
    refused(r"one label for each of the 3 logits.*got shape \(2,\)", logits, labels=[1, 2], classes=[1, 2])
    refused("all different; .* with 2 different labels", logits, labels=[1, 2], classes=[1, 2, 2])
    refused("both be integers or both be strings", logits, labels=[1, 2], classes=["1", "2", "3"])
    refused("`classes` must be integers; got float64", logits, labels=[1, 2], classes=[1.0, 2.0, 3.0])


def test_slices_are_views(outputs):
    part = outputs[5:9]
    assert len(part) == 4
    assert part.logits.data_ptr() == outputs.logits[5].data_ptr()
    assert part.features.data_ptr() == outputs.features[5].data_ptr()
    assert part.labels.data_ptr() == outputs.labels[5].data_ptr()
    assert outputs[-1].logits.data_ptr() == outputs.logits[19].data_ptr()


def test_rows_are_selected_as_in_numpy(outputs):
    logits = outputs.logits.numpy()
    mask = outputs.labels > 2
    for key in (slice(None), slice(3, None, 4), slice(None, None, -3), slice(7, 7), mask.numpy(), np.array([3, -1, 3])):
        assert np.array_equal(outputs[key].logits.numpy(), logits[key])
    for key in (mask, mask.tolist()):
        assert np.array_equal(outputs[key].logits.numpy(), logits[mask.numpy()])
    for key in ([3, 19, 3], torch.tensor([3, -1, 3]), torch.tensor([3, 19, 3], dtype=torch.uint8)):
        assert np.array_equal(outputs[key].logits.numpy(), logits[[3, 19, 3]])
    assert len(outputs[[]]) == 0
    assert np.array_equal(outputs[4].logits.numpy(), logits[4:5])
    assert np.array_equal(outputs[np.int64(-2)].labels.numpy(), outputs.labels.numpy()[-2:-1])
    assert len(list(outputs)) == 20


def test_bad_keys_are_refused(outputs):
    for key, words in [
        (20, "rows must be in 0…19; got 20"),
        (-21, "got -21"),
        ([0, 25], "got 25"),
        (torch.ones(19, dtype=torch.bool), r"a mask must have shape \(20,\), one value per row; got \(19,\)"),
        ([0.5], "an int, a slice, a mask or a 1-D integer index; got torch.float64"),
        (np.zeros((2, 2), int), r"of shape \(2, 2\). For columns, index `.logits`"),
    ]:
        with pytest.raises(IndexError, match=words):
            outputs[key]


def test_batches_cover_all_rows_in_order(outputs):
    parts = list(outputs.batches(8))
    assert [len(part) for part in parts] == [8, 8, 4]
    assert same(Outputs.cat(parts), outputs)
    with pytest.raises(ValueError, match="`batch_size` must be a whole number ≥ 1; got 0"):
        outputs.batches(0)


def test_moving_copies_only_what_changes(outputs):
    assert outputs.to("cpu") is outputs
    assert outputs.to(dtype=torch.float32) is outputs
    wide = outputs.to(dtype=torch.float64)
    assert (wide.dtype, wide.features.dtype, wide.labels.dtype) == (torch.float64, torch.float64, torch.int64)
    assert wide.labels.data_ptr() == outputs.labels.data_ptr()
    assert torch.equal(wide.logits, outputs.logits.double())
    mixed = Outputs(outputs.logits.half(), outputs.features)
    assert mixed.to(dtype=torch.float32).features.data_ptr() == outputs.features.data_ptr()


def test_moving_to_a_narrow_type_may_not_make_infinities():
    outputs = Outputs([[1.0, 70000.0]])
    with pytest.raises(
        ValueError, match=r"`logits.to\(float16\)` must be finite; got 1 .*inf at \[0, 1\].*float16 overflows"
    ):
        outputs.to(dtype=torch.float16)
    assert outputs.to(dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="`dtype` must be float16, bfloat16, float32 or float64; got int64"):
        outputs.to(dtype=torch.int64)


def test_batches_of_all_forms_become_outputs(arrays, outputs):
    assert Outputs.of(outputs) is outputs
    logits, features, labels = arrays
    assert same(Outputs.of({"logits": logits, "labels": labels}), Outputs(logits, labels=labels))
    assert same(Outputs.of((logits, features)), Outputs(logits, features))
    assert same(Outputs.of([logits, None, labels]), Outputs(logits, labels=labels))


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ({"logit": 1}, r"got a dict of \['logit'\]"),
        ({}, r"got a dict of \[\]"),
        ((), "got a tuple of 0 items"),
        ((1, 2, 3, 4), "got a tuple of 4 items"),
        (torch.zeros(2, 2), "got a Tensor"),
    ],
)
def test_other_batches_are_refused(batch, got):
    with pytest.raises(ValueError, match=rf"a batch must be an `Outputs`, a dict .*{got}. Wrap whole arrays"):
        Outputs.of(batch)


def test_only_like_parts_are_joined(arrays, outputs):
    assert Outputs.cat([outputs]) is outputs
    with pytest.raises(ValueError, match="`cat` must get at least one `Outputs`; got none"):
        Outputs.cat([])
    with pytest.raises(ValueError, match="part 1 differs from part 0: num_features is 7, got None, features_dtype"):
        Outputs.cat([outputs, Outputs(arrays[0], labels=arrays[2])])
    with pytest.raises(
        ValueError, match=r"dtype is torch.float32, got torch.float64, .* Convert with `.to\(dtype=…\)`"
    ):
        Outputs.cat([outputs, outputs.to(dtype=torch.float64)])


def test_copies_and_pickles_are_equal(outputs):
    assert same(copy.deepcopy(outputs), outputs)
    assert same(pickle.loads(pickle.dumps(outputs)), outputs)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("fields", [1, 2, 3])
def test_files_give_back_what_was_saved(tmp_path, outputs, arrays, suffix, dtype, fields):
    saved = Outputs(*arrays[:fields]).to(dtype=dtype)
    path = tmp_path / "new" / f"outputs{suffix}"
    if suffix == ".npz" and dtype == torch.bfloat16:
        with pytest.raises(
            ValueError, match=r"`.npz` must hold types NumPy knows; `logits` is bfloat16. Save as `.safe"
        ):
            saved.save(path)
        assert not path.exists()
        return
    saved.save(path)
    assert same(Outputs.load(path), saved)


def test_a_safetensors_file_is_read_by_its_own_library_and_written_the_same_each_time(tmp_path, outputs):
    outputs.save(tmp_path / "a.safetensors")
    outputs.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = load_file(tmp_path / "a.safetensors")
    assert torch.equal(loaded["features"], outputs.features)


def test_files_of_other_programs_are_loaded(tmp_path, arrays, outputs):
    logits, features, labels = arrays
    save_file({"logits": logits, "features": features, "labels": labels.int()}, tmp_path / "x.safetensors")
    np.savez(tmp_path / "x.npz", logits=logits, features=features, labels=labels, paths=np.array(["a"] * 20))
    assert same(Outputs.load(tmp_path / "x.safetensors"), outputs)
    assert same(Outputs.load(tmp_path / "x.npz"), outputs)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_an_existing_file_is_kept_unless_told(tmp_path, outputs, suffix):
    path = tmp_path / f"x{suffix}"
    outputs.save(path)
    with pytest.raises(FileExistsError, match=r"exists already. Pass `overwrite=True` to replace it"):
        outputs[:3].save(path)
    assert len(Outputs.load(path)) == 20
    outputs[:3].save(path, overwrite=True)
    assert len(Outputs.load(path)) == 3


def test_a_mapped_outputs_outlives_the_file_it_replaces(tmp_path, outputs):
    path = tmp_path / "x.safetensors"
    outputs.save(path)
    loaded = Outputs.load(path)
    loaded[::-1].save(path, overwrite=True)
    assert same(loaded, outputs)
    assert same(Outputs.load(path)[::-1], outputs)


@pytest.mark.parametrize("name", ["x.pt", "x", "x.pkl"])
def test_other_suffixes_are_refused(tmp_path, outputs, name):
    for act in (outputs.save, Outputs.load):
        with pytest.raises(ValueError, match=r"must end in `.npz` or `.safetensors`; got .*use `sirc.OutputStore`"):
            act(tmp_path / name)


def test_an_empty_selection_is_not_saved(tmp_path, outputs):
    with pytest.raises(ValueError, match="at least one row to be saved"):
        outputs[:0].save(tmp_path / "x.npz")


def test_loaded_data_are_validated(tmp_path):
    np.savez(tmp_path / "x.npz", logits=np.array([[1.0, np.nan]]))
    save_file({"logits": torch.tensor([[1.0, float("inf")]])}, tmp_path / "x.safetensors")
    for suffix in (".npz", ".safetensors"):
        with pytest.raises(ValueError, match="`logits` must be finite"):
            Outputs.load(tmp_path / f"x{suffix}")


def test_a_file_without_logits_lists_what_it_has(tmp_path):
    np.savez(tmp_path / "x.npz", np.zeros((2, 2)))
    save_file({"weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(StoreError, match=r"must have an array named `logits`; it has `arr_0`. Rename"):
        Outputs.load(tmp_path / "x.npz")
    with pytest.raises(StoreError, match=r"must have an array named `logits`; it has `weight`"):
        Outputs.load(tmp_path / "x.safetensors")


def test_a_missing_file_is_simply_missing(tmp_path):
    for suffix in (".npz", ".safetensors"):
        with pytest.raises(FileNotFoundError):
            Outputs.load(tmp_path / f"x{suffix}")


def test_pandas_labels_are_read_as_numbers_or_names():
    pandas = pytest.importorskip("pandas")
    assert Outputs(torch.zeros(3, 2), labels=pandas.Series([1, 0, 1])).labels.tolist() == [1, 0, 1]
    names = pandas.Series(["dog", "cat", "dog"])
    assert Outputs(torch.zeros(3, 2), labels=names, classes=["cat", "dog"]).labels.tolist() == [1, 0, 1]
    refused("`labels` must be integers; got strings", torch.zeros(3, 2), labels=names)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_outputs_live_on_a_gpu(tmp_path, arrays, outputs):
    logits, features, labels = arrays
    moved = Outputs(logits.cuda(), features.cuda(), labels)
    assert moved.labels.is_cuda
    assert moved.to("cuda") is moved
    assert torch.equal(moved.correct.cpu(), outputs.correct)
    assert same(moved[[3, -1]].to("cpu"), outputs[[3, -1]])
    assert same(moved[labels > 2].to("cpu"), outputs[labels > 2])
    with pytest.raises(IndexError, match="got 20"):
        moved[torch.tensor([20])]
    refused("`features` must be on the same device as `logits`; got cpu and cuda:0", logits.cuda(), features)
    refused(r"`logits` must be finite; got 100 NaN", torch.full((20, 5), float("nan"), device="cuda"))
    for suffix in (".npz", ".safetensors"):
        moved.save(tmp_path / f"x{suffix}")
        loaded = Outputs.load(tmp_path / f"x{suffix}", device="cuda")
        assert loaded.device.type == "cuda"
        assert same(loaded.to("cpu"), outputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 1000])
def test_probabilities_are_no_logits_and_their_logarithms_are(dtype, classes):
    logits = 3 * torch.randn(400, classes, generator=torch.Generator().manual_seed(0))
    refused("got probabilities: rows ≥ 0 that sum to 1", logits.softmax(-1).to(dtype))
    refused("got probabilities", logits.softmax(-1).numpy())
    for good in (logits, logits.abs(), logits.log_softmax(-1), logits.sigmoid()):
        Outputs(good.to(dtype))


@pytest.mark.parametrize("classes", [2, 200])
def test_probabilities_in_percent_or_rounded_as_in_a_table_are_told(classes):
    probabilities = (3 * torch.randn(400, classes, generator=torch.Generator().manual_seed(0))).softmax(-1)
    refused("got probabilities: rows ≥ 0 that sum to 1. Pass", (1000 * probabilities).round() / 1000)
    refused("got probabilities, in percent: rows ≥ 0 that sum to 100. Pass", 100 * probabilities)
    refused("got probabilities, in percent", (1000 * probabilities).round() / 10)
    Outputs(100 * torch.eye(10))


def test_probabilities_of_small_batches_are_told_where_the_batches_are_joined():
    batches = [Outputs(few) for few in torch.randn(16, 4).softmax(-1).split(4)]
    with pytest.raises(ValueError, match="got probabilities"):
        Outputs.cat(batches)


def test_few_rows_and_plain_choices_may_look_like_probabilities():
    Outputs([[0.25, 0.75]] * 7)
    Outputs(torch.eye(10))
    mixed = torch.full((20, 2), 0.5)
    mixed[11] = torch.tensor([1.5, -0.5])
    Outputs(mixed)
