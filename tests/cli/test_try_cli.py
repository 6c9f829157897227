"""`sirc try`: from a guard and its network to the page's address, and mistakes answered in words."""

import json
import queue
import urllib.request
import warnings
import webbrowser
from pathlib import Path

import pytest
import timm
from fastapi.testclient import TestClient

import sirc
from sirc.data import Preprocess, image_folder
from sirc.models import save_weights
from support.interpreters import Interpreter
from support.tiny_images import write_images

NETWORK = "timm:test_resnet=weights.safetensors"


def make(folder):
    """Write a guard, its network's weights, its training images and what was kept of them."""
    model = timm.create_model("test_resnet", num_classes=3)
    save_weights(model, folder / "weights.safetensors")
    write_images(folder / "train", 60)
    write_images(folder / "other", 21, seed=1)
    prepare = Preprocess(resize=12, crop=12)
    val = image_folder(write_images(folder / "val", 60, side=20, seed=2), transform=prepare.test())
    options = {"recall": 0.5, "delta": None, "preprocess": prepare, "path": folder / "kept", "progress": False}
    with warnings.catch_warnings(action="ignore", category=sirc.DataWarning):  # that it is untrained
        guard = sirc.guard(model, folder / "train", val, **options)
    guard.save(folder / "guard.safetensors")


@pytest.fixture
def here(once, monkeypatch):
    monkeypatch.chdir(once("tryout", make))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def started(monkeypatch):
    """What the command would serve, with the options of the server, and the pages that it opens."""
    made, opened = [], queue.Queue()

    def run(app, *, started, **options):
        started("http://127.0.0.1:1234")
        made.append((app, options))
        raise KeyboardInterrupt

    monkeypatch.setattr("sirc.deploy.tryout.run", run)
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.put(address) or True)
    return made, opened


@pytest.mark.usefixtures("here")
def test_the_address_is_printed_and_opened(command, started):
    code, out, err = command("try", "guard.safetensors", NETWORK, "--device", "cpu", "--quiet")
    assert (code, out, err) == (0, "http://127.0.0.1:1234\n", "")
    (((app, options),), opened) = started
    assert options == {"host": "127.0.0.1", "port": 0, "quiet": True}
    assert opened.get(timeout=60) == "http://127.0.0.1:1234"  # from a thread
    client = TestClient(app, base_url="http://localhost")
    assert client.get("/guard").json()["classes"] == 3
    assert TestClient(app, base_url="http://elsewhere").get("/guard").status_code == 403


@pytest.mark.usefixtures("here")
def test_training_images_are_known_by_what_the_guard_kept(command, started):
    near = ("--train", "train", "--outputs", "kept", "--no-open", "--host", "0.0.0.0", "--port", 80)
    code, _, err = command("try", "guard.safetensors", NETWORK, *near)
    assert code == 0, err
    (((app, options),), opened) = started
    assert (options["host"], options["port"], opened.empty()) == ("0.0.0.0", 80, True)
    body = Path("train/g/001.png").read_bytes()
    told = TestClient(app, base_url="http://elsewhere").post("/decide", files={"image": body}).json()
    assert told["nearest"][0]["file"] == "g/001.png"


@pytest.mark.usefixtures("here", "started")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("guard.safetensors", NETWORK, "--train", "train"), 2, "give both `--train FOLDER` and `--outputs STORE`"),
        (("guard.safetensors", NETWORK, "--outputs", "kept"), 2, "or neither: one alone shows nothing"),
        (("guard.safetensors", NETWORK, "--train", "other", "--outputs", "kept"), 1, "it has 60, the folder 21"),
        (("guard.safetensors", NETWORK, "--train", "val", "--outputs", "kept"), 1, "is a store from other data"),
        (("guard.safetensors", NETWORK, "--train", "nowhere", "--outputs", "kept"), 1, "'nowhere' does not exist"),
        (("guard.safetensors", NETWORK, "--train", "train", "--outputs", "val"), 1, "there is no store at 'val'"),
        (("guard.safetensors", "timm:test_resnet=none.pth"), 1, "none.pth"),
        (("guard.safetensors", NETWORK, "--seed", 1), 2, "`--seed` would do nothing"),
        (("weights.safetensors", NETWORK), 1, "is not a saved selective classifier"),
        (("none.safetensors", NETWORK), 1, "none.safetensors"),
    ],
)
def test_mistakes_are_answered_in_words(command, words, code, told):
    got, out, err = command("try", *words)
    assert (got, out) == (code, "")
    assert told in err.replace("\n", " ")


def test_help_has_an_example(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = command("try", "--help")
    assert code == 0
    assert "Example: sirc try guard.safetensors" in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_command_serves_until_it_is_stopped():
    server = Interpreter("-m", "sirc", "try", "guard.safetensors", NETWORK, "--no-open", "--quiet", "--device", "cpu")
    try:
        address = server.first_line()
        body = Path("train/b/002.png").read_bytes()
        request = urllib.request.Request(f"{address}/decide", body, {"Content-Type": "image/png"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["class"] in {"b", "g", "r"}
    finally:
        server.process.terminate()
        done = server.end(120)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{address}\n", "")
