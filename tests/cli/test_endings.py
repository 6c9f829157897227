"""What a command says when it fails or is stopped: true of it, and in terms of its own options."""

import ast
import os
import re
import signal
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
import torch
from typer import Exit, Option
from typer.main import get_command

import sirc
from sirc._utils.files import atomic_write
from sirc._utils.warn import warn
from sirc.cli import COMMANDS, app, data
from sirc.cli.endings import _GO_ON, ending, what_stays
from sirc.cli.options import note_test_images
from sirc.cli.translate import _NAMED, _TABLES, _options, in_options
from sirc.experiment.config import Extract, Fit, Model
from sirc.progress import Log

SOURCE = Path(sirc.__file__).parent
TEXTS = [*SOURCE.rglob("*.py"), *(SOURCE.parents[1] / "docs").glob("*.md"), SOURCE.parents[1] / "README.md"]
NAMED = {command.__name__: command for commands in COMMANDS.values() for command in commands}


def said():
    """Every text in the code that is no docstring, with a blank for what is filled in."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        plain = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield path, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in plain | inside:
                yield path, node.value


@cache
def options_of(name):
    command = get_command(app)
    for part in name.split():
        command = command.commands[part]
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("name", NAMED)
def test_errors_name_options_as_the_command_has_them(name):
    assert {option for option, _ in _options(NAMED[name]).values()} <= options_of(name)
    assert _options(NAMED[name]).keys() >= set(_NAMED.get(name, ()))


def test_every_command_that_an_error_or_a_page_names_has_the_options_it_names():
    found = 0
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for name, rest in re.findall(r"`sirc ((?:data )?[a-z]+)\b([^`\n]*)`", text):
            asked = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
            assert asked <= options_of(name), (path, name, rest)
            found += len(asked)
    assert found > 30


PYTHON = re.compile(
    r"`(?!np\.)(?:\w+\((?:…|\.{3}), )?[a-z_]\w+=[^`]*`|`[^`]*\b(?:sirc\.\w|Outputs\(|OutputStore\.)[^`]*`"
)
MAKERS = {"train", "extract", "fit", "run"}  # which take `--set`
EVERY = {
    **NAMED,
    **{f"data {command.__name__}": command for command in (data.get, data.check, data.noise, data.colonoscopy)},
}


def told(name, text):
    return in_options(EVERY[name], text)


@pytest.mark.slow
def test_no_error_names_an_argument_of_python_or_a_toml_to_a_command_that_has_none():
    found = 0
    for path, text in said():
        if path.parent.name == "cli" or not (PYTHON.search(text) or "`--set " in text):
            continue
        for name in EVERY:
            words = told(name, text)
            found += words != text
            if words != text:  # else the text is nothing but that: a part of a message
                assert not PYTHON.search(words), (path, name, words)
            if name not in MAKERS:
                assert "`--set " not in words or words == text, (path, name, words)
            if name not in MAKERS | {"calibrate", "predict", "try", "export", "plot"} and "TOML" not in text:
                assert not re.search(r"TOML|`data\.", words), (path, name, words)
            for option in re.findall(r"(?<!\S)`(--[a-z][a-z-]*)", words):
                assert option in options_of(name) or option in text, (path, name, words)
    assert found > 300


# Messages of the library, by what commands that can show them say instead.
WORDS = [
    ("pass `create(…, overwrite=True)` to delete it", {"extract": "pass `--only NAME --overwrite` to delete it"}),
    ("pass `create(…, overwrite=True)` to delete it", {"run": "pass `--redo extract` to delete it"}),
    ("Delete this one, or pass `create(…, overwrite=True)`.", {"calibrate": "Delete this one."}),
    ("delete it with `train(…, overwrite=True)`.", {"train": "delete it with `--seed N --overwrite`."}),
    (
        "delete it with `train(…, overwrite=True)`.",
        {"run": "delete it with `sirc train … --seed N --overwrite`, or of all seeds with `--redo train`."},
    ),
    ("pass `fit(…, overwrite=True)` to fit again", {"fit": "pass `--overwrite` to fit again"}),
    ("`state` saves a state of its own `delta`", {"serve": "`--state` saves a state of its own `--delta`"}),
    ("`answer_seconds` must be finite", {"serve": "`--max-seconds` must be finite"}),
    ("`val` must have labels", {"calibrate": "`--val` must have labels", "guard": "VAL must have labels"}),
    ("pass `fit(…, overwrite=True)` to fit again", {"run": "pass `--redo fit` to fit again"}),
    ("or pass `overwrite=True`.", {"data noise": "or pass `--overwrite`.", "export": "or pass `--overwrite`."}),
    ("Pass `crossfit=0`", {"evaluate": "Pass `--crossfit 0`", "select": "Pass `--crossfit 0`"}),
    ("Fit on more rows, or pass `crossfit=0`", {"fit": "Fit on more rows, or pass `--set fit.crossfit=0`"}),
    ("Fit on more rows, or pass `crossfit=0`", {"guard": "Fit on more rows"}),
    ('Pass `crossfit="auto"`, or fit on more rows', {"guard": "Fit on more rows"}),
    ("Folds are left out; `crossfit=0` leaves none", {"guard": "Folds are left out"}),
    (
        'as `on_unfit="skip"` does',
        {"fit": "as `--set fit.on_unfit=skip` does", "run": "as `--set fit.on_unfit=skip` does"},
    ),
    ('as `on_unfit="skip"` does', dict.fromkeys(("evaluate", "select", "check"), "as `--on-unfit skip` does")),
    (
        'count: `on_error="skip"`.',
        dict.fromkeys(("train", "extract", "guard", "calibrate"), "count: `--on-error skip`."),
    ),
    ('count: `on_error="skip"`.', {"run": "count: `--set extract.on_error=skip`."}),
    ("Mend it, or pass `dtype=…`.", {"extract": "Mend it, or pass `--set extract.dtype=…`.", "guard": "Mend it."}),
    ("Let it run once, or name one, `head=…`, or pass `features=False`.", {"extract": "Let it run once."}),
    ("Let it run once, or name one, `head=…`.", {"guard": "Let it run once, or name one, `--head …`."}),
    ("Sort them, or pass `labelled=False` for an OOD set.", {"guard": "Sort them."}),
    (
        "Sort them, or pass `labelled=False` for an OOD set.",
        {"extract": "Sort them, or pass it as `data.ood.NAME` for an OOD set."},
    ),
    ("Delete it, or pass `allow_empty=True`.", {"guard": "Delete it."}),
    ("Delete it, or pass `allow_empty=True`.", {"run": "Delete it, or pass `allow_empty = true` in its `options`."}),
    (
        "the file as `checkpoint=…` with `pretrained=False`",
        {
            "run": "the file as `--set model.checkpoint=…` with `--set model.pretrained=false`",
            "predict": 'the file as `model.checkpoint = "…"` with `model.pretrained = false` in the TOML',
        },
    ),
    ("The model has 3: pass `num_classes=4`.", {"run": "The model has 3: pass `--set model.num_classes=4`."}),
    (
        "The model has 3: pass `num_classes=4`.",
        dict.fromkeys(("predict", "try"), "The model has 3: pass `model.num_classes = 4` in the TOML."),
    ),
    ("The model has 3: pass `num_classes=4`.", {"guard": "The model has 3."}),
    (
        "Number them as the logits are, or use `Outputs(..., classes=…)`.",
        {
            "evaluate": "Number them as the logits are.",
            "select": "Number them as the logits are.",
            "guard": "Number them as the logits are, or use `--classes …`.",
            "extract": "Number them as the logits are, or use "
            '`sort = "natural"` or `classes = …` of the dataset in the TOML.',
        },
    ),
    ("Pass `fit(…, val=sirc.Outputs(logits))`", {"evaluate": "Pass `--val …`", "select": "Pass `--tune …`"}),
    ("Pass `fit(…, val=sirc.Outputs(logits))`", {"fit": "Pass `data.validation`"}),
    ("Pass `head=sirc.find_head(model, x)` or `head=sirc.Head(w, b)`", {"evaluate": "Pass `--head …`"}),
    ("Give `labels`; in Python `Outputs(logits, features, labels)`", {"evaluate": "Give `labels`"}),
    ("say where: `--set data.root=…`.", {"extract": "say where: `--set data.root=…`."}),
    ("say where: `--set data.root=…`.", {"calibrate": 'say where: `data.root = "…"` in the TOML.'}),
    (
        "where: `--set data.root=…` or `--set data.test.path=…`.",
        {"plot": 'where: `data.root = "…"` or `data.test.path = "…"` in the TOML.'},
    ),
    ("where: `--set data.ood.Textures.path=…`.", {"extract": "where: `--set data.ood.Textures.path=…`."}),
    (
        "`data.ood.Textures.pth` is not a key of [data.ood.Textures]",
        dict.fromkeys(("run", "table"), "`data.ood.Textures.pth` is not a key of [data.ood.Textures]"),
    ),
    (
        "a graph. Use it alone: `sirc predict FOLDER --onnx ResNet.onnx`",
        {"predict": "a graph. Use it alone: `sirc predict FOLDER --onnx ResNet.onnx`"},
    ),
    ("Pass `relative=False`", {"select": "Pass `--absolute`"}),
    ("with `spill`, `test` must have labels", {"evaluate": "with `--spill`, `--id` must have labels"}),
    ("`ood['far']` must be a store", dict.fromkeys(("evaluate", "check"), "`--ood far=…` must be a store")),
    ('`ood["it\'s"]` must be a store', {"evaluate": "`--ood it's=…` must be a store"}),
    ("Pass more rows as `val`", {"guard": "Pass more rows as VAL", "select": "Pass more rows as `val`"}),
    ("`level` must lie between 0 and 1", dict.fromkeys(("check", "select"), "`--level` must lie between 0 and 1")),
    ("`metrics` and `negatives` must be", {"table": "`--metric` and `--negative` must be"}),
    ("Widen `alpha` or `beta`", dict.fromkeys(("select", "calibrate", "table"), "Widen `--alpha` or `--beta`")),
    ("`draws` must be ≥ 1, `seed` ≥ 0", {"select": "`--draws` must be ≥ 1, `--seed` ≥ 0"}),
    ("`delta` must lie in [0, 1]", dict.fromkeys(("guard", "calibrate"), "`--delta` must lie in [0, 1]")),
    ("`classes` must name each class once", {"guard": "`--classes` must name each class once"}),
    ("or `delta=None`, or `delta=0.1`", dict.fromkeys(("guard", "calibrate"), "or `--plain`, or `--delta 0.1`")),
    (
        "Pass `preprocess=…`, or `sirc.models.preprocess_of(…)`",
        {"guard": "Pass `--resize`, `--crop`, `--interpolation`, `--mean` and `--std`"},
    ),
    (
        "it does not say how. Pass `preprocess=…`, or save it with one",
        {"predict": "it does not say how. Save it with one"},
    ),
    ("a rule: make it with `sirc.fit([…])`", {"evaluate": "a rule"}),
    ("it names code: `sirc.data.glyphs:os.system`.", {"calibrate": "it names code: `sirc.data.glyphs:os.system`."}),
    ("`sirc.fit`", {"evaluate": "`sirc.fit`"}),  # never nothing
    (
        "Use it in `sirc(msp, l1)` or `linear(energy, l1, c=0.1)`",
        {"evaluate": "Use it in `sirc(msp, l1)` or `linear(energy, l1, c=0.1)`"},
    ),
]


@pytest.mark.parametrize(("text", "expected"), WORDS)
def test_arguments_are_told_as_the_command_has_them_or_not_at_all(text, expected):
    assert {name: told(name, text) for name in expected} == expected


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """Outputs in files: of training, of validation, without features; and a damaged store."""
    monkeypatch.chdir(tmp_path)
    for name, rows in (("train", 5), ("val", 40)):
        z = torch.randn(rows, 4)
        sirc.Outputs(z[:, :3], z, torch.arange(rows) % 3).save(f"{name}.npz")
    sirc.Outputs(torch.randn(40, 3), None, torch.arange(40) % 3).save("bare.npz")
    Path("store").mkdir()
    Path("store", "meta.json").write_text("{", encoding="utf-8")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("evaluate --id store --overwrite", "is damaged: "),
        ("select --val store --train train.npz", "Restore it, or delete its folder and make the store again.\n"),
        ("evaluate --id bare.npz --train train.npz --score l1", "error: `--id`: features are needed for `l1`"),
        ("evaluate --id val.npz --ood far=bare.npz --score l1", "error: `--ood far=…`: features are needed for `l1`"),
        ("evaluate --id val.npz --score residual", "error: `--train` is needed for `residual`: outputs of ID training"),
        (
            "select --val val.npz --train train.npz --score knn --score msp --score l1",
            "Leave out `knn`, as `--on-unfit skip` does, to fit the other 2\n",
        ),
        (
            "check --val val.npz --train train.npz --score sirc(msp,residual) --score sirc(msp,l1)",
            "the final linear layer. Pass `--head …`\nLeave out `sirc(msp,residual)`, as `--on-unfit skip` does",
        ),
    ],
)
def test_what_files_lack_is_told_in_options_and_before_any_work(arrays, command, call, says):
    code, out, err = command(*call.split())
    assert (code, out) == (1, "")
    assert says in err
    assert "first pass" not in err


def test_scores_that_cannot_be_fitted_are_left_out_where_one_says_so(arrays, command):
    call = "select --val val.npz --train train.npz --score knn --score msp --score l1 --draws 20 --crossfit 0 --quiet"
    code, out, err = command(*call.split(), "--on-unfit", "skip")
    assert code == 0, err
    assert "knn" in err
    assert "l1" in out


def test_warnings_are_told_in_options_too(capsys):
    def evaluate(crossfit: Annotated[str, Option()] = "auto") -> None:
        warn('Pass `crossfit="auto"`, or fit on more rows')

    ending(evaluate)()
    assert capsys.readouterr().err == "warning: Pass `--crossfit auto`, or fit on more rows\n"


def test_keys_are_those_of_the_toml():
    tables = {"model": Model, "extract": Extract, "fit": Fit}
    for key, table in _TABLES.items():
        assert key in {field.name for field in fields(tables[table])}


@pytest.fixture
def wrote(tmp_path, monkeypatch):
    """Files that the command is said to have written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sirc.cli.endings.WRITTEN", files := set())
    return lambda *names: files.update(tmp_path / name for name in names)


