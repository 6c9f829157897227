"""Guards on the Hub: the real client pushes to a Hub on this machine and fetches from it, and errors are told."""

import sys
from functools import cache

import pytest
import torch
import yaml
from torch import nn

import sirc
from sirc.errors import StoreError
from support.tiny_images import write_images
from support.tiny_selective import NETWORK, calibrated, prepared


@cache
def guard():
    return calibrated()


def model():
    return guard().model


def card_of(hub, repo="me/flowers", name="README.md"):
    return hub.repos[repo][-1][1][name].decode()


def test_a_guard_comes_back_from_the_hub_as_it_was_pushed(hub):
    address = guard().push_to_hub("me/flowers")
    ((commit, files),) = hub.repos["me/flowers"]
    assert address == f"hf://me/flowers@{commit}"
    assert set(files) == {"guard.safetensors", "README.md"}
    images = torch.from_numpy(prepared(5))
    for place in ("hf://me/flowers", address, "hf://me/flowers@main"):
        again = sirc.load_guard(place, model())
        assert str(again) == str(guard())
        assert torch.equal(again(images).confidence, guard()(images).confidence)
    assert guard().push_to_hub("flowers") != address  # the owner is who is logged in
    assert len(hub.repos["me/flowers"]) == 2


def test_the_newest_is_loaded_and_a_revision_stays_what_it_was(hub):
    first = guard().push_to_hub("me/flowers")
    other = calibrated()
    other.set_threshold(2.5).push_to_hub("me/flowers")
    assert sirc.load_guard("hf://me/flowers", model()).threshold.value == 2.5
    assert sirc.load_guard(first, model()).threshold == guard().threshold
    with pytest.raises(StoreError, match="'hf://me/flowers' was calibrated for another model"):
        sirc.load_guard("hf://me/flowers", nn.Linear(2, 3))


def test_the_lines_of_the_card_load_the_guard(hub, tmp_path, monkeypatch):
    (tmp_path / "of_the_card.py").write_text(NETWORK, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    guard().push_to_hub("me/flowers", network="of_the_card:network")
    (block,) = [part.split("```")[0] for part in card_of(hub).split("```python\n")[1:]]
    assert len(block.splitlines()) == 3
    seen = {"images": torch.from_numpy(prepared(5))}
    exec(block, seen)
    assert torch.equal(seen["accepted"], guard()(seen["images"]).accepted)


def test_the_card_says_what_is_promised_and_what_is_not(hub):
    guard().push_to_hub("me/flowers")
    _, front, text = card_of(hub).split("---\n", 2)
    about = yaml.safe_load(front)
    assert about["library_name"] == "sirc"
    assert about["pipeline_tag"] == "image-classification"
    assert "out-of-distribution-detection" in about["tags"]
    lines = str(guard()).splitlines()
    promise, cannot = (
        text.split(f"## What it {what}\n\n")[1].split("\n")[0] for what in ("promises", "cannot promise")
    )
    assert lines[2] == f"Promise: {promise}"
    assert lines[-1].lower() == f"cannot promise: {cannot}".lower()
    assert "The 3 classes: red, green, blue." in text
    assert 'sirc.load_guard("hf://me/flowers", model)' in text
    assert f"`{sirc.models.fingerprint(model())}`" in text
    assert "model.onnx" not in text


def test_names_on_the_card_are_text():
    from sirc.deploy.hub import card

    made = calibrated(classes=["<script>", "a\nb", "[c](http://x)"])
    made.remarks = ("The validation rows lack 2 of 3 classes: [c](http://x), WWW.x.org.",)
    text = card(made, "me/x", network='a"b', graph=False).decode()
    assert "<script>" not in text
    assert r"&lt;script&gt;, a b, \[c\](http\://x)." in text
    assert "[c](" not in text.replace("\\", "\0").replace("\0[c\0](", "")
    assert r"\[c\](http\://x), WWW\.x.org." in text
    assert 'sirc.load_guard("hf://me/x", \'a"b\')' in text


def test_the_card_of_a_model_that_lies_there_stays(hub):
    hub.repos["me/model"] = [("1" * 40, {"README.md": b"# My own words", "weights.safetensors": b""})]
    guard().push_to_hub("me/model")
    assert card_of(hub, "me/model") == "# My own words"
    assert "## What it promises" in card_of(hub, "me/model", "GUARD.md")
    guard().push_to_hub("me/flowers")
    other = calibrated()
    other.set_threshold(2.5).push_to_hub("me/flowers")
    assert "at least 2.5." in card_of(hub)
    assert set(hub.repos["me/flowers"][-1][1]) == {"guard.safetensors", "README.md"}


@pytest.mark.slow
def test_the_graph_of_this_guard_is_pushed_too_and_no_other(hub, graph):
    guard().push_to_hub("me/flowers", onnx=graph)
    assert hub.repos["me/flowers"][-1][1]["model.onnx"] == graph.read_bytes()
    assert "`model.onnx` has the network in it" in card_of(hub)
    with pytest.raises(ValueError, match=r"`onnx` must be this guard as a graph; .* Export it again"):
        calibrated().set_threshold(2.5).push_to_hub("me/other", onnx=graph)
    assert "me/other" not in hub.repos


def test_nothing_but_the_guard_is_fetched(hub):
    guard().push_to_hub("me/flowers")
    hub.repos["me/flowers"][-1][1].update({"model.py": b"raise SystemExit", "config.json": b"{}"})
    hub.asked.clear()
    sirc.load_guard("hf://me/flowers", model())
    assert {asked.rpartition("/")[2] for asked in hub.asked} == {"guard.safetensors"}
    hub.repos["me/pickled"] = [("2" * 40, {"guard.safetensors": b"\x80\x04cos\nsystem\n."})]
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        sirc.load_guard("hf://me/pickled", model())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "hf://me/nowhere",
            r"no model 'me/nowhere' on the Hub, or it is private. Check the name. Log in with `hf auth",
        ),
        ("hf://me/flowers@v9", r"'me/flowers' must have the revision that is asked for, .*; got 'v9'"),
        ("hf://me/empty", r"'me/empty' on the Hub must have a `guard.safetensors`; it has none"),
        ("hf://me/gated", r"'me/gated' is open only to those whom its owner admits"),
        ("hf://flowers", r"must be `hf://owner/name` or `hf://owner/name@revision`; got 'hf://flowers'"),
        ("hf://me/flowers/model.onnx", r"must be `hf://owner/name`"),
        ("hf://me/flowers@", r"must be `hf://owner/name`"),
    ],
)
def test_what_is_not_there_is_told(hub, address, words):
    guard().push_to_hub("me/flowers")
    hub.repos["me/empty"] = []
    hub.repos["me/gated"] = []
    hub.gated.add("me/gated")
    with pytest.raises((OSError, ValueError), match=words):
        sirc.load_guard(address, model())


