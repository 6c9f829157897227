# %% [markdown]
# # From guarantee to service
#
# In this tutorial you set a threshold with a guarantee, serve the classifier over HTTP, and watch it. A score only
# ranks inputs; a service needs a threshold, a promise about it, and an alarm for the day on which the promise no longer
# holds.
#
# Everything here takes seconds on a CPU, and nothing is downloaded. Install `torch-sirc[demo,serve]` to run it.

# %%
import io
import logging
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from fastapi.testclient import TestClient
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import sirc
from sirc.data import Preprocess
from sirc.deploy.monitor import Monitor
from sirc.deploy.serve import make_app

torch.manual_seed(0)
rng = np.random.default_rng(0)


def photograph(pixels):
    """Turn an 8 × 8 digit into a noisy RGB image, as from a poor camera."""
    noise = rng.normal(0, 0.25, pixels.shape)
    return Image.fromarray(np.clip(255 * (pixels / 16 + noise), 0, 255).astype(np.uint8)).convert("RGB")


digits = load_digits()
order = rng.permutation(len(digits.target))
photographs = [photograph(pixels) for pixels in digits.images[order]]
labels = torch.tensor(digits.target[order])
preprocess = Preprocess(resize=8, crop=8, mean=(0.3, 0.3, 0.3), std=(0.4, 0.4, 0.4))
images = torch.stack([preprocess.test()(image) for image in photographs])

model = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
)
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(6):
    for rows in torch.randperm(800).split(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()
model.eval()
with torch.no_grad():
    right = model(images[800:]).argmax(-1) == labels[800:]
print(f"right on {right.float().mean():.0%} of the other images")

# %% [markdown]
# ## Calibrate
#
# `calibrate` sets the threshold on validation rows that neither the model nor the score has seen. Here we ask for a
# risk: with probability 90%, at most 5% of the accepted inputs are wrong, for inputs like these.

# %%
train = torch.utils.data.TensorDataset(images[:800], labels[:800])
val = torch.utils.data.TensorDataset(images[800:1400], labels[800:1400])
names = [str(name) for name in range(10)]
guard = sirc.guard(model, train, val, classes=names, preprocess=preprocess)
guard.calibrate(val, risk=0.05, delta=0.1)
print(guard.threshold)

# %% [markdown]
# The picture shows where the threshold lies. To its right, errors are rare.

# %%
outputs = sirc.extract(model, val)
confidence = guard(images[800:1400]).confidence
figure, axes = plt.subplots(figsize=(7, 2.4))
for group, name, colour in ((outputs.correct, "ID✓", "#0072B2"), (~outputs.correct, "ID✗", "#D55E00")):
    axes.hist(confidence[group], bins=40, range=(-10, 10), label=name, color=colour, alpha=0.7)
axes.axvline(guard.threshold.value, color="black", linestyle="--", label="threshold")
axes.set(xlabel="confidence", ylabel="validation images")
axes.legend()

# %% [markdown]
# A promise that the data cannot support is refused: for a risk of 0.1% these rows are too few.

# %%
try:
    sirc.threshold.at_risk(confidence, outputs.correct, risk=0.001, delta=0.1)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Serve
#
# One ONNX file holds the network, the score, the threshold, the preprocessing and the calibration's confidences. `sirc
# serve model.onnx` makes a service of it; in Python, `make_app` returns the application.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of PyTorch's exporter
    logging.disable(logging.WARNING)
    guard.export_onnx("model.onnx", images[:4])
    logging.disable(logging.NOTSET)
app = make_app("model.onnx", state="monitor.safetensors", log="decisions.parquet")


def png(image):
    out = io.BytesIO()
    image.save(out, format="png")
    return out.getvalue()


with TestClient(app) as client:
    for image in photographs[1400:1404]:
        answer = client.post("/predict", content=png(image), headers={"Content-Type": "image/png"})
        print(answer.json()["decisions"][0])
    print(client.get("/monitor").json()["report"]["alarm"])

# %% [markdown]
# The service answers with a label and a decision, keeps a log, and compares the confidences with the calibration.
#
# ## Monitor
#
# In use there are no labels, but there are confidences. The monitor bets against the promise after every input; if
# nothing has changed, it raises an alarm with probability at most δ, however long you watch. Here, after some 400 usual
# images, somebody turns the camera by 90 degrees.

# %%
usual, turned = images[1400:], images[:400].rot90(1, (2, 3))
stream = torch.cat([guard(usual).confidence, guard(turned).confidence])
watch = Monitor(guard.calibration, guard.threshold, delta=0.05)
evidence = []
for value in stream:
    watch.update([float(value)])
    evidence.append(watch.report().e_value)
report = watch.report()
print(report)

# %%
figure, axes = plt.subplots(figsize=(7, 2.4))
axes.semilogy(np.maximum(evidence, 1e-3), color="#0072B2")
axes.axhline(2 / 0.05, color="black", linestyle="--", label="alarm")
axes.axvline(len(usual), color="#D55E00", label="the camera is turned")
axes.set(xlabel="input", ylabel="evidence (e-value)", ylim=(1e-3, 1e6))
axes.legend()

# %%
assert report.alarm
assert report.first_alarm >= len(usual)

# %% [markdown]
# After an alarm, look at the rejected inputs, and calibrate again on rows from the new situation.
#
# ## Where to go from here
#
# - What each promise covers: [guarantees](../concepts/guarantees.md), [thresholds](../threshold.md).
# - The service's limits, metrics and charts: [deployment](../deploy.md). Other homes: [hosting](../hosting.md).
# - The statistics of the alarm: [monitoring](../monitor.md).
