"""The packages: layers hold, imports go through `__init__`, and each package says what it is for."""

import ast
from functools import cache
from pathlib import Path

import pytest
from importlinter.application.use_cases import lint_imports
from importlinter.configuration import configure

import sirc

SOURCE = Path(sirc.__file__).parent
TESTS = Path(__file__).parent
PACKAGES = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
TOOLBOXES = ("_utils", "errors", "progress")  # of small modules, each imported by itself


def module_name(path):
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def nodes(path):
    """All nodes of a source file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path):
    """(module, name) of every `from sirc.… import …` in a file, those inside functions too."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sirc."):
            for alias in node.names:
                yield node.module, alias.name


def test_a_package_imports_only_from_layers_below(capsys):
    configure()
    kept = lint_imports(config_filename=str(SOURCE.parents[1] / "pyproject.toml"), cache_dir=None)
    assert kept, capsys.readouterr().out


def test_other_packages_import_only_what_a_package_exports():
    """A name is imported from the package itself, which lists it in `__all__`."""
    passed_by = []
    for path in SOURCE.rglob("*.py"):
        here = module_name(path).split(".")[1:2]
        for module, name in imports(path):
            parts = module.split(".")
            if parts[1:2] == here or parts[1] in TOOLBOXES or path.parent == SOURCE:
                continue
            package = SOURCE.joinpath(*parts[1:], "__init__.py")
            if not package.exists() or name not in exported(package):
                passed_by.append(f"{module_name(path)}: from {module} import {name}")
    assert not passed_by, "\n".join(passed_by)


def test_nothing_but_the_version_is_imported_from_sirc_itself():
    """`import sirc` would let a package reach every other one past the layers."""
    allowed, taken = {"__version__", *TOOLBOXES, *(package.name for package in PACKAGES)}, []
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            names = []
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "sirc":
                names = {node.attr} - {"__version__"}
            elif isinstance(node, ast.ImportFrom) and node.module == "sirc":
                names = {alias.name for alias in node.names} - allowed  # the layers know of packages imported so
            elif isinstance(node, ast.Import):
                names = [a.name for a in node.names if a.name.startswith("sirc.") or (a.name == "sirc" and a.asname)]
            taken += [f"{module_name(path)}:{node.lineno}: {name}" for name in names]
    assert not taken, "\n".join(taken)


@cache
def exported(package):
    for node in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_text_files_are_read_and_written_as_utf_8_whatever_the_locale():
    folders = (SOURCE, *(SOURCE.parents[1] / name for name in ("tests", "benchmarks", "docs", "studies")))
    without = []
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "read_text" not in text and "write_text" not in text:  # parsing every file would take seconds
            continue
        for node in ast.walk(ast.parse(text)):
            method = isinstance(node, ast.Call) and getattr(node.func, "attr", "")
            if method in ("read_text", "write_text") and "encoding" not in {word.arg for word in node.keywords}:
                without.append(f"{path}:{node.lineno}")
    assert not without, "\n".join(without)


@pytest.mark.parametrize("package", sorted(path.parent for path in SOURCE.rglob("*/__init__.py")), ids=module_name)
def test_a_package_says_what_it_is_for(package):
    words = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert 5 <= len(words.partition("\n")[0].split()) <= 25


def test_only_four_modules_are_beside_the_packages():
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py", "progress.py"}


def test_every_package_has_its_folder_of_tests_and_none_is_left_over():
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"legacy", "studies", "support"} == {package.name for package in PACKAGES}


def test_no_test_takes_anything_from_the_file_of_another():
    for path in TESTS.rglob("*.py"):
        for node in nodes(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = getattr(node, "module", None) or ""
            assert not [name for name in (module, *names) if name.rpartition(".")[2].startswith("test_")], path
