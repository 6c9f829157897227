"""The command line, as a user meets it: from images to a fitted scorer, with every mistake answered in words."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import sirc
from sirc.experiment.experiment import Experiment
from support.interpreters import launched, python
from support.tiny_images import write_images
from support.tiny_study import MODEL, TOML


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with images, a model and an experiment, as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_images(tmp_path / "data" / "images", count=90)
    write_images(tmp_path / "data" / "held-out", count=12)
    write_images(tmp_path / "data" / "grey", count=7)
    Path("tiny_model.py").write_text(MODEL, encoding="utf-8")
    Path("tiny.toml").write_text(TOML, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_from_images_to_a_fitted_scorer(study, command):
    code, out, err = command("train", "tiny.toml", "--seed", "1")
    assert code == 0, err
    assert re.fullmatch(r"runs/tiny/seed-1/model\.safetensors  2 epochs, test error [\d.]+%\n", out)
    assert "seed 1, epoch 2: loss" in err
    assert "learning rate 0.002" in err
    assert not Path("runs/tiny/seed-2").exists()

    code, out, err = command("extract", "tiny.toml", "--seed", "1")
    assert code == 0, err
    assert out.splitlines() == [
        "runs/tiny/seed-1/outputs/train  90 rows, 3 logits, 32 features",
        "runs/tiny/seed-1/outputs/test  12 rows, 3 logits, 32 features",
        "runs/tiny/seed-1/outputs/Grey  7 rows, 3 logits, 32 features",
        "runs/tiny/seed-1/outputs/Noise  6 rows, 3 logits, 32 features",
    ]
    assert "seed-1, train: 90/90 images" in err
    stores = {name: sirc.OutputStore(f"runs/tiny/seed-1/outputs/{name}") for name in ("train", "test", "Grey")}
    assert stores["train"].has_labels
    assert stores["test"].has_labels
    assert not stores["Grey"].has_labels

    code, out, err = command("fit", "tiny.toml", "--seed", "1")
    assert code == 0, err
    assert out == "runs/tiny/seed-1/scorer.safetensors  3 scores\n"
    scorer = sirc.Scorer.load("runs/tiny/seed-1/scorer.safetensors")
    assert set(scorer(stores["test"].load())) == {"msp", "sirc(msp, residual)", "mahalanobis"}

    model = sirc.models.build("tiny_model:small", checkpoint="runs/tiny/seed-1/model.safetensors").eval()
    by_hand = sirc.fit(scorer.specs, stores["train"].load(), head=sirc.Head(model[6].weight, model[6].bias), crossfit=3)
    for name, parameters in by_hand.parameters.items():
        for key, value in parameters.items():
            torch.testing.assert_close(scorer.parameters[name][key], value)

    effective = sirc.experiment.Experiment.read("runs/tiny/experiment.toml")
    assert effective.train.lr == 0.02
    assert effective.train.momentum == 0.9  # defaults are written out

    written = Path("runs/tiny/seed-1/scorer.safetensors").stat().st_mtime_ns
    for name in ("train", "extract", "fit"):
        assert command(name, "tiny.toml", "--seed", "1")[0] == 0  # all is there already
    assert Path("runs/tiny/seed-1/scorer.safetensors").stat().st_mtime_ns == written
    more = ["--set", 'fit.specs=["energy"]']
    code, _, err = command("fit", "tiny.toml", "--seed", "1", *more)
    assert code == 1
    assert "was fitted on other inputs: specs is" in err
    assert command("fit", "tiny.toml", "--seed", "1", *more, "--overwrite", "--quiet")[0] == 0
    assert sirc.Scorer.load("runs/tiny/seed-1/scorer.safetensors").specs == ("energy",)

    two = launched(2, "-m", "sirc", "fit", "tiny.toml", "--seed", 1, "--overwrite")
    assert [one.returncode for one in two] == [0, 0], two[0].stderr
    assert [one.stdout for one in two] == ["runs/tiny/seed-1/scorer.safetensors  3 scores\n", ""]  # said once
    shared = sirc.Scorer.load("runs/tiny/seed-1/scorer.safetensors")
    expected = scorer(stores["test"].load())
    for name, values in shared(stores["test"].load()).items():
        torch.testing.assert_close(values, expected[name], rtol=1e-6, atol=1e-6)


MORTAL = """
import os, signal
from pathlib import Path
from tiny_model import nn, small as layers

class Mortal(nn.Sequential):
    def forward(self, images):
        if Path(os.environ.get("DIE_AFTER", "")).is_file():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)

