"""One small job for each extra, run from an installed wheel with nothing else beside it: `python jobs.py EXTRA`."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import sirc

SIRC = Path(sys.executable).with_name("sirc")


def core() -> str:
    """Score, evaluate and calibrate on arrays."""
    train, val, test = (_rows(n, labelled=True) for n in (400, 300, 300))
    far = _rows(200, labelled=False)
    scorer = sirc.fit(["msp", "sirc(msp, residual)", "scod"], train, head=sirc.Head(torch.eye(5, 16)))
    evaluation = sirc.evaluate(scorer, test, ood={"far": far}, alpha=0.5, beta=0.5)
    page = evaluation.report("report.html")
    assert "plotly" in page.read_text(encoding="utf-8")
    threshold = sirc.threshold.at_recall(scorer(val)["scod"], val.correct, 0.9, delta=0.05)
    assert threshold.feasible
    test.save("test.npz")
    far.save("far.npz")
    _command("evaluate", "--id", "test.npz", "--ood", "far=far.npz", "--score", "msp", "--no-figures")
    return "fit, evaluate, page, threshold; sirc evaluate"


def vision() -> str:
    """Build networks of torchvision and timm, and run one over a folder of images."""
    _photos("photos")
    network = sirc.models.build("torchvision:mobilenet_v3_small", num_classes=3).eval()
    sirc.models.build("timm:test_resnet", num_classes=3)
    images = sirc.data.image_folder("photos", transform=sirc.data.Preprocess(resize=36, crop=32).test())
    outputs = sirc.extract(network, images, path="outputs")
    assert outputs.load().logits.shape == (24, 3)
    return "torchvision and timm networks, extraction of a folder"


def plots() -> str:
    """Draw and save a figure."""
    from sirc.report import figures

    scorer = sirc.Scorer(["msp", "energy"])
    evaluation = sirc.evaluate(scorer, _rows(300, labelled=True), ood={"far": _rows(200, labelled=False)})
    figures.save(figures.densities(evaluation, ["msp"]), "densities")
    assert {file.suffix for file in Path().glob("densities.*")} == {".pdf", ".svg", ".png"}
    return "a figure as PDF, SVG and PNG"


def onnx() -> str:
    """Export a guard, and let onnxruntime decide as PyTorch does."""
    from sirc.deploy.onnx import OnnxGraph

    guard, images = _guard()
    guard.export_onnx("model.onnx", images[:4])
    assert OnnxGraph("model.onnx")(images.numpy()).label.tolist() == guard(images).label.tolist()
    return "export, the same labels from onnxruntime"


def serve() -> str:
    """Start the service, and ask it about one image."""
    graph = _graph()
    photo = _photos("photos")[0]
    service = [SIRC, "serve", graph, "--port", "0", "--log", "decisions.parquet"]
    with subprocess.Popen(service, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            with urllib.request.urlopen(f"{address}/ready") as answer:
                assert answer.status == 200
            question = urllib.request.Request(f"{address}/predict", photo.read_bytes(), {"Content-Type": "image/png"})
            with urllib.request.urlopen(question) as answer:
                (decision,) = json.load(answer)["decisions"]
        finally:
            process.terminate()
    assert decision["class"] in ("lily", "rose", "tulip")
    assert [*Path("decisions.parquet").glob("*.parquet")]
    return "export, sirc serve, one decision over HTTP, its log"


def ray() -> str:
    """Decide about images in a pipeline of Ray Data."""
    import ray as engine

    from sirc.deploy import DecideImages

    graph = _graph()
    photos = [{"path": str(path), "bytes": path.read_bytes()} for path in _photos("photos")]
    engine.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    decided = engine.data.from_items(photos).map_batches(DecideImages(str(graph)), batch_size=8).take_all()
    engine.shutdown()
    assert len(decided) == 24
    assert not any(row["error"] for row in decided)
    return "24 images through map_batches"


def hub() -> str:
    """Push a guard to a Hub on this machine, and fetch it again."""
    import fake_hub

    guard, _ = _guard()
    with fake_hub.running() as server:
        os.environ |= {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": "hf_of_a_test", "HF_HUB_DISABLE_TELEMETRY": "1"}
        address = guard.push_to_hub("me/flowers")
        assert sirc.load_guard(address, guard.model).threshold == guard.threshold
    return "a guard pushed and fetched"


def mlflow() -> str:
    """Keep a graph as an MLflow model, and ask that."""
    import mlflow as library
    import pandas as pd

    from sirc.deploy import mlflow as graphs

    graph = _graph()
    graphs.save_model(graph, "flowers")
    photos = pd.DataFrame({"bytes": [path.read_bytes() for path in _photos("photos")]})
    assert (library.pyfunc.load_model("flowers").predict(photos)["error"] == "").all()
    return "a saved model, 24 decisions by pyfunc"


def video() -> str:
    """Cut a video into images."""
    import av
    import numpy as np

    from sirc.data.catalogue.colonoscopy import write_frames

    with av.open("video.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for _ in range(5):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert write_frames("video.mp4", "frames", "video") == 5
    return "a video cut into 5 images"


def tensorboard() -> str:
    """Train for an epoch, with a log."""
    from sirc.training import Augment, Train, train

    _photos("photos")
    images, small = sirc.data.image_folder("photos"), sirc.data.Preprocess(resize=12, crop=12)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 3))
    recipe = Train(epochs=1, batch_size=8, lr=0.05, workers=0, augment=Augment(scale=(0.5, 1.0)), tensorboard=True)
    train(network, images, recipe, Path("run"), seed=1, preprocess=small)
    assert [*Path("run", "tensorboard").glob("events.*")]
    return "an epoch of training, its log"


def demo() -> str:
    """Run the demo."""
    _command("demo", "--quiet")
    assert Path("sirc-demo", "findings.md").exists()
    assert Path("sirc-demo", "report.html").exists()
    assert [*Path("sirc-demo").rglob("*.pdf")]
    return "sirc demo: training, tables, figures, page"


def companions() -> str:
    """Find the head of a network of each library, or fit a score on its arrays."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras
    import lightning
    from peft import LoraConfig, get_peft_model
    from sklearn.linear_model import LogisticRegression
    from transformers import DistilBertConfig, DistilBertForSequenceClassification
    from ultralytics import YOLO

    from sirc.deploy.lightning import GuardCallback

    assert issubclass(GuardCallback, lightning.Callback)
    config = DistilBertConfig(vocab_size=100, dim=16, hidden_dim=32, n_layers=1, n_heads=2, num_labels=3)
    text = {"input_ids": torch.randint(100, (8, 8)), "attention_mask": torch.ones(8, 8, dtype=torch.long)}
    network = DistilBertForSequenceClassification(config).eval()
    assert sirc.find_head(network, text).name == "classifier"
    lora = get_peft_model(network, LoraConfig(target_modules=["q_lin", "classifier"])).eval()
    assert sirc.find_head(lora, text).name.endswith("classifier.base_layer")
    yolo = YOLO("yolo11n-cls.yaml")
    assert sirc.find_head(yolo, torch.randn(2, 3, 32, 32)).name == "model.10.linear"
    rows = _rows(100, labelled=True)
    model = LogisticRegression().fit(rows.features, rows.labels)
    outputs = sirc.Outputs(model.decision_function(rows.features), rows.features, rows.labels)
    sirc.fit("residual", outputs, head=sirc.Head(model.coef_, model.intercept_))
    network = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(5)])
    both = keras.Model(network.inputs[0], [network.outputs[0], network.layers[-1].input])
    kernel, bias = network.layers[-1].get_weights()
    outputs = sirc.Outputs(*both.predict(rows.features.numpy(), verbose=0), rows.labels)
    sirc.fit("residual", outputs, head=sirc.Head(kernel.T, bias))
    return "heads of transformers, peft, Ultralytics; arrays of scikit-learn and Keras; Lightning's callback"