NOTHING = "nothing was written, and the same command begins anew"
GOES_ON = "the same command goes on from there"


@pytest.mark.parametrize(
    ("name", "options", "written", "says"),
    [
        *((name, {}, [], "nothing new was finished") for name in _GO_ON),
        *((name, {}, ["runs/x"], "finished") for name in _GO_ON),
        ("run", {"redo": ["fit"]}, ["runs/x"], "is kept; without `--redo` the same command goes on"),
        ("train", {"overwrite": True}, ["runs/x"], "was begun and keeps older results of these settings"),
        ("extract", {"overwrite": True}, [], "nothing new was finished; without `--overwrite` the same command"),
        ("predict", {}, [], NOTHING),
        ("predict", {}, ["out"], "`--overwrite` replaces it"),
        ("guard", {"path": None, "report": None}, [], NOTHING),
        ("guard", {"path": Path("kept"), "report": None}, [], "nothing new was finished"),
        ("guard", {"path": Path("kept"), "report": None}, ["kept/val/shard-00000.safetensors"], GOES_ON),
        ("guard", {"path": Path("kept"), "report": None}, ["kept/val/meta.json", "out"], "`--overwrite` replaces it"),
        ("calibrate", {"run": Path("runs")}, ["elsewhere/trusted"], NOTHING),
        ("extract", {}, ["runs/head.safetensors", "runs/outputs/train/meta.json"], "nothing new was finished"),
        ("calibrate", {"run": Path("runs")}, ["runs/outputs/validation/meta.json"], NOTHING),
        ("calibrate", {"run": Path("runs")}, ["runs/outputs/validation/shard-00000.safetensors"], GOES_ON),
        ("calibrate", {"run": Path("runs")}, ["out"], "`--overwrite` replaces it"),
        ("select", {"runs": [Path("a"), Path("b")]}, [], NOTHING),
        ("select", {"runs": [Path("a"), Path("b")]}, ["a/choice.json"], "made so far are kept, and the same command"),
        ("check", {"runs": None}, [], NOTHING),
        ("evaluate", {"spill": None}, [], NOTHING),
        ("evaluate", {"spill": None}, ["out/results.csv"], "what was written so far stays"),
        ("evaluate", {"spill": Path("spill")}, [], NOTHING),
        ("plot", {"out": None, "runs": [Path("a")]}, [], NOTHING),
        ("plot", {"out": None, "runs": [Path("a")]}, ["a/figures/x.pdf"], "drawn so far stay"),
        ("table", {}, [], NOTHING),
        *((name, {}, [], "nothing was served yet") for name in ("serve", "try")),
        ("export", {}, ["out"], "what was written so far stays"),
    ],
)
def test_what_stays_follows_from_what_was_written(wrote, name, options, written, says):
    wrote(*written)
    assert says in what_stays(name, {"out": Path("out"), **options})


