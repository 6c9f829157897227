"""Functions by name: moved modules are found, and earlier runs stay valid; nothing of Python's own is one."""

import functools
import os
import re
import tomllib

import pytest

from sirc._utils.imports import DISTRIBUTION, import_function, import_module, missing_package, stored_name
from sirc.models import small
from support.pages import ROOT


def test_the_old_path_of_a_moved_module_is_understood():
    assert import_function("sirc.small:resnet", "a name") is small.resnet
    assert import_function("sirc.models.small:resnet", "a name") is small.resnet


def test_runs_store_a_moved_module_by_its_old_path():
    assert stored_name("sirc.models.small:resnet") == stored_name("sirc.small:resnet") == "sirc.small:resnet"
    assert stored_name("timm:resnet50") == "timm:resnet50"
    assert stored_name("my.models.small:resnet") == "my.models.small:resnet"


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"`no_such.module:f` must be a name; no module `no_such` is installed or in"):
        import_function("no_such.module:f", "a name")
    with pytest.raises(ValueError, match=r"`sirc.models.small` has no `resnt`. Did you mean `resnet`\?"):
        import_function("sirc.small:resnt", "a name")
    with pytest.raises(ValueError, match="`numpy:pi` must be a function; got a float"):
        import_function("numpy:pi", "a name")


@pytest.mark.parametrize("name", ["sirc.models.small:resnet", "./sirc/models/small.py", "sirc.models.small:"])
def test_a_module_is_named_without_a_function_or_an_ending(name):
    assert import_module("sirc.models.small") is small
    with pytest.raises(ValueError, match=r"must be a module, `package.module`. Write `sirc.models.small`\."):
        import_module(name)


PARTIAL = functools.partial(functools.partial(os.system), "true")
SHELL = os.system
LISTED = [].append


@pytest.mark.parametrize(
    "name",
    ["os:system", "os.path:join", "builtins:eval", "posix:system", "importlib:import_module", "no_such.os:system"]
    + [f"{__name__}:{name}" for name in ("SHELL", "PARTIAL", "LISTED", "os.system", "os.path.join", "small.resnet")],
)
def test_no_road_leads_to_the_standard_library_or_through_another_module(name):
    words = "standard library|must not lead through another module|no module `no_such`"
    with pytest.raises(ValueError, match=words):
        import_function(name, "a name")


def test_functions_that_are_wrapped_are_functions(monkeypatch):
    monkeypatch.setattr(small, "narrow", functools.partial(small.resnet, width=4), raising=False)
    assert import_function("sirc.models.small:narrow", "a name") is small.narrow


def test_every_text_installs_the_distribution_by_its_name_and_an_extra_that_it_has():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert "pip install 'torch-sirc[vision]'" in str(missing_package("this", "that"))
    kinds = (".css", ".html", ".ipynb", ".js", ".md", ".py", ".toml", ".yaml", ".yml")
    folders = ("docs", "src", "studies", "benchmarks", "release", ".github")
    texts = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in kinds]
    texts += [file for file in ROOT.iterdir() if file.is_file() and file.suffix in (*kinds, "", ".cff")]
    pattern = re.compile(r"pip install (?:-\S+ )*['\"]?([^'\"` ]*sirc[^'\"` \n]*)|(?<![\w.-])(sirc\[[^\]]*\])")
    found = [max(words) for path in texts for words in pattern.findall(path.read_text(encoding="utf-8"))]
    assert len(found) > 8
    for words in found:
        name, _, extras = words.rstrip(".,;").partition("[")
        assert name in (DISTRIBUTION, "{DISTRIBUTION}"), words
        assert {*extras.rstrip("]").split(",")} <= {*project["optional-dependencies"], "", "{extra}"}, words
