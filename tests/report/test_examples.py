"""Every public function of the reports has an example, and it comes out as written."""

import doctest
import inspect

import pytest

from sirc.report import figures, names, page, tables

PUBLIC = {
    f"{module.__name__}.{name}": value
    for module in (figures, names, page, tables)
    for name, value in vars(module).items()
    if not name.startswith("_") and (inspect.isfunction(value) or name in ("Look", "Plane"))
    if name in getattr(module, "__all__", [name]) and inspect.unwrap(value).__module__.startswith(module.__name__)
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_comes_out_as_written(name):
    value = PUBLIC[name]
    (test,) = doctest.DocTestFinder(recurse=False).find(value, name, module=False, globs={})
    assert test.examples, f"the docstring of {name} must have an example, lines that start with >>>"
    failed, _ = doctest.DocTestRunner().run(test)
    assert not failed