def small(num_classes=3):
    return Mortal(*layers(num_classes))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_training_killed_after_an_epoch_goes_on_to_the_same_weights(study, command, monkeypatch):
    Path("mortal_model.py").write_text(MORTAL, encoding="utf-8")
    arguments = ["train", "tiny.toml", "--seed", "1", "--set", "model.name=mortal_model:small"]
    run = Path("cut/tiny/seed-1")
    monkeypatch.setenv("DIE_AFTER", str(run / "checkpoint.safetensors"))
    killed = python("-m", "sirc", *arguments, "--set", "out=cut")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (run / "model.safetensors").exists()
    monkeypatch.delenv("DIE_AFTER")
    code, _, err = command(*arguments, "--set", "out=whole", "--quiet")
    assert (code, err) == (0, "")
    code, _, err = command(*arguments, "--set", "out=cut")
    assert code == 0, err
    assert "resuming after epoch 1" in err
    whole, cut = (load_file(f"{out}/tiny/seed-1/model.safetensors") for out in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_answered_with_what_is_kept(study, command, monkeypatch, request, how):
    def interrupted(*_, **__):
        signal.raise_signal(how)
        pytest.fail("it goes on")

    monkeypatch.setattr("sirc.experiment.train_run", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    code, out, err = command("train", "tiny.toml")
    assert (code, out) == (130, "")
    assert "stopped; nothing new was finished, and the same command goes on with what there is" in err
    err = command("train", "tiny.toml", "--overwrite")[2]
    assert (
        "nothing new was finished; without `--overwrite` the same command goes on with what was begun and keeps" in err
    )
    monkeypatch.setattr("sirc.experiment.demo.run_demo", interrupted)
    err = command("demo", "--redo", "fit")[2]
    assert err.startswith("this takes one to four minutes on two idle cores")
    assert (
        "nothing new was finished; without `--redo` the same command goes on with what was begun and keeps older" in err
    )
    monkeypatch.setattr("sirc.experiment.read_results", interrupted)
    Path("results.csv").touch()
    assert "stopped; nothing was written, and the same command begins anew" in command("table", "results.csv")[2]


def test_unreadable_images_are_named_on_stderr_and_counted_on_stdout(study, command):
    command("train", "tiny.toml", "--seed", "1", "--quiet")
    broken = Path("data/grey/b/002.png")
    broken.write_bytes(b"no image")
    code, out, err = command("extract", "tiny.toml", "--seed", "1", "--only", "Grey", "--quiet")
    assert code == 1
    assert out == ""
    assert "b/002.png" in err
    assert "skip, count and name such images: `--on-error skip`." in err
    code, out, err = command("extract", "tiny.toml", "--seed", "1", "--only", "Grey", "--on-error", "skip")
    assert code == 0
    assert out == "runs/tiny/seed-1/outputs/Grey  6 rows, 3 logits, 32 features, 1 unreadable\n"
    assert "1 of 7 images could not be read" in err
    assert "b/002.png" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "none.toml"], 2, "there is no file 'none.toml'"),
        (["train", "tiny.toml", "--set", "train.epocs=3"], 2, "Did you mean `epochs`"),
        (["train", "tiny.toml", "--set", "train.lr=fast"], 2, "--set train.lr=fast"),
        (["train", "tiny.toml", "--seed", "7"], 2, "`--seed` must be one of the experiment's seeds (1, 2); got 7"),
        (["train", "tiny.toml", "--set", "data.root=elsewhere"], 2, "which is not there"),
        (["train", "tiny.toml", "--device", "toaster"], 2, "`--device` must be auto, cpu, cuda"),
        (["extract", "tiny.toml", "--seed", "1"], 1, "there are no trained weights at"),
        (["extract", "tiny.toml", "--only", "Gray"], 2, "`--only` must be one of train, test, Grey, Noise"),
        (["fit", "tiny.toml", "--seed", "2"], 1, "Extract them first: `sirc extract … --only train`"),
        (["fit", "tiny.toml", "--nonsense"], 2, "No such option"),
        (["extract"], 2, "Missing argument"),
        (["data", "check", "texture", "."], 2, "textures"),
        (["data", "noise", "out", "--count", "0"], 2, "Invalid value"),
        (["nonsense"], 2, "No such command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_with_words_and_a_code(study, command, arguments, code, words):
    got, out, err = command(*arguments)
    assert got == code
    assert words in err
    assert "Traceback" not in out + err
    assert not Path("runs").exists()  # what fails leaves nothing that would stand in the way


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("calibrate RUN --alpha 0.5 --recall 0.9 --delta 0.1", "`--delta` would do nothing: the least cost"),
        ("calibrate RUN --alpha 0.5 --recall 0.9 --plain", "`--plain` would do nothing: the least cost"),
        ("calibrate RUN --plain --delta 0.1", "`--delta` would do nothing: `--plain`"),
        ("calibrate RUN --reject-cost 0.1 --ood a=b", "`--reject-cost` and `--ood` would do nothing"),
        ("predict . --onnx m.onnx --seed 1 --trust", "`--seed` and `--trust` would do nothing"),
        ("predict . --onnx m.onnx --device cuda", "`--device` would do nothing: a graph"),
        ("evaluate --id a.npz --head h.npz --crossfit 3", "`--head` and `--crossfit` would do nothing"),
        ("evaluate --id a.npz --on-unfit skip", "`--on-unfit` would do nothing"),
        ("evaluate --id a.npz --train t.npz --on-unfit stop", "`--on-unfit stop` is for scores that `--score` names"),
        ("evaluate --id a.npz --no-figures --format pdf", "`--format` would do nothing: `--no-figures`"),
        ("evaluate --id a.npz --device cuda", "`--device` would do nothing: it is for stores"),
        ("evaluate --id a --spill s --open --format pdf", "`--format` and `--open` would do nothing: with `--spill`"),
        ("run a.toml --no-figures --redo fit --redo figures", "`--redo` would do nothing: `--no-figures`"),
        ("demo --no-figures --redo figures", "`--redo` would do nothing: `--no-figures`"),
        ("table mine.csv --alpha 0.5", "`--alpha` would do nothing: these metrics"),
        ("table mine.csv --spread", "`--spread` would do nothing: each model has one"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path, monkeypatch, command, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text(
        "model,seed,score,negative,metric,alpha,beta,value\nm,0,msp,wrong,auroc,,,0.5\n", encoding="utf-8"
    )
    code, out, err = command(*arguments.split())
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(("count", "words"), [(0, "there is none. Use `--device cpu`"), (1, "the first is cuda:0")])
def test_a_gpu_that_is_not_there_is_refused_before_any_work(monkeypatch, command, count, words):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    code, out, err = command("demo", "--device", "cuda:1")
    assert (code, out) == (2, "")
    assert f"`--device cuda:1` needs a GPU that this PyTorch can use; {'it can use 1, ' * count}{words}" in err


@pytest.mark.slow
def test_stores_beyond_memory_have_the_results_of_those_in_memory(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for name, size in (("test", 60), ("far", 30)):
        labels = torch.arange(size) % 3
        logits = torch.randn(size, 3) + 2 * torch.nn.functional.one_hot(labels, 3)
        sirc.OutputStore.from_outputs(name, sirc.Outputs(logits, labels=labels), shard_size=8)
    given = [
        "evaluate",
        "--id",
        "test",
        "--ood",
        "far=far",
        "--score",
        "msp",
        "--score",
        "energy",
        "--no-figures",
        "--quiet",
    ]
    assert command(*given, "--out", "in-memory")[0] == 0
    code, out, err = command(*given, "--out", "spilled", "--spill", "scratch", "--device", "cpu")
    assert code == 0, err
    assert "spilled/table.md" in out
    assert Path("spilled/results.csv").read_bytes() == Path("in-memory/results.csv").read_bytes()
    assert not Path("spilled/report.html").exists()
    assert command(*given, "--out", "spilled", "--spill", "scratch", "--device", "cpu")[0] == 1  # would replace
    sirc.OutputStore("far").load().save("far.npz")
    given[given.index("far=far")] = "far=far.npz"
    code, _, err = command(*given, "--out", "other", "--spill", "scratch")
    assert code == 1
    assert "with `--spill`, `--ood far=…` must be an `OutputStore`; got Outputs. Leave `--spill` out" in err
    given[given.index("far=far.npz")] = "far=far"
    code, _, err = command(*given, "--out", "other", "--spill", "far.npz")
    assert code == 1
    assert "`--spill` must be a folder" in err


def test_a_wrong_key_is_named_with_its_line_and_the_nearest_right_one(study, command):
    Path("tiny.toml").write_text(TOML.replace("epochs = 2", "epochz = 2"), encoding="utf-8")
    line = TOML.splitlines().index("epochs = 2") + 1
    code, _, err = command("train", "tiny.toml")
    assert code == 2
    assert f"tiny.toml:{line}:" in err
    assert "epochz" in err
    assert "Did you mean `epochs`" in err


@pytest.mark.slow
def test_other_settings_do_not_mix_with_old_results(study, command):
    assert command("train", "tiny.toml", "--seed", "1", "--quiet")[0] == 0
    other = ["--seed", "1", "--set", "train.lr=0.3", "--quiet"]
    code, _, err = command("train", "tiny.toml", *other)
    assert code == 1
    assert "lr is 0.02, got 0.3" in err
    code, _, err = command("extract", "tiny.toml", *other)
    assert code == 1
    assert "was trained with other settings: lr is 0.02, got 0.3" in err
    assert Experiment.read("runs/tiny/experiment.toml").train.lr == 0.02  # what is there is what it says
    assert command("extract", "tiny.toml", "--seed", "1", "--quiet")[0] == 0
    assert command("fit", "tiny.toml", "--seed", "1", "--quiet")[0] == 0
    assert command("train", "tiny.toml", *other, "--overwrite")[0] == 0
    code, _, err = command("fit", "tiny.toml", *other)
    assert code == 1
    assert "comes from other weights than" in err
    code, _, err = command("extract", "tiny.toml", *other)
    assert code == 1
    assert "with other settings: model is" in err
    assert command("extract", "tiny.toml", *other, "--overwrite")[0] == 0
    code, _, err = command("fit", "tiny.toml", *other)
    assert code == 1
    assert "was fitted on other inputs: model is" in err
    assert "or pass `--overwrite` to fit again" in err
    assert command("fit", "tiny.toml", *other, "--overwrite")[0] == 0
    Path("runs/tiny/seed-1/outputs/train/meta.json").write_text("{", encoding="utf-8")
    code, _, err = command("fit", "tiny.toml", *other)
    assert code == 1
    assert "outputs/train/meta.json' is damaged: " in err
    assert "delete its folder and make the store again" in err
    shutil.rmtree("runs/tiny/seed-1/outputs/train")
    assert command("extract", "tiny.toml", *other)[0] == 0


@pytest.mark.slow
def test_outputs_that_were_deleted_are_asked_for(study, command):
    for stage in ("train", "extract"):
        assert command(stage, "tiny.toml", "--seed", "1", "--quiet")[0] == 0
    shutil.rmtree("runs/tiny/seed-1/outputs/train")
    code, _, err = command("fit", "tiny.toml", "--seed", "1")
    assert code == 1
    assert "there are no finished outputs at 'runs/tiny/seed-1/outputs/train'" in err
    assert "`sirc extract … --only train`" in err


@pytest.mark.slow
def test_preprocessing_is_one_for_all_datasets_of_a_run(study, command):
    for name in ("train", "extract"):
        assert command(name, "tiny.toml", "--seed", "1", "--quiet")[0] == 0
    grey = ["--seed", "1", "--set", "extract.dtype=float16", "--quiet"]
    assert command("extract", "tiny.toml", "--only", "test", "--overwrite", *grey)[0] == 0
    code, _, err = command("fit", "tiny.toml", *grey)
    assert code == 1
    assert "extracted with other settings: extract.dtype is model, got float16" in err


@pytest.mark.slow
def test_test_images_have_the_class_numbers_of_the_training_images(study, command):
    """A test set that lacks a class must not shift the ones after it."""
    shutil.rmtree("data/held-out/b")
    command("train", "tiny.toml", "--seed", "1", "--quiet")
    assert command("extract", "tiny.toml", "--seed", "1", "--only", "test", "--quiet")[0] == 0
    labels = sirc.OutputStore("runs/tiny/seed-1/outputs/test").load().labels
    assert set(labels.tolist()) == {1, 2}  # of b, g, r
    Path("data/held-out/unseen").mkdir()
    shutil.copy("data/held-out/g/001.png", "data/held-out/unseen/001.png")
    code, _, err = command("extract", "tiny.toml", "--seed", "1", "--only", "test", "--overwrite")
    assert code == 1
    assert "must be among those of the training images, b, g, r; 'unseen' is not" in err


@pytest.mark.slow
def test_a_pretrained_experiment_is_not_trained(study, command):
    Path("tiny.toml").write_text(TOML.replace("seeds = [1, 2]", "").split("[train]")[0], encoding="utf-8")
    code, _, err = command("train", "tiny.toml")
    assert code == 1
    assert "must have a [train] table" in err
    torch.save(sirc.models.build("tiny_model:small").state_dict(), "weights.pt")
    given = ["tiny.toml", "--set", "model.checkpoint=weights.pt"]
    assert command("extract", *given, "--only", "test", "--quiet")[0] == 0
    assert sirc.OutputStore("runs/tiny/pretrained/outputs/test").complete


def test_the_datasets_are_listed_with_all_that_is_known_of_them(command):
    code, out, err = command("data", "list")
    assert (code, err) == (0, "")
    for benchmark in sirc.data.benchmarks():
        (line,) = (line for line in out.splitlines() if line.startswith(benchmark.key + " "))
        assert benchmark.title in line
        assert benchmark.source in line


def test_the_order_of_class_folders_is_shown_as_it_will_be_read(tmp_path, command):
    for name in ("1", "2", "10"):
        write_images(tmp_path / "flat", 3)
        shutil.copytree(tmp_path / "flat" / "r", tmp_path / "photos" / name)
    call = "data", "check", "folder", tmp_path / "photos"
    code, out, _ = command(*call)
    assert (code, "3 classes by name: 0 is '1', 1 is '10', 2 is '2'" in out, "`--sort natural` here" in out) == (
        0,
        True,
        True,
    )
    code, out, _ = command(*call, "--sort", "natural")
    assert (code, "3 classes by number: 0 is '1', 1 is '2', 2 is '10'" in out, "sort as text" in out) == (
        0,
        True,
        False,
    )
    listed = tmp_path / "classes.txt"
    listed.write_text("10\nnone\n2\n1\n", encoding="utf-8")
    code, out, _ = command(*call, "--classes", listed)
    assert (code, "4 classes as listed: 0 is '10', 1 is 'none', 2 is '2', 3 is '1'" in out) == (0, True)
    listed.write_text("10\n2\n", encoding="utf-8")
    code, out, _ = command(*call, "--classes", listed)
    assert (code, "3 classes by name: 0 is '1'" in out) == (1, True)  # the list was refused
    listed.unlink()
    assert "data root" not in command(*call, "--classes", listed)[2]
    listed.write_text("10\n2\n", encoding="utf-8")
    code, out, _ = command(*call, "--classes", listed)
    assert (code, "`classes` must name every class folder" in out) == (1, True)
    code, _, err = command("data", "check", "textures", tmp_path, "--sort", "natural")
    assert (code, "leave them out for textures" in err) == (1, True)


def test_noise_is_written_checked_and_read_back(study, command):
    code, out, _ = command("data", "noise", "noise", "--count", "5", "--seed", "3")
    assert (code, out) == (0, "noise  5 images, seed 3\n")
    made = sirc.data.Noise(5, seed=3)
    read = sirc.data.image_folder("noise", labelled=False)
    assert [made.image(i).tobytes() for i in range(5)] == [read.image(i).tobytes() for i in range(5)]
    code, out, _ = command("data", "check", "noise", "noise")
    assert code == 1  # five of ten thousand
    assert "10,000" in out
    code, out, _ = command("data", "check", "folder", "data/images", "--decode")
    assert code == 0, out
    assert "90" in out


@pytest.mark.slow
def test_help_has_an_example_for_every_command(command):
    ones = ("train", "extract", "fit", "run", "demo", "evaluate", "table", "plot", "report")
    for name in (*([one] for one in ones), ["data", "list"], ["data", "get"], ["data", "check"], ["data", "noise"]):
        code, out, _ = command(*name, "--help")
        assert code == 0
        assert "Example: sirc " + " ".join(name) in out
    assert "Example: sirc data colonoscopy" in command("data", "colonoscopy", "--help")[1]
    assert command("--version")[1] == f"sirc {sirc.__version__}\n"


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    program = """
import contextlib, io, sys
from sirc.cli import COMMANDS, data, main

names = [[command.__name__] for commands in COMMANDS.values() for command in commands]
names += [["data", command.name or command.callback.__name__] for command in data.app.registered_commands]
for arguments in (["--help"], ["--version"], ["data", "--help"], *([*name, "--help"] for name in names)):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(arguments)
        except SystemExit as stop:
            assert not stop.code, arguments
    shown = "sirc 0" if arguments == ["--version"] else "Usage: " + " ".join(["sirc", *arguments[:-1]])
    assert shown in out.getvalue(), arguments
    heavy = {"torch", "numpy", "pandas", "scipy", "matplotlib", "pydantic", "PIL"} & set(sys.modules)
    assert not heavy, (arguments, heavy)
assert len(names) > 20, names
"""
    subprocess.run([sys.executable, "-c", program], check=True)
