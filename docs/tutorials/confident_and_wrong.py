# %% [markdown]
# # Is my classifier confident and wrong?
#
# In this tutorial you count how often a trained classifier is sure of a wrong answer, and then give it a reject option.
#
# In use, a classifier meets three kinds of input: those it gets right (ID✓), those it gets wrong (ID✗), and those that
# belong to none of its classes (out-of-distribution, OOD). It answers all three, often with a probability near 1.
#
# Everything here takes seconds on a CPU, and nothing is downloaded: the digits come with scikit-learn, and sirc draws
# the letters. Install `torch-sirc[demo]` to run it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import sirc
from sirc.data import glyphs

torch.manual_seed(0)


def noisy(images):
    """Add the noise of a poor camera."""
    return images + 0.3 * torch.randn_like(images)


digits = load_digits()
order = torch.randperm(len(digits.target))
clean = torch.tensor(digits.images).float()[order, None] / 16  # 1,797 images of 8 × 8 pixels
labels = torch.tensor(digits.target)[order]
images = noisy(clean)
train = TensorDataset(images[:800], labels[:800])
val = TensorDataset(images[800:1300], labels[800:1300])
test, test_labels = images[1300:], labels[1300:]

letters = glyphs.letters(count=500)  # an unknown class: the model has never seen a letter
small = np.stack([np.asarray(letters.image(i).convert("L").resize((8, 8))) for i in range(500)])
unknown = noisy(torch.tensor(small)[:, None].float() / 255)

# %% [markdown]
# ## Your model
#
# You can use any PyTorch classifier. This one is small, and trained in a few seconds.

# %%
model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(45):
    seen = noisy(clean[:800])
    for rows in torch.randperm(800).split(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(seen[rows]), labels[rows]).backward()
        optimiser.step()
model.eval()

with torch.no_grad():
    probability, predicted = model(test).softmax(-1).max(-1)
    probability_unknown = model(unknown).softmax(-1).amax(-1)
right = predicted == test_labels
print(f"right on {right.float().mean():.0%} of the new digits")

# %% [markdown]
# ## How sure is it when it is wrong?
#
# The largest softmax probability should be low where the model errs. It is lower, but not low enough: some errors are
# above 0.9, and so are some letters, which the model has never seen.

# %%
kinds = {"ID✓": probability[right], "ID✗": probability[~right], "OOD, letters": probability_unknown}
figure, panels = plt.subplots(1, 3, figsize=(9, 2.2), sharex=True)
for axes, (kind, values), colour in zip(panels, kinds.items(), ("#0072B2", "#D55E00", "#009E73"), strict=True):
    axes.hist(values, bins=20, range=(0, 1), color=colour)
    axes.set_title(f"{kind}: {(values > 0.9).float().mean():.0%} above 0.9")
    axes.set_xlabel("largest softmax probability")
panels[0].set_ylabel("images")
figure.tight_layout()

# %% [markdown]
# ## Let it say "I don't know"
#
# A guard needs the training data, to learn what is usual, and validation data that the model was not trained on, to set
# the threshold. It needs no OOD data. It promises that, with probability 95%, at least 90% of the inputs that the model
# gets right are accepted.

# %%
guard = sirc.guard(model, train, val, recall=0.9, delta=0.05)
print(guard)

# %% [markdown]
# ## Decisions
#
# Call the guard like the model. It returns a label, a confidence and a decision for each input. Compare the shares that
# it accepts with those of the softmax probability, at a threshold that accepts as many right predictions:

# %%
decision, decision_unknown = guard(test), guard(unknown)
recall = decision.accepted[right].float().mean()
cut = probability[right].quantile(1 - recall)


def share(accepted):
    return f"{accepted.float().mean():4.0%}"


print("accepted                ID✓   ID✗  letters")
print("softmax probability   ", *(share(values >= cut) + " " for values in kinds.values()))
print("guard                 ", share(decision.accepted[right]), "", share(decision.accepted[~right]), end="  ")
print(share(decision_unknown.accepted))

# %% [markdown]
# Both accept the same share of right predictions. The guard accepts far fewer letters: it keeps what the softmax says
# about errors, and adds what the features say about strange inputs. In return it accepts some more of the errors. You
# choose how much of one to give for the other: [α and β](../concepts/alpha-beta.md).
#
# Here are some of its decisions. A `?` is an abstention.

# %%
figure, panels = plt.subplots(2, 12, figsize=(9, 2))
for row, inputs, decided in zip(panels, (test, unknown), (decision, decision_unknown), strict=True):
    for axes, image, accepted, label in zip(row, inputs, decided.accepted, decided.label, strict=False):
        axes.imshow(image[0], cmap="gray")
        axes.set_title(str(int(label)) if accepted else "?", color="black" if accepted else "#D55E00")
        axes.axis("off")

# %% [markdown]
# ## Save it
#
# The file holds everything but the model, in a format that cannot run code.

# %%
guard.save("guard.safetensors")
again = sirc.load_guard("guard.safetensors", model)
assert torch.equal(again(test).accepted, decision.accepted)

# %% [markdown]
# ## Where to go from here
#
# - Your own model and folders of photographs: [quickstart](../quickstart.md), [the models you
#   have](../models-you-have.md).
# - Another score, or a mix of costs that you know: [which score for my α and β?](which_score.py)
# - What the promise covers, and what it does not: [guarantees](../concepts/guarantees.md).
