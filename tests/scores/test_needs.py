"""What specs need of the data is known before a fit, and a score says when a network is not for it."""

import pytest
import torch

import sirc
from sirc.progress import Progress
from sirc.scores.needs import Needs

ALL = {"features", "train", "labels", "head", "val", "tuned"}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("msp", set()),
        ("l1", {"features"}),
        ("linear(msp, l1, c=1)", {"features"}),
        ("sirc(msp, max_logit, a=0, b=1)", set()),
        ("sirc(msp, max_logit)", {"train"}),
        ("mahalanobis_pp", {"features", "train", "labels"}),
        ("fdbd", {"features", "train", "head"}),
        ("vim", {"features", "train", "head"}),
        ("tempered_msp", {"tuned"}),
        ("tempered_msp(temperature=1)", set()),
        ("additive(max_logit_pnorm, l1)", {"features", "train", "tuned"}),
        ("bayes(msp, l1)", {"features", "train", "tuned"}),
        ("delta_knn", {"features", "val", "tuned"}),
        ("sirc(msp, delta_mahalanobis)", {"features", "train", "labels", "val", "tuned"}),
        ("both(msp, energy)", {"val", "tuned"}),
        ("both(msp, residual)", {"features", "train", "head", "val", "tuned"}),
        ("sirc(msp, l1, budget=0)", {"features", "train", "val", "tuned"}),
    ],
)
def test_needs_of_a_spec(spec, needs):
    found = Needs.of([spec])
    assert {name for name in ALL if getattr(found, name)} == needs
    assert Needs.of(["msp", spec]) == found


def test_needs_of_several_specs_are_those_of_all():
    found = Needs.of(["mahalanobis", "fdbd", "sirc(msp, l1, budget=1)"])
    assert all(getattr(found, name) for name in ALL)


class Notes(Progress):
    def __init__(self):
        self.told = []

    def note(self, text):
        self.told.append(text)


@pytest.mark.parametrize(
    ("features", "told"),
    [
        (torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), ["scale", "ash(percentile=80.0)"]),
        (torch.rand(60, 8, generator=torch.Generator().manual_seed(1)), []),
        (torch.rand(60, 8, generator=torch.Generator().manual_seed(2)) - 0.05, []),  # a little below 0: as after a SiLU
        (torch.zeros(60, 8), []),
    ],
    ids=["signed", "relu", "silu", "zero"],
)
def test_scores_for_a_relu_say_so_of_other_features(features, told):
    head = sirc.Head(torch.eye(4, 8))
    notes = Notes()
    outputs = sirc.Outputs(features @ head.weight.T, features)
    sirc.fit(["scale", "ash(percentile=80)", "energy"], outputs, head=head, progress=notes)
    assert [note.split("`")[1] for note in notes.told] == told
    assert all("transformers" in note for note in notes.told)
