"""Cost of a decision beyond the model: a selective ResNet-50 against its own bare forward.

Run it from a checkout: `PYTHONPATH=src python benchmarks/selective.py`. Weights and images are random; the scores are
fitted to random features, as their cost does not depend on what was learnt.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time

import torch
import torchvision
from _timing import Row, report, seconds, standard_options, synchronize, versus
from torch import nn

import sirc

_TURNS = 50  # of what a decision consists of
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


@torch.no_grad()
def parts_of_a_decision(device: torch.device) -> str:
    """What a decision about one image consists of, each part after a forward that has emptied the caches."""
    torch.manual_seed(0)
    model = torchvision.models.resnet50().eval().to(device)
    selective = sirc.SelectiveClassifier(model, scorer_of(model), SPECS[1], head="fc").to(device).set_threshold(0.0)
    images = torch.randn(1, 3, 224, 224, device=device)
    launched, done = [], []
    for _ in range(_TURNS):
        logits, features = selective.outputs(images)
        synchronize(device)
        start = time.perf_counter()
        selective.scoring.decide(logits, features)
        launched.append(time.perf_counter() - start)
        synchronize(device)
        done.append(time.perf_counter() - start)
    text = f"the score of one image, `{SPECS[1]}`: {1e6 * statistics.median(launched):.0f} µs until it is launched, "
    text += f"{1e6 * statistics.median(done):.0f} µs until it is there"
    graphs = [one._graph for one in selective.scoring._repeats._graphs.values()]
    if graphs:
        taken = min(seconds(lambda: [graphs[0].replay() for _ in range(_TURNS)], device) for _ in range(3)) / _TURNS
        text += f"; its graph, {_TURNS} in a row, {1e6 * taken:.0f} µs each"
    return text


def main() -> None:
    parser = standard_options(__doc__.splitlines()[0], "python benchmarks/selective.py", rows=16, repeats=9)
    parser.add_argument("--one", action="store_true", help="only one image at a time, with the model as it is")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = [row for batch in ((1,) if options.one else (1, options.rows)) for row in measure(options, device, batch)]
    if device.type == "cuda" and not options.one:
        rows += [row for batch in (1, options.rows) for row in measure(options, device, batch, compiled=True)]
    forwards = [1e3 * row.reference for row in rows[: len(SPECS)] if row.reference is not None]
    notes = [
        "one forward gives label, confidence and decision",
        f"the forward of one image took {min(forwards):.3g} to {max(forwards):.3g} ms, from row to row",
        parts_of_a_decision(device),
    ]
    report("Deciding: what it costs beyond the model.", rows, notes, options, device)


if __name__ == "__main__":
    main()