def test_scores_that_were_spilled_are_kept(wrote, tmp_path):
    (tmp_path / "spill" / "test-0").mkdir(parents=True)
    (tmp_path / "spill" / "notes.txt").touch()
    options = {"out": Path("out"), "spill": Path("spill")}
    assert what_stays("evaluate", options) == NOTHING  # what lies there is not of this work
    wrote("spill/test-0/part-0.safetensors")
    assert f"scores in 'spill' are kept, and {GOES_ON}" == what_stays("evaluate", options)
    wrote("out/results.csv")
    assert "what was written so far stays" in what_stays("evaluate", options)


def test_a_command_that_is_stopped_says_what_it_wrote_itself(tmp_path, capsys):
    def export(out: Path, at: int) -> None:
        for number in range(3):
            if number == at:
                raise KeyboardInterrupt
            atomic_write(out, lambda file: file.write(b"graph"))

    for at, says in ((1, "what was written so far stays"), (0, NOTHING)):
        with pytest.raises(Exit):
            ending(export)(out=tmp_path / "model.onnx", at=at)
        assert capsys.readouterr().err.startswith(f"stopped; {says}")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_command_whose_reader_was_killed_says_so_and_what_it_keeps(tmp_path, capsys):
    class Dying(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    def extract() -> None:
        atomic_write(tmp_path / "shard", lambda file: file.write(b"rows"))
        list(torch.utils.data.DataLoader(Dying(), num_workers=1))

    with pytest.raises(Exit) as ended:
        ending(extract)()
    assert ended.value.exit_code == 1
    err = capsys.readouterr().err
    assert err.startswith("error: a process that reads images has died (DataLoader worker (pid")
    assert err.endswith("); what was finished is kept, and the same command goes on from there\n")

    def fit() -> None:
        raise RuntimeError("a fault of the code")

    with pytest.raises(RuntimeError, match="a fault of the code"):
        ending(fit)()


def test_several_processes_without_spill_are_refused_before_any_work(arrays, command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, out, err = command("evaluate", "--id", "val.npz", "--train", "train.npz")
    assert (code, out) == (2, "")
    assert "several processes share the work with `--spill FOLDER`" in err
    assert not Path("sirc-results").exists()


def test_a_table_that_was_not_begun_is_refused_at_once_and_begun_anew(tmp_path, command, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    table, parts = tmp_path / "decisions.csv", tmp_path / ".decisions.csv.parts"  # as tests of `predict_folder` find it
    call = ("predict", tmp_path, "--onnx", tmp_path / "none.onnx", "--out", table)
    table.write_text("older", encoding="utf-8")
    assert "exists already. Pass `--overwrite`" in command(*call)[2]
    assert "is a folder. Give the path of a file." in command(*call[:-1], tmp_path, "--overwrite")[2]
    monkeypatch.setattr("sirc.deploy.predict_folder", stopped)
    nothing = "nothing was written, and the same command begins anew"
    assert nothing in command(*call, "--overwrite")[2]
    parts.mkdir()
    err = command(*call, "--overwrite")[2]
    assert "nothing new was finished; without `--overwrite` the same command goes on with what was begun\n" in err
    assert "nothing new was finished, and the same command goes on with what there is" in command(*call)[2]

    def stopped_later(*_, **__):
        atomic_write(parts / "part-000000000000.safetensors", lambda file: file.write(b"rows"))
        raise KeyboardInterrupt

    monkeypatch.setattr("sirc.deploy.predict_folder", stopped_later)
    assert "what was finished is kept; without `--overwrite` the same" in command(*call, "--overwrite")[2]
    assert "what was finished is kept, and the same command goes on from there" in command(*call)[2]
    monkeypatch.setattr("sirc.deploy.predict_folder", stopped)
    (parts / "part-000000000000.safetensors").unlink()
    parts.rmdir()
    table.unlink()
    assert nothing in command(*call)[2]


@pytest.mark.parametrize(
    ("validates", "tuned", "way"),
    [
        (False, False, "give `--val`, or `data.validation` or `data.holdout` in the TOML."),
        (True, True, "give `--val`."),
        (True, False, "`sirc extract EXPERIMENT.toml --only validation`"),
    ],
)
def test_validation_images_that_are_there_are_not_asked_for(validates, tuned, way):
    told = []
    study = SimpleNamespace(folder="runs/photos", tuned=tuned, data=SimpleNamespace(validates=validates))
    note_test_images(study, "set the threshold", "`--val`", Log(told.append))
    assert way in told[0]
