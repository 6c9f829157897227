# %% [markdown]
# # Which score for my α and β?
#
# In this tutorial you compare scores for all α and β, write a page on which you can drag both, and let sirc choose. No
# score is best for everyone: it depends on α, the share of inputs that belong to your classes, and on β, the cost of
# accepting an error, where accepting an input of an unknown class costs 1 − β.
#
# Everything here takes seconds on a CPU, and nothing is downloaded. Install `torch-sirc[demo]` to run it.

# %%
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import sirc
from sirc.data import glyphs
from sirc.report import figures

torch.manual_seed(0)


def noisy(images):
    """Add the noise of a poor camera."""
    return images + 0.3 * torch.randn_like(images)


def shrunk(source, count=500):
    """Shrink images of sirc's glyphs to the size of the digits."""
    grey = np.stack([np.asarray(source.image(i).convert("L").resize((8, 8))) for i in range(count)])
    return noisy(torch.tensor(grey)[:, None].float() / 255)


digits = load_digits()
order = torch.randperm(len(digits.target))
clean, labels = torch.tensor(digits.images).float()[order, None] / 16, torch.tensor(digits.target)[order]
features = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU()),
)
last = nn.Linear(64, 10)
optimiser = torch.optim.Adam([*features.parameters(), *last.parameters()], lr=2e-3)
for _ in range(15):
    seen = noisy(clean[:800])
    for rows in torch.randperm(800).split(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(last(features(seen[rows])), labels[rows]).backward()
        optimiser.step()

# %% [markdown]
# ## Outputs
#
# From here on sirc needs only numbers: logits, features (what the last layer receives) and labels. They may come from
# any framework. Three sets stand for inputs of no class: letters, photographs, and digits on their side.


# %%
@torch.no_grad()
def outputs(images, labels=None):
    received = features(images)
    return sirc.Outputs(last(received), received, labels)


images = noisy(clean)
train = outputs(images[:800], labels[:800])
test = outputs(images[800:], labels[800:])
ood = {
    "letters": outputs(shrunk(glyphs.letters(count=500))),
    "photos": outputs(shrunk(glyphs.photos(count=500))),
    "sideways": outputs(noisy(clean[:500].rot90(1, (2, 3)))),
}
print(f"{len(test)} test rows, {int((~test.correct).sum())} of them wrong")

# %% [markdown]
# ## Fit and evaluate
#
# Short specs name the scores. All of these learn from training data alone.

# %%
specs = ["msp", "energy", "vim", "sirc(msp, residual)", "scod"]
scorer = sirc.fit(specs, train, head=sirc.Head(last.weight, last.bias))
ev = sirc.evaluate(scorer, test, ood, alpha=0.5, beta=0.5)
auroc = ev.table.query("metric == 'auroc'").pivot(index="score", columns="negative", values="value")
(100 * auroc.loc[specs, ["wrong", *ood, "OOD mean"]]).round(1)

# %% [markdown]
# Each number is an AUROC in percent: how well a score separates right predictions from errors (`wrong`) and from each
# OOD set. Detectors such as `vim` win on OOD inputs and lose on errors. The curves show what that means for the risk,
# the cost of what is accepted, when half of the inputs are OOD:

# %%
figures.risks(ev, specs, alpha=0.5, beta=0.5)

# %% [markdown]
# ## Other shares, other costs
#
# The same evaluation answers for every α and β, exactly, without resampling. Here is AURR, the mean risk over all
# thresholds (lower is better), for three mixtures:

# %%
sweep = ev.sweep(alphas=[0.3, 0.6, 0.95], betas=[0.5]).query("metric == 'aurr' and negative == 'pooled'")
(100 * sweep.pivot(index="score", columns="alpha", values="value").loc[specs]).round(1)

# %% [markdown]
# Where nearly all input is of known classes (α = 0.95), errors decide, and `vim` is worse than the plain softmax. Where
# strange input is common, it is better. Are the differences larger than chance? `compare` uses the same rows for all
# scores and gives intervals for the differences:

# %%
versus = ev.compare("msp").query("metric == 'aurr' and negative == 'pooled'")
versus[["score", "difference", "low", "high"]].set_index("score").mul(100).round(1)

# %% [markdown]
# ## The page
#
# `report` writes one HTML file, which opens from disk. Drag α, β and the recall, and read what a choice does to 1000
# inputs. A map shows the best score for every α and β.

# %%
path = ev.report("report.html", title="Noisy digits")
print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Let sirc choose
#
# Give the ranges of α and β that you expect. `select` takes the score whose regret, the distance to the best score, is
# smallest in its worst case, and says "tie" where the data cannot tell.

# %%
choice = sirc.select(scorer, test, ood, alpha=(0.5, 0.95), beta=(0.3, 0.7))
print(choice)

# %% [markdown]
# ## Where to go from here
#
# - The words and symbols: [α and β](../concepts/alpha-beta.md), [SCOD in pictures](../concepts/scod.md).
# - All scores and what each needs: [scores](../scores.md). Details: [evaluation](../evaluate.md),
#   [selection](../select.md).
# - Set a threshold for the score that you chose: [from guarantee to service](guarantee_to_service.py).
