"""What a command says when it fails or is stopped: true of it, and in terms of its own options."""

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
from typer import Option
from typer.main import get_command

import sirc
from sirc._utils.warn import warn
from sirc.cli import COMMANDS, app, data
from sirc.cli.endings import _STOPPED, _TABLES, ending, in_options, what_stays
from sirc.cli.options import note_test_images
from sirc.experiment.config import Extract, Fit, Model
from sirc.progress import Log

SOURCE = Path(sirc.__file__).parent
TEXTS = [*SOURCE.rglob("*.py"), *(SOURCE.parents[1] / "docs").glob("*.md"), SOURCE.parents[1] / "README.md"]
NAMED = {command.__name__: command for command in COMMANDS}
# Arguments that no command passes on, or that the words around them explain.
PYTHON_ONLY = {
    "keep",
    *("classes", "dtype", "index", "size", "skipped", "shuffle", "distributed", "one_pass", "second", "preprocess"),
    *("reject_cost", "c", "key", "set", "features", "alpha", "beta"),
}


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


def test_every_command_that_an_error_or_a_page_names_has_the_options_it_names():
    found = 0
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for name, rest in re.findall(r"`sirc ((?:data )?[a-z]+)\b([^`\n]*)`", text):
            asked = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
            assert asked <= options_of(name), (path, name, rest)
            found += len(asked)
    assert found > 30


@pytest.mark.slow
def test_every_argument_that_an_error_names_is_an_option_somewhere_or_is_known_to_be_none():
    known = PYTHON_ONLY | _TABLES.keys() | {"labelled", "labels", "allow_empty", "relative", "overwrite"}
    known |= {option.strip("-").replace("-", "_") for name in NAMED for option in options_of(name)}
    for path, text in said():
        if path.parent.name != "cli":
            for keyword in re.findall(r"`(?:\w+\((?:…|\.{3}), )?(\w+)=[^=`][^`]*`", text):
                assert keyword in known, (path, text)


def test_arguments_are_told_as_options_or_keys():
    def told(name, text):
        return in_options(NAMED.get(name) or getattr(data, name), text)

    assert told("extract", "pass `overwrite=True` to replace it") == "pass `--overwrite` to replace it"
    assert told("noise", "or pass `overwrite=True`.") == "or pass `--overwrite`."
    assert told("run", "with `create(..., overwrite=True)`.") == "with `--redo extract`."
    assert told("train", "with `overwrite=True` (`--overwrite`; …)") == "with `overwrite=True` (`--overwrite`; …)"
    assert told("evaluate", "Pass `crossfit=0`") == "Pass `--crossfit 0`"
    assert told("fit", "Pass `crossfit=0`") == "Pass `--set fit.crossfit=0`"
    assert told("fit", 'as `on_unfit="skip"` does') == "as `--set fit.on_unfit=skip` does"
    assert told("evaluate", 'as `on_unfit="skip"` does') == "as `--on-unfit skip` does"
    assert told("run", "`checkpoint=` with `pretrained=False`") == (
        "`--set model.checkpoint=…` with `--set model.pretrained=false`"
    )
    assert told("evaluate", "Pass `fit(…, val=sirc.Outputs(logits, features, labels))`") == "Pass `--val …`"
    assert told("evaluate", "`head=sirc.find_head(model, x)` or `head=sirc.Head(w, b)`") == "`--head …`"
    assert told("extract", 'count them: `on_error="skip"`.') == "count them: `--on-error skip`."
    assert told("run", 'count them: `on_error="skip"`.') == "count them: `--set extract.on_error=skip`."
    assert told("calibrate", "say where: `--set data.root=…`.") == "say where: `data.root = …` in the TOML."
    assert told("select", "Pass `relative=False`") == "Pass `--absolute`"
    assert told("evaluate", "with `spill`, `test` must have labels") == "with `--spill`, `--id` must have labels"
    assert told("serve", "use `Outputs(..., classes=…)`") == "use `Outputs(..., classes=…)`"


def test_warnings_are_told_in_options_too(capsys):
    def evaluate(crossfit: Annotated[str, Option()] = "auto") -> None:
        warn('Pass `crossfit="auto"`, or fit on more rows')

    ending(evaluate)()
    assert capsys.readouterr().err == "warning: Pass `--crossfit auto`, or fit on more rows\n"


def test_keys_are_those_of_the_toml():
    tables = {"model": Model, "extract": Extract, "fit": Fit}
    for key, table in _TABLES.items():
        assert key in {field.name for field in fields(tables[table])}


@pytest.mark.parametrize("name", _STOPPED)
def test_what_stays_is_said_of_commands_that_there_are(name):
    command = NAMED.get(name) or getattr(data, name)
    assert "{" not in what_stays(command.__name__, {"out": Path("decisions.csv")})


def test_a_table_that_was_not_begun_is_refused_at_once_and_begun_anew(tmp_path, command, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    table, parts = tmp_path / "decisions.csv", tmp_path / ".decisions.csv.parts"  # as tests of `predict_folder` find it
    call = ("predict", tmp_path, "--onnx", tmp_path / "none.onnx", "--out", table)
    table.write_text("older", encoding="utf-8")
    assert "exists already. Pass `--overwrite`" in command(*call)[2]
    monkeypatch.setattr("sirc.deploy.predict_folder", stopped)
    nothing = "nothing was written, and the same command begins anew"
    assert nothing in command(*call, "--overwrite")[2]
    parts.mkdir()
    assert "without `--overwrite` the same command goes on" in command(*call, "--overwrite")[2]
    assert "the same command goes on from there" in command(*call)[2]
    parts.rmdir()
    table.unlink()
    assert nothing in command(*call)[2]


@pytest.mark.parametrize(
    ("validates", "tuned", "way"),
    [
        (False, False, "give `--val`, or `data.validation`"),
        (True, True, "give `--val`, or `data.validation`"),
        (True, False, "`sirc extract EXPERIMENT.toml --only validation`"),
    ],
)
def test_validation_images_that_are_there_are_not_asked_for(validates, tuned, way):
    told = []
    study = SimpleNamespace(folder="runs/photos", tuned=tuned, data=SimpleNamespace(validates=validates))
    note_test_images(study, "choose the score", Log(told.append))
    assert way in told[0]
