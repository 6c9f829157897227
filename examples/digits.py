"""A first look, with no download: which score accepts only what a small digit classifier gets right?

Networks learn the digits 0–6 of scikit-learn's handwritten digits and then meet test digits (some of which they get
wrong: ID✗), the digits 7–9, patches of photographs, and noise, none of which belong to a class (OOD).

    python examples/digits.py --out runs/digits
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn

import sirc

SPECS = [
    *(f"sirc({s1}, {s2})" for s1 in ("msp", "entropy") for s2 in ("l1", "residual")),
    *("msp", "entropy", "l1", "residual", "energy", "gradnorm", "vim", "mahalanobis", "knn"),
]
CLASSES = 7
PIXEL_NOISE = 0.25


def load(rng: np.random.Generator) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Images in [0, 1] of 8×8 pixels, flattened: training and test digits, and the OOD sets."""
    digits = load_digits()
    images, labels = digits.data / 16, digits.target
    order = rng.permutation(np.flatnonzero(labels < CLASSES))
    train, test = order[:500], order[500:]
    photos = [photo.mean(-1) / 255 for photo in load_sample_images().images]
    patches = []
    for _ in range(1000):
        photo = photos[rng.integers(len(photos))]
        row, column = (int(rng.integers(side - 32)) for side in photo.shape)
        patches.append(photo[row : row + 32, column : column + 32].reshape(8, 4, 8, 4).mean((1, 3)).ravel())
    sets = {
        "train": images[train],
        "test": images[test],
        "digits 7–9": images[labels >= CLASSES],
        "photographs": np.stack(patches),
        "noise": rng.normal(0.5, rng.normal(size=(1000, 1)) ** 2, (1000, 64)).clip(0, 1),
    }
    # Noisy pixels, so that the networks err about as often as real ones do.
    noisy = {
        name: torch.tensor(x + rng.normal(0, PIXEL_NOISE, x.shape), dtype=torch.float32) for name, x in sets.items()
    }
    return noisy, torch.tensor(labels[train]), torch.tensor(labels[test])


def train_network(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    for _ in range(60):
        for batch in torch.randperm(len(images)).split(64):
            noise = PIXEL_NOISE / 2 * torch.randn(len(batch), 64)
            loss = nn.functional.cross_entropy(model(images[batch] + noise), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> sirc.Outputs:
    features = model[:-1](images)
    return sirc.Outputs(model[-1](features), features, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the table and the picture")
    parser.add_argument("--seeds", type=int, default=5, help="how many networks to train and average over")
    args = parser.parse_args()

    evaluations = []
    for seed in range(args.seeds):
        print(f"training network {seed + 1} of {args.seeds} …", file=sys.stderr)
        images, train_labels, test_labels = load(np.random.default_rng(seed))
        model = train_network(images["train"], train_labels, seed)
        head = sirc.find_head(model, images["test"][:2])
        scorer = sirc.fit(SPECS, outputs(model, images["train"], train_labels), head=head)
        test = outputs(model, images["test"], test_labels)
        ood = {name: outputs(model, x) for name, x in images.items() if name not in ("train", "test")}
        evaluations.append(sirc.evaluate(scorer, test, ood))

    results = sirc.combine(evaluations)
    error = results.loc[results["metric"] == "error", "mean"].iloc[0]
    table = results[results["metric"] == "auroc"].pivot(index="score", columns="negative", values="mean")
    table = table.rename(columns={"wrong": "ID✗"}).loc[SPECS, ["ID✗", *ood, "OOD mean"]]
    aurr = results[(results["metric"] == "aurr") & (results["negative"] == "pooled")].set_index("score")["mean"]
    table["AURR"] = aurr
    text = (
        "%AUROC against ID✓ (higher is better) and AURR × 100 at α = β = ½ (lower is better),\n"
        f"mean over {args.seeds} networks; ID error {100 * error:.1f}%\n\n"
    )
    text += (100 * table).rename_axis(index=None, columns=None).to_string(float_format="%.1f")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.txt").write_text(text + "\n", encoding="utf-8")
    results.to_csv(args.out / "results.csv", index=False)
    draw(scorer, test, ood, args.out / "plane.png")
    print(f"{text}\n\nwrote table.txt, results.csv and plane.png into {args.out}")


def draw(scorer: sirc.Scorer, test: sirc.Outputs, ood: dict[str, sirc.Outputs], path: Path) -> None:
    """The plane of S1 = −log(1 − max π) and S2 = residual, with the contours of MSP, ViM's kind, and SIRC."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    def plane(x: sirc.Outputs) -> tuple[np.ndarray, np.ndarray]:
        values = scorer(x)
        return values["msp"].numpy(), values["residual"].numpy()

    groups = {
        "ID✓": (plane(test[test.correct]), "#0072b2"),
        "ID✗": (plane(test[~test.correct]), "#d55e00"),
        "OOD": (tuple(np.concatenate(c) for c in zip(*(plane(x) for x in ood.values()), strict=True)), "#009e73"),
    }
    a, b = (float(scorer.parameters["sirc(msp, residual)"][key]) for key in "ab")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True, sharey=True, layout="constrained")
    low = np.percentile(groups["OOD"][0][1], 3)
    x, y = np.meshgrid(np.linspace(0, 10, 200), np.linspace(low, 0, 200))
    surfaces = {
        "MSP: features ignored": x,
        "SIRC: features heard where they are strange": x - np.logaddexp(0, b * (a - y)),
    }
    for axis, (title, z) in zip(axes, surfaces.items(), strict=True):
        for name, size, alpha in (("OOD", 5, 0.3), ("ID✓", 5, 0.5), ("ID✗", 16, 1.0)):
            (s1, s2), colour = groups[name]
            axis.scatter(s1, s2, s=size, color=colour, alpha=alpha, linewidths=0)
        axis.contour(x, y, z, levels=np.arange(0.5, 10, 1.5), colors="0.25", linewidths=0.8)
        axis.set(title=title, xlim=(0, 10), ylim=(low, 0), xlabel="S1: −log(1 − max π)")
        axis.title.set_fontsize(10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("S2: residual")
    for name, (_, colour) in groups.items():
        axes[0].scatter([], [], s=18, color=colour, label=name)
    axes[0].legend(loc="lower right", fontsize=9, framealpha=0.9, edgecolor="none")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
