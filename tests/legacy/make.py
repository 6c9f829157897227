"""Make the files of this folder, with the version of sirc whose formats they are to show.

They were written by version 0.1.0 at commit cb99d46, before the code was sorted into packages:

    PYTHONPATH=/path/to/that/checkout/src python tests/legacy/make.py

`model.onnx` is younger: the graph of `support.tiny_selective` as commit c648fc0 exported it, when its digest did
not yet cover its weights.

`tests/test_old_files.py` holds today's code to them. Never make them anew with today's code: once a format has changed,
write the new one into a folder of its own and keep this one.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import sirc

FOLDER = Path(__file__).parent
SPECS = [
    "msp",
    "sirc(msp, residual)",
    "sirc(entropy, l1, a=-3.5, b=0.25)",
    "vim",
    "mahalanobis",
    "knn(k=3)",
    "bayes(msp, residual)",
    "max_logit_pnorm",
]
CLASSIFIER_SPEC = "sirc(entropy, residual)"
CLASSES = ["cat", "dog", "owl"]


def network():
    """A classifier whose weights lie in network.safetensors, beside rows to classify."""
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).eval()


def write_images(folder):
    """Write the images of the stored run; a BMP has the same size whichever library writes it."""
    for name, count, seed in (("images", 45, 0), ("held-out", 30, 1), ("grey", 12, 2)):
        random = np.random.default_rng(seed)
        for number in range(count):
            path = folder / name / "rgb"[number % 3] / f"{number:03}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 150, (16, 16, 3))
            pixels[..., number % 3] += 30
            Image.fromarray(pixels.astype(np.uint8)).save(path)


def of_network(model, x, *, labelled=True):
    """Outputs of the network; a label agrees with the largest logit about three times in four."""
    with torch.no_grad():
        features = model[:2](x)
        logits = model[2](features)
    random = np.random.default_rng(len(x))
    guesses = torch.from_numpy(random.integers(0, 3, len(x)))
    labels = torch.where(torch.from_numpy(random.random(len(x)) < 0.6), logits.argmax(1), guesses)
    return sirc.Outputs(logits, features, labels if labelled else None)


def numbers_of(values):
    return {name: value.tolist() for name, value in values.items()}


def make_scores(numbers):
    """Write a scorer, a calibrated classifier and outputs in every format, and note their numbers."""
    torch.manual_seed(0)
    model = network()
    train, val, test, ood = (of_network(model, torch.randn(n, 8)) for n in (300, 200, 40, 20))
    ood = sirc.Outputs(ood.logits, ood.features)
    x = torch.randn(25, 8)
    save_file({**model.state_dict(), "x": x}, FOLDER / "network.safetensors")
    test.save(FOLDER / "outputs.npz")
    ood.save(FOLDER / "outputs.safetensors")
    sirc.OutputStore.from_outputs(FOLDER / "store", test, shard_size=25)

    head = sirc.find_head(model, x)
    scorer = sirc.fit(SPECS, train, head=head, val=val, crossfit=3)
    scorer.save(FOLDER / "scorer.safetensors")
    numbers["confidences"] = {"test": numbers_of(scorer(test)), "ood": numbers_of(scorer(ood))}
    numbers["table"] = sirc.evaluate(scorer, test, {"ood": ood}).table.to_csv(index=False)

    one = sirc.fit(CLASSIFIER_SPEC, train, head=head)
    classifier = sirc.SelectiveClassifier(model, one, CLASSIFIER_SPEC, head=head, classes=CLASSES)
    classifier.calibrate(val, recall=0.8, delta=0.05)
    classifier.save(FOLDER / "classifier.safetensors")
    decision = classifier(x)
    numbers["decision"] = {
        "threshold": classifier.threshold.value,
        **{name: getattr(decision, name).tolist() for name in ("label", "confidence", "accepted", "logits")},
    }


def make_run(numbers):
    """Run a study of one seed to its end, and keep what it left but the page, which is large, and the images."""
    from sirc.cli import main

    folder = FOLDER / "study"
    write_images(folder / "data")
    os.chdir(folder)
    try:
        main(["run", "tiny.toml", "--no-figures", "--device", "cpu", "--quiet"])
    except SystemExit as stop:
        if stop.code:
            raise
    scorer = sirc.Scorer.load("runs/tiny/seed-1/scorer.safetensors")
    stores = {name: sirc.OutputStore(f"runs/tiny/seed-1/outputs/{name}") for name in ("test", "Grey", "Noise")}
    numbers["study"] = {name: numbers_of(scorer(store.load())) for name, store in stores.items()}
    Path("runs/tiny/report.html").unlink()
    shutil.rmtree("data")
    shutil.rmtree("__pycache__", ignore_errors=True)


if __name__ == "__main__":
    if any(FOLDER.glob("*.safetensors")):
        sys.exit(f"{FOLDER} has its files already")
    found = {"version": sirc.__version__}
    make_scores(found)
    make_run(found)
    (FOLDER / "numbers.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
