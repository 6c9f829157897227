"""Labels that stand in another order than the outputs, or for other rows, are told; bad networks are not accused."""

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from sirc import DataWarning, Outputs, OutputStore, Scorer, evaluate
from sirc.outputs import doubt_of_store, warn_of_labels
from sirc.outputs.agreement import _renumbered


def network(rows, classes, accuracy, seed=0, labels=None):
    """Predictions of a network with this accuracy, whose mistakes prefer some classes, and the labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=rows) if labels is None else labels
    mistakes = random.choice(classes, size=rows, p=random.dirichlet(np.ones(classes)))
    return torch.from_numpy(np.where(random.random(rows) < accuracy, labels, mistakes)), torch.from_numpy(labels)


def warning(predictions, labels):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_labels("test", predictions, labels)
    return str(caught[0].message) if caught else ""


def as_text(classes):
    """The place of each class number among all of them sorted as text."""
    return torch.tensor(np.argsort(np.argsort([str(i) for i in range(classes)], kind="stable"), kind="stable"))


@pytest.mark.parametrize(("rows", "classes"), [(50_000, 1000), (2000, 1000), (120, 12)])
def test_numbers_sorted_as_text_are_told_with_both_accuracies(rows, classes):
    predictions, labels = network(rows, classes, 0.7, labels=np.sort(np.arange(rows) % classes))
    said = warning(predictions, as_text(classes)[labels])
    assert "give the order of the classes, `classes=…`" in said
    low, high = (float(word.split("%")[0]) for word in (said.split(" in ")[1], said.split(", and in ")[1]))
    assert low < 25
    assert high > 40  # 1,000 rows of 1,000 classes teach a match of which 0.7² is right


def test_numbers_sorted_as_text_are_told_with_one_row_for_each_class():
    predictions, labels = network(1000, 1000, 0.9, labels=np.arange(1000))
    assert "and in 91.0%" in warning(predictions, as_text(1000)[labels])
    assert not warning(predictions, labels)


def test_a_network_trained_on_numbers_sorted_as_text_is_told_with_one_row_for_each_class():
    predictions, labels = network(1000, 1000, 0.9, labels=np.arange(1000))
    said = warning(as_text(1000)[predictions], labels)
    assert "and in 91.0% if the classes are numbered differently" in said


@pytest.mark.parametrize(("rows", "classes"), [(1000, 1000), (300, 10)])
def test_a_count_from_one_is_told_even_with_one_row_for_each_class(rows, classes):
    predictions, labels = network(rows, classes, 0.7, labels=np.arange(rows) % classes)
    assert "if every label is one higher. Probably one of the two counts from 1" in warning(predictions + 1, labels)
    assert "if every label is one lower. Probably one of the two counts from 1" in warning(predictions, labels + 1)
    assert not warning(predictions, labels)


def test_a_class_that_the_labels_lack_is_told_as_another_numbering_where_it_can_be_learnt():
    predictions, labels = network(3000, 100, 0.7, labels=np.arange(3000) % 99)
    said = warning(predictions + (predictions >= 30), labels)  # class 30 is missing
    assert "if the classes are numbered differently" in said
    few = network(99, 100, 0.9, labels=np.arange(99))
    assert "or the labels lack a class" in warning(few[0] + (few[0] >= 10), few[1])


def test_two_classes_that_changed_places_are_told():
    predictions, labels = network(1000, 10, 0.9)
    swapped = torch.tensor([1, 0, *range(2, 10)])[labels]
    assert "numbered differently" in warning(predictions, swapped)


@pytest.mark.parametrize(("rows", "classes"), [(2000, 2), (500, 10), (5000, 1000)])
def test_labels_of_other_rows_are_told_as_chance(rows, classes):
    predictions, labels = network(rows, classes, 0.8)
    shuffled = labels[torch.randperm(rows, generator=torch.Generator().manual_seed(0))]
    assert "as chance would" in warning(predictions, shuffled)


@pytest.mark.parametrize("rows", [200, 2000])
def test_folders_of_only_some_classes_are_told(rows):
    some = np.arange(0, 1000, 5)
    place = np.arange(rows) % len(some)  # the classes of even rows are not those of odd ones: no match can be learnt
    predictions, _ = network(rows, 1000, 0.7, labels=some[place])
    said = warning(predictions, torch.from_numpy(place))
    assert "of them are of classes beyond 199, the highest label. If the folders are only some" in said
    assert said.endswith("number the labels as its outputs are, or give the order of all its classes, `classes=…`.")


def test_a_network_that_says_one_class_is_told_even_of_few_rows():
    labels = torch.arange(90) % 3
    said = warning(torch.ones(90, dtype=torch.int64), labels)
    assert "agree with its labels in 33.3% of 90 rows, as all predictions are of one class, 1. The weights or" in said
    assert not warning(torch.zeros(90, dtype=torch.int64), labels.clamp(max=0))  # there is one class alone
    assert not warning(torch.zeros(90, dtype=torch.int64), (torch.arange(90) < 20).long())  # which few have


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize(("rows", "known"), [(20, 0.9), (200, 0.4), (200, 0.9), (5000, 0.1), (5000, 0.4)])
def test_a_bad_but_honest_network_is_not_accused(rows, known, classes):
    for seed in range(20):  # it knows some rows, and guesses the others
        assert not warning(*network(rows, classes, known, seed))


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_few_rows_accuse_nobody(classes):
    for seed in range(20):
        predictions, labels = network(20, classes, 0.5, seed)
        assert not warning(predictions, (labels + 1) % classes)
        assert not warning(predictions, labels.flip(0))


def test_images_chosen_to_be_missed_are_no_chance():
    predictions, labels = network(5000, 20, 0.0)
    missed = predictions != labels
    assert not warning(predictions[missed], labels[missed])


@pytest.mark.parametrize("accuracy", [0.3, 0.7])
def test_the_quick_match_of_classes_is_as_good_as_the_best(accuracy):
    predictions, labels = network(4000, 50, accuracy)
    labels = torch.randperm(50, generator=torch.Generator().manual_seed(1))[labels]
    table = np.zeros((50, 50))
    np.add.at(table, (predictions.numpy(), labels.numpy()), 1)
    best = table[linear_sum_assignment(-table)].sum()
    assert (_renumbered(predictions, labels, predictions) == labels).sum() >= 0.99 * best


def test_a_store_is_judged_by_shards_from_all_of_it(tmp_path):
    predictions, labels = network(400, 20, 0.9, labels=np.sort(np.arange(400) % 20))
    logits = torch.nn.functional.one_hot(predictions, 20).float() * 5
    bad = Outputs(logits, labels=3 * labels % 20)
    for name, outputs in {"bad": bad, "good": Outputs(logits, labels=labels), "bare": Outputs(logits)}.items():
        store = OutputStore.from_outputs(tmp_path / name, outputs.batches(25), size=400, shard_size=25)
        assert ("numbered differently" in doubt_of_store("val", store)) == (name == "bad")
        assert bool(doubt_of_store("val", store)) == (name == "bad")


def test_evaluate_tells_in_python_and_on_the_command_line(tmp_path, command):
    predictions, labels = network(400, 20, 0.9)
    bad = Outputs(torch.nn.functional.one_hot(predictions, 20) + torch.rand(400, 20), labels=as_text(20)[labels])
    with pytest.warns(DataWarning, match="the predictions for 'test' agree with its labels"):
        evaluate(Scorer(["msp"]), bad)
    bad.save(tmp_path / "id.npz")
    files = ("--id", tmp_path / "id.npz", "--out", tmp_path / "out")
    code, _, err = command("evaluate", *files, "--no-figures", "--quiet")
    assert code == 0
    assert err.startswith("warning: the predictions for 'test' agree with its labels in ")
    assert err.count("warning") == 1
