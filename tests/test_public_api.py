"""What is public is what `__all__` says, and all of it is explained."""

import ast
import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import sirc
import sirc.report.page
from sirc import functional
from sirc.scores import COMBINATIONS
from support.interpreters import python


def test_all_is_exactly_what_is_public():
    assert sirc.SelectiveMetrics is sirc.metrics.SelectiveMetrics  # made when first asked for
    assert issubclass(sirc.SelectiveClassifier, torch.nn.Module)
    assert sirc.Decision._fields == ("label", "confidence", "accepted", "logits")
    modules = {name for name in sirc.__all__ if isinstance(getattr(sirc, name), types.ModuleType)}  # imports all names
    public = {
        name
        for name, value in vars(sirc).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "TYPE_CHECKING"
    }
    assert set(sirc.__all__) == public | modules
    assert {"functional", "moments"} <= modules
    assert sorted(sirc.__all__) == list(sirc.__all__)
    assert len(set(sirc.__all__)) == len(sirc.__all__)


def test_type_checkers_see_what_is_imported_on_first_use():
    (block,) = (
        node for node in ast.parse(Path(sirc.__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.If)
    )
    imported = {(node.module, alias.name) for node in block.body for alias in node.names}
    modules = {("sirc", name) for name in ("data", "metrics", "models", "progress")}
    names = {(package, name) for package, names in sirc._PACKAGES.items() for name in names}
    assert imported == modules | names
    assert sorted(name for _, name in imported) == sorted(sirc.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        sirc.nonsense  # noqa: B018


@pytest.mark.slow
def test_what_is_not_used_is_not_imported():
    subprocess.run([sys.executable, "-c", "import sys, sirc; assert 'torch' not in sys.modules"], check=True)
    program = """
import sys
import sirc
sirc.fit, sirc.Outputs, sirc.find_head, sirc.extract
assert "pandas" not in sys.modules, "fit"
sirc.SelectiveClassifier, sirc.threshold, sirc.monitor
assert not {"pandas", "fastapi", "onnxruntime"} & set(sys.modules), "deploy"
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_the_contract_s_names_are_there():
    wanted = {"Outputs", "OutputStore", "Head", "find_head", "fit", "Scorer", "Fitter", "NotFittedError", "StoreError"}
    assert wanted <= set(sirc.__all__)
    assert issubclass(sirc.NotFittedError, ValueError)
    assert issubclass(sirc.StoreError, ValueError)


def test_functional_has_exactly_its_formulas():
    defined = {
        name
        for name, value in vars(functional).items()
        if inspect.isfunction(value) and value.__module__ == functional.__name__ and not name.startswith("_")
    }
    assert set(functional.__all__) == defined
    leaves = set(sirc.known_names()) - {*COMBINATIONS, "scod"}  # also without those that other tests registered
    assert all(callable(getattr(functional, leaf)) for leaf in leaves)


def documented(owner):
    for name, value in vars(owner).items():
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property | classmethod)):
            yield name, inspect.getdoc(value)


@pytest.mark.parametrize("name", sirc.__all__)
def test_every_public_name_is_explained(name):
    value = getattr(sirc, name)
    assert len(inspect.getdoc(value) or "") > 15
    if inspect.isclass(value):
        for method, text in documented(value):
            assert text, f"{name}.{method}"


@pytest.mark.parametrize("name", functional.__all__)
def test_every_formula_is_explained_and_typed(name):
    function = getattr(functional, name)
    assert len(inspect.getdoc(function)) >= 10
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not p.empty for p in signature.parameters.values())


def test_options_are_keyword_only():
    parameters = inspect.signature(sirc.fit).parameters
    assert list(parameters)[:2] == ["specs", "train"]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[2:])


@pytest.mark.slow  # starts interpreters
@pytest.mark.parametrize("name", ["deploy.predict_folder", "experiment.Experiment", "scores.combination"])
def test_what_the_docs_call_by_its_room_needs_no_import_but_sirc(name):
    subprocess.run([sys.executable, "-c", f"import sirc; sirc.{name}"], check=True)


def test_submodules_are_reachable_by_their_dotted_name():
    assert sirc.scores.formulas.softmax.Softmax.__module__ == "sirc.scores.formulas.softmax"
    assert sirc.scores.formulas.feature.BANK_SIZE == 12_500
    assert sirc.report.page.report.__module__ == "sirc.report.page"
    assert sirc.scores.formulas.logit.energy.__module__ == "sirc.scores.formulas.logit"