def test_without_a_network_the_copy_of_before_is_taken_or_that_is_told(hub, monkeypatch):
    guard().push_to_hub("me/flowers")
    sirc.load_guard("hf://me/flowers", model())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert sirc.load_guard("hf://me/flowers", model()).threshold == guard().threshold
    with pytest.raises(ConnectionError, match=r"cannot be reached, and there is no copy of 'me/other' from before"):
        sirc.load_guard("hf://me/other", model())
    with pytest.raises(ConnectionError, match="the Hub cannot be reached"):
        guard().push_to_hub("me/flowers")


def test_a_push_that_fails_is_told(hub, monkeypatch):
    for odd, words in (
        (3, "`repo_id` must be the name of a repository"),
        ("a/b/c", "must be `owner/name`, or the name"),
    ):
        with pytest.raises(ValueError, match=words):
            guard().push_to_hub(odd)
    with pytest.raises(ValueError, match="`network` must be the network's name"):
        guard().push_to_hub("me/flowers", network=model())
    hub.forbidden = True
    with pytest.raises(ConnectionError, match=r"did not take or give 'me/flowers': 403 .*Log in with `hf auth login`"):
        guard().push_to_hub("me/flowers")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(ConnectionError, match=r"did not take or give 'me/flowers': .*Check the connection"):
        guard().push_to_hub("me/flowers")
    uncalibrated = sirc.SelectiveClassifier(model(), guard().scorer, guard().spec)
    with pytest.raises(sirc.NotFittedError):
        uncalibrated.push_to_hub("me/flowers")
    assert hub.repos == {}


def test_a_missing_package_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: sirc.load_guard("hf://me/flowers", model()), lambda: guard().push_to_hub("me/flowers")):
        with pytest.raises(ImportError, match=r"needs huggingface_hub: pip install 'torch-sirc\[hub\]'"):
            call()


@pytest.mark.slow
def test_commands_take_an_address_where_they_take_a_file(hub, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_the_commands.py").write_text(NETWORK, encoding="utf-8")
    address = guard().push_to_hub("me/flowers")
    write_images(tmp_path / "photos", 9)
    code, out, err = command("predict", "photos", "--model", address, "--run", "of_the_commands:network", "--quiet")
    assert code == 0, err
    assert "of 9" in out
    code, out, err = command("monitor", "--calibration", "hf://me/flowers", "--confidences", "decisions.csv")
    assert code == 0, err
    write = lambda self, path, example, **_: path.write_text(str(self.threshold.value), encoding="utf-8")  # noqa: E731 - which takes long
    monkeypatch.setattr(sirc.SelectiveClassifier, "export_onnx", write)
    code, _, err = command("export", "of_the_commands:network", "--model", "hf://me/flowers")
    assert code == 0, err
    assert (tmp_path / "model.onnx").read_text(encoding="utf-8") == str(guard().threshold.value)
    code, _, err = command("export", "of_the_commands:network", "--model", "hf://me/none", "--overwrite")
    assert code == 1
    assert "error: there is no model 'me/none' on the Hub" in err