def _rows(count: int, *, labelled: bool) -> sirc.Outputs:
    labels = torch.randint(5, (count,))
    features = (3 * torch.eye(5, 16)[labels] * labelled + torch.randn(count, 16)).relu()
    return sirc.Outputs(features[:, :5], features, labels if labelled else None)


def _photos(folder: str) -> list[Path]:
    """24 images in folders of three classes."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(24):
        path = Path(folder, "rgb"[number % 3], f"{number:02}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    return sorted(Path(folder).rglob("*.png"))


def _guard(preprocess: sirc.data.Preprocess | None = None) -> tuple[sirc.SelectiveClassifier, torch.Tensor]:
    """A guard of a small network, and the images that set its threshold."""
    layers = torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 3)).eval()
    images = torch.randn(700, 3, 16, 16) + torch.randn(700, 3, 1, 1)
    with torch.no_grad():
        labels = (model(images) + torch.randn(700, 3) / 20).argmax(-1)
    train, val = TensorDataset(images[:400], labels[:400]), TensorDataset(images[400:], labels[400:])
    return sirc.guard(model, train, val, classes=["lily", "rose", "tulip"], preprocess=preprocess), images[400:]


def _graph() -> Path:
    """The graph of such a guard, which also knows how to preprocess photographs."""
    guard, images = _guard(sirc.data.Preprocess(resize=16, crop=16))
    guard.export_onnx("model.onnx", images[:4])
    return Path("model.onnx").absolute()


def _command(*words: str) -> None:
    subprocess.run([SIRC, *words], check=True, stdout=subprocess.DEVNULL)


JOBS = {
    job.__name__: job
    for job in (core, vision, plots, onnx, serve, ray, hub, mlflow, video, tensorboard, companions, demo)
}

if __name__ == "__main__":
    torch.manual_seed(0)
    print(JOBS[sys.argv[1]]())
