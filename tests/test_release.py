"""Wheel and sdist hold what they should; the files of CI, Docker and citation agree with the package."""

import importlib.util
import json
import re
import shutil
import sys
import tomllib

import pytest
import yaml

import sirc
from sirc._utils.imports import DISTRIBUTION
from support.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def script(name):
    """A module of release/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "release" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def instructions():
    """The Dockerfile's instructions, (name, arguments), with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_package_and_nothing_else(tmp_path):
    check = script("check")
    if not check.UV.exists():
        pytest.skip("uv is not installed beside this Python")
    wheel, sdist = check.build(tmp_path / "dist")
    assert check.faults(wheel, sdist) == []
    about = check.metadata_of(wheel)
    assert (about["Name"], about["Version"], about["Author"]) == (DISTRIBUTION, sirc.__version__, "the sirc developers")
    assert about["Project-URL"] is None

    shutil.copy(sdist, large := tmp_path / "large.tar.gz")
    with large.open("ab") as file:
        file.write(b"\0" * check.SDIST_BYTES)
    (fault,) = [fault for fault in check.faults(wheel, large) if "bytes" in fault]
    assert fault.startswith("the sdist has ")


def test_every_extra_for_users_has_a_job_in_a_fresh_environment():
    users = {*PROJECT["optional-dependencies"]} - script("check").FOR_DEVELOPERS
    assert {*script("jobs").JOBS} == {"core", *users}


def test_the_files_that_state_a_version_agree():
    citation = parsed("CITATION.cff")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["version"] == sirc.__version__
    assert re.search(r"^## \[([\d.]+)\] - ", changelog, re.MULTILINE)[1] == sirc.__version__
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Xia", "Bouganis"]


def test_the_workflow_runs_what_ci_runs_on_every_python_that_is_promised():
    jobs = parsed(".github/workflows/ci.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert f">={PYTHONS[0]}" == PROJECT["requires-python"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands == ["bash .ci/run", "make docs", "make release"]
    for job in jobs.values():
        for step in job["steps"]:
            assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.endswith("make test\nmake release\n")


def test_commits_are_checked_by_the_tools_of_the_environment():
    (repo,) = parsed(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert {hook["id"] for hook in repo["hooks"]} == {"ruff", "ruff-format", "mypy"}
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in repo["hooks"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_the_forms_of_issues_ask_something(form):
    content = parsed(form)
    assert {"name", "description", "body"} <= content.keys()
    kinds = {"checkboxes", "dropdown", "input", "markdown", "textarea"}
    assert {part["type"] for part in content["body"]} <= kinds
    assert all(part["attributes"]["label"] for part in content["body"])
    names = [part["id"] for part in content["body"]]
    assert len({*names}) == len(names)
    assert any(part.get("validations", {}).get("required") for part in content["body"])


def test_the_image_of_the_service_is_small_and_has_no_root():
    lines = instructions()
    names = [name for name, _ in lines]
    assert names.count("FROM") == 2, "what builds stays behind"
    last = len(names) - names[::-1].index("FROM")  # the instructions of the image itself
    for name, words in lines:
        if name == "FROM":
            assert re.fullmatch(r"\w+:\d+\.\d+-slim( AS \w+)?", words), "a version, never `latest`"
        if name == "RUN" and "apt-get" in words:
            assert "rm -rf /var/lib/apt/lists" in words
        if name == "RUN" and re.search(r"\bpip install", words):
            assert re.search(r"--no-cache(-dir)?\b", words)
        assert name not in ("ADD", "ARG", "MAINTAINER")
    image = dict(lines[last:])
    assert image["USER"] not in ("root", "0")
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "/ready" in image["HEALTHCHECK"]
    entry = json.loads(image["ENTRYPOINT"])
    assert entry[:2] == ["sirc", "serve"]
    assert image["EXPOSE"] == entry[entry.index("--port") + 1]


def test_the_image_is_built_from_files_that_are_sent_to_docker():
    sent = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")
    }
    copied = {
        word
        for name, words in instructions()
        if name == "COPY" and "--from" not in words
        for word in words.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "src"} <= copied
