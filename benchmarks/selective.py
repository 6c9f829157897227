"""Cost of a decision beyond the model: a selective ResNet-50 against its own bare forward.

Run it from a checkout: `PYTHONPATH=src python benchmarks/selective.py`. Weights and images are random; the scores are
fitted to random features, as their cost does not depend on what was learnt.
"""

from __future__ import annotations

import argparse
import copy
import gc

import torch
import torchvision
from _timing import Row, report, standard_options, versus
from torch import nn

import sirc

SPECS = ("msp", "sirc(entropy, residual)", "sirc(msp, l1, residual)", "vim", "mahalanobis")


def scorer_of(model: nn.Module) -> sirc.Scorer:
    head = sirc.find_head(model, torch.randn(2, 3, 64, 64, device=next(model.parameters()).device)).to("cpu")
    features = torch.rand(4000, head.num_features, generator=torch.Generator().manual_seed(0))
    bias = 0 if head.bias is None else head.bias
    labels = torch.arange(4000) % head.num_classes
    train = sirc.Outputs((features @ head.weight.T + bias).detach(), features, labels)
    return sirc.fit(list(SPECS), train, head=head, crossfit=0)


@torch.no_grad()
def measure(options: argparse.Namespace, device: torch.device, batch: int, *, compiled: bool = False) -> list[Row]:
    torch.manual_seed(0)
    model = torchvision.models.resnet50().eval().to(device)
    scorer = scorer_of(model)
    rows = []
    for spec in SPECS[:2] if compiled else SPECS:
        rows.append(against_its_forward(model, scorer, spec, batch, options, compiled=compiled))
        gc.collect()  # the hook of what was measured leaves the model now, and not while the next one is compiled
    return rows


def against_its_forward(
    model: nn.Module, scorer: sirc.Scorer, spec: str, batch: int, options: argparse.Namespace, *, compiled: bool
) -> Row:
    device = next(model.parameters()).device
    images = torch.randn(batch, 3, 224, 224, device=device)
    bare = copy.deepcopy(model)  # without the hook that catches features
    selective: nn.Module = sirc.SelectiveClassifier(model, scorer, spec, head="fc").to(device).set_threshold(0.0)
    if compiled:
        bare, selective = (torch.compile(part, mode="reduce-overhead") for part in (bare, selective))
    pair = versus(
        [lambda: selective(images)] * 2,
        [lambda: bare(images)] * 2,
        device=device,
        repeats=options.repeats,
        budget=60.0,
    )
    how = ", both compiled" if compiled else ""
    limit = 1.05 if device.type == "cuda" and batch == 1 and not compiled else 1.03
    what = f"decide on {batch} image{'s' if batch > 1 else ''} by `{spec}`, ResNet-50 at 224 px{how}"
    return Row(what, pair.ours, "its forward", pair.reference, pair.ratio, limit)


def main() -> None:
    parser = standard_options(__doc__.splitlines()[0], "python benchmarks/selective.py", rows=16, repeats=9)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = [row for batch in (1, options.rows) for row in measure(options, device, batch)]
    if device.type == "cuda":
        rows += [row for batch in (1, options.rows) for row in measure(options, device, batch, compiled=True)]
    notes = ["one forward gives label, confidence and decision"]
    report("Deciding: what it costs beyond the model.", rows, notes, options, device)


if __name__ == "__main__":
    main()
