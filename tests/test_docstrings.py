"""Every public name has an example in its docstring, and it runs."""

import doctest
import inspect
import re

import pytest

import sirc

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECTION = re.compile(r"^Example:\n(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)


def examples_of(name):
    """The doctest examples in the `Example:` section of a public name's docstring."""
    section = SECTION.search(inspect.getdoc(getattr(sirc, name)) or "")
    return doctest.DocTestParser().get_examples(section.group(1), name) if section else []


@pytest.mark.parametrize("name", sirc.__all__)
def test_the_example_of_this_name_runs(name, tmp_path, monkeypatch, scratch_registry):
    examples = examples_of(name)
    assert examples, f"the docstring of sirc.{name} must have a section `Example:` with lines that start with >>>"
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTest(examples, {"__name__": "example"}, f"sirc.{name}", None, None, None)
    said = []
    failed = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append).failed
    assert not failed, "".join(said)
