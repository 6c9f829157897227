"""Folders from strangers: looking at one runs nothing that it names, and using it asks for trust."""

import contextlib
import datetime
import json
import os
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import tomli_w

from sirc.errors import ConfigError
from sirc.experiment import Experiment, check_outputs, load_experiment, load_experiments, load_runs, require_trust
from sirc.experiment.results import read_results
from sirc.experiment.trust import is_remembered, remember

MARKING = "from pathlib import Path\nPath('marker').touch()\ndef make(**_):\n    Path('called').touch()\n"
LOOKING = [
    ("report", "runs/tiny", "--out", "page.html", "--overwrite", "--quiet"),
    ("table", "runs/tiny"),
    ("check", "runs/tiny", "--quiet"),
    ("select", "runs/tiny", "--draws", 20, "--quiet"),
]
PLOT = ("plot", "runs/tiny", "--format", "svg", "--out", "drawn")
USING = [
    ("calibrate", "runs/tiny", "--seed", 1, "--plain"),
    ("predict", "data/grey", "--model", "selective.safetensors", "--run", "runs/tiny", "--seed", 1),
    ("export", "runs/tiny", "--model", "selective.safetensors", "--seed", 1),
    ("run", "runs/tiny/experiment.toml"),
    ("train", "runs/tiny/experiment.toml"),
    ("extract", "runs/tiny/experiment.toml"),
    ("fit", "runs/tiny/experiment.toml"),
]
pytestmark = pytest.mark.usefixtures("finished")


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Nothing is known to be this user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def point_to(model, dataset, **options):
    """Make the finished study a stranger's, in which the settings and all stamps name this code."""
    file = Path("runs/tiny/experiment.toml")
    settings = tomllib.loads(file.read_text(encoding="utf-8"))
    settings["model"] |= {"name": model, "options": options}
    settings["data"]["test"]["dataset"] = dataset
    file.write_text(tomli_w.dumps(settings), encoding="utf-8")
    for stamp in Path("runs").rglob(".made-from/extract-*.json"):
        made = json.loads(stamp.read_text(encoding="utf-8"))
        made["inputs"] |= {"model.name": model, "model.options": options}
        if stamp.name == "extract-test.json":
            made["inputs"]["data.test.dataset"] = dataset
        stamp.write_text(json.dumps(made, default=str), encoding="utf-8")
    Path("marking.py").write_text(MARKING, encoding="utf-8")


def settle_cityscapes(folder):
    """Leave archives which torchvision unpacks when it opens the dataset."""
    for name in ("leftImg8bit", "gtFine"):
        with zipfile.ZipFile(Path(folder, f"{name}_trainvaltest.zip"), "w") as archive:
            archive.writestr(f"{name}/test/somewhere/image.png", b"")


def nothing_ran():
    """Whether the attack's code was neither imported nor called."""
    return not {"marker", "called"} & set(os.listdir()) and "marking" not in sys.modules


def looked_at(command):
    """What the commands that look print, and the page."""
    shown = []
    for arguments in LOOKING:
        code, out, err = command(*arguments)
        assert code == 0, err
        shown.append(out)
    return shown, Path("page.html").read_bytes()


@pytest.mark.slow
def test_looking_at_a_folder_runs_nothing_that_it_names(command, few_figures, monkeypatch, attack):
    honest = looked_at(command)
    for place in ("sirc.models.build", "sirc.models.builders.import_function", "sirc.data.wrapped.import_function"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("what a file names was looked for"))
    point_to("marking:make", "marking:make")
    assert looked_at(command) == honest
    point_to("os:system", "os:system", command="touch called")
    assert looked_at(command) == honest
    point_to("sirc.data.wrapped:call_function", "torchvision:datasets.folder.find_classes", name="marking:make")
    assert looked_at(command) == honest
    assert nothing_ran()
    code, out, err = command(*PLOT)
    assert code == 0, err
    assert "'test' is made by `torchvision:datasets.folder.find_classes`, which only `sirc run` calls" in err
    assert "samples" not in out
    settle_cityscapes("data/held-out")
    point_to("marking:make", "torchvision:Cityscapes")
    code, out, err = command(*PLOT)
    assert code == 0, err
    assert "'test' is made by `torchvision:Cityscapes`, which only `sirc run` calls" in err
    point_to("marking:make", "folder")
    code, out, err = command(*PLOT)
    assert code == 0, err
    assert "samples" in out
    assert nothing_ran()
    assert not Path("data/held-out/leftImg8bit").exists()
    attack.tried("run folders that name code, looked at", 3 * len(LOOKING) + 3, "nothing was imported or called")


@pytest.mark.parametrize("arguments", USING, ids=[words[0] for words in USING])
@pytest.mark.slow
def test_using_a_folder_from_elsewhere_asks_for_trust(command, arguments):
    Path("selective.safetensors").touch()
    point_to("marking:make", "marking:make")
    if arguments[0] in ("predict", "export"):  # which look into the other file first
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sirc.deploy.read", lambda _: ({"model": ""}, {}))
            code, out, err = command(*arguments)
    else:
        code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert "experiment.toml' names code that this command runs: `marking:make`." in err
    assert "pass `--trust`, once" in err
    assert nothing_ran()


def test_a_strangers_archives_are_not_unpacked_before_trust_is_given(command):
    settings = tomllib.loads(Path("runs/tiny/experiment.toml").read_text(encoding="utf-8"))
    theirs = Path("theirs")
    for folder in ("annotations", "files", "tars"):
        (theirs / folder).mkdir(parents=True)
    (theirs / "files/k400_train_path.txt").write_text("http://127.0.0.1:9/part_0.tar.gz\n", encoding="utf-8")
    (theirs / "planted.txt").write_text("hi", encoding="utf-8")
    with tarfile.open(theirs / "tars/part_0.tar.gz", "w:gz") as archive:
        archive.add(theirs / "planted.txt", "planted.txt")
    settings["model"] |= {"name": "timm:resnet18", "options": {}}
    settings["data"]["root"] = str(theirs.absolute())
    options = {"frames_per_clip": 1, "download": True}
    settings["data"]["train"] = {"dataset": "torchvision:Kinetics", "path": ".", "options": options}
    Path("runs/tiny/experiment.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    code, out, err = command("calibrate", "runs/tiny", "--seed", 1)
    assert (code, out) == (2, "")
    assert "names code that this command runs: `torchvision:Kinetics`" in err
    assert not (theirs / "train").exists()


def test_no_override_makes_a_kept_experiment_one_s_own(command):
    point_to("marking:make", "marking:make")
    code, _, err = command("run", "runs/tiny/experiment.toml", "--set", "seeds=[9]")
    assert code == 2
    assert "names code that this command runs" in err
    assert nothing_ran()


def test_what_this_user_made_or_trusted_once_is_used(experiment, command):
    point_to("marking:make", "folder")
    file = Path("runs/tiny/experiment.toml")
    for arguments, words in ((["--trust"], "must return a torch.nn.Module"), ([], "must return a torch.nn.Module")):
        code, _, err = command("calibrate", "runs/tiny", "--seed", 1, *arguments)
        assert code == 1
        assert words in err
    assert Path("called").exists()
    sys.modules.pop("marking")
    shutil.copytree("runs/tiny", "moved/tiny")  # the same code, wherever it lies
    require_trust(load_experiment("moved/tiny"), Path("moved/tiny/experiment.toml"), trust=False)
    file.write_text(file.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="--trust"):
        require_trust(load_experiment("runs/tiny"), file, trust=False)
    require_trust(experiment, experiment.save(), trust=False)  # made here
    marks = Path("state/sirc/trusted")
    places = [mark.read_text(encoding="utf-8").removesuffix("\n").split("\0") for mark in marks.iterdir()]
    assert sum(str(file.resolve()) in there for there in places) == 2
    assert marks.stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_without_a_home_trust_is_asked_for_each_time(experiment, monkeypatch):
    file = experiment.save()
    for home, place in (("", "~/.local/state"), ("relative", "~/.local/state"), ("/proc/none", "")):
        monkeypatch.setenv("XDG_STATE_HOME", home)
        monkeypatch.setattr("os.path.expanduser", lambda _, place=place: place)
        remember(file)
        assert not is_remembered(file)
        require_trust(experiment, file, trust=True)
        with pytest.raises(ConfigError, match="`tiny_model:small`"):
            require_trust(experiment, file, trust=False)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["model.name=timm:resnet18", "data.test.dataset=folder"], ""),
        (["model.name=timm:resnet18", "data.test.dataset=torchvision:CIFAR10"], "torchvision:CIFAR10"),
        (["model.name=sirc.models.small:resnet", "data.test={ dataset = 'sirc.data.glyphs:letters' }"], ""),
        (["model.name=timm:hf-hub:someone/model"], "timm:hf-hub:someone/model"),
        (["model.name=timm:resnet18", "model.options.checkpoint_path=a.pt"], "model.options.checkpoint_path"),
        (["model.name=torchvision:resnet18", "data.ood.Grey.dataset=timm:list_models"], "timm:list_models"),
        (["model.name=sirc.models.small:torch.load"], "sirc.models.small:torch.load"),
        (
            ["model.name=torchvision:resnet18", "data.test.dataset=sirc.data.glyphs:sys.exit"],
            "sirc.data.glyphs:sys.exit",
        ),
        (["model.name=sirc.models.builders:build"], "sirc.models.builders:build"),
    ],
)
def test_only_code_from_outside_takes_trust(settings, named):
    study = Experiment.read("tiny.toml", settings)
    words = refusal(require_trust, study, Path("tiny.toml"), False)
    assert words.partition("runs: ")[2].partition(". You")[0] == (f"`{named}`" if named else "")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["..", "/etc", "../other", "inside/../..", "link", "a\0b"])
def test_a_study_lies_in_its_folder(part, command):
    Path("runs/tiny/link").symlink_to("/etc")
    Path("runs/tiny/study.json").write_text(json.dumps({"experiments": [part]}), encoding="utf-8")
    for name in ("report", "table", "select", "calibrate"):
        code, out, err = command(name, "runs/tiny")
        assert (code, out) == (1, "")
        assert "study.json' must name folders inside of its own" in err
        assert "Name the folders themselves" in err
    remember(Path("runs/tiny/study.json"))  # as `sirc run --out` does, which puts studies together
    with pytest.raises((FileNotFoundError, ValueError), match=r"no folder|experiment\.toml"):
        load_experiments("runs/tiny")


def test_a_study_put_together_here_speaks_for_no_other_of_the_same_content(experiment):
    own, other = Path("runs/both/study.json"), Path("stranger/both/study.json")
    for file in (own, other):
        file.parent.mkdir(parents=True)
        file.write_text('{"experiments": ["../tiny"]}', encoding="utf-8")
    remember(own)
    assert [study.folder.name for study in load_experiments("runs/both")] == ["tiny"]
    shutil.copytree("runs/tiny", "stranger/tiny")
    assert "must name folders inside of its own" in refusal(load_experiments, "stranger/both")
    remember(other)
    for folder in ("runs/both", "stranger/both"):
        assert [study.folder.parent.name for study in load_experiments(folder)] == [Path(folder).parent.name]


def test_a_kept_experiment_extends_no_file():
    file = Path("runs/tiny/experiment.toml")
    file.write_text(f'extends = "../../tiny.toml"\n{file.read_text(encoding="utf-8")}', encoding="utf-8")
    with pytest.raises(ConfigError, match="it extends another file"):
        load_experiment("runs/tiny")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["runs/tiny/results.csv", "runs/tiny/seed-1/results.csv"])
def test_results_that_were_changed_or_cut_are_not_shown(file, command):
    file = Path(file)
    honest = file.read_text(encoding="utf-8")
    shutil.copy(file, "mine.csv")
    for spoilt in (honest.replace("0.9", "0.8", 1), honest[: len(honest) // 2], honest.rsplit("\n", 2)[0] + "\n"):
        assert spoilt != honest
        file.write_text(spoilt, encoding="utf-8")
        for place in (file, file.parent):
            code, out, err = command("table", place)
            assert (code, out) == (1, "")
            assert "was changed or cut since it was made" in err
            assert "Make it again with the same `sirc run`" in err
    file.write_text(honest, encoding="utf-8")
    assert command("table", file) == command("table", "mine.csv")  # a table of one's own has no stamp


DAMAGE = "damaged JSON and TOML of a run's folder"
IN_WORDS = "read as they are, or refused in words"
ODD = (None, True, -1, 1e308, "", "x" * 999, [], {}, [[[]]], {"a": {"b": 3}}, "../..", "\0")


def mutated(part):
    """A value with each of its parts in turn left out or replaced."""
    yield from (odd for odd in ODD if odd != part)
    for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        for other in (*mutated(part[key]), mutated):
            rest = part.copy()
            rest[key] = other
            if other is mutated:
                del rest[key]
            yield rest


def damaged(value):
    """The bytes of mutated JSON, and of JSON that is cut, in another encoding or absurd."""
    yield from (json.dumps(whole).encode() for whole in mutated(value))
    text = json.dumps(value)
    yield from (text[: len(text) * i // 7].encode() for i in range(7))
    yield from (b"\xff" + text.encode(), text.encode("utf-16-le"), b"[" * 200_000, b'{"inputs":' * 9999, b"9" * 9999)


def refusal(call, *arguments):
    """The words of the error, if there is one; an error of a kind that commands do not print fails the test."""
    try:
        call(*arguments)
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def test_any_damage_to_study_json_is_told_in_words(attack):
    file = Path("runs/tiny/study.json")
    texts = [*damaged(json.loads(file.read_text(encoding="utf-8")))]
    for text in texts:
        file.write_bytes(text)
        words = refusal(load_experiments, "runs/tiny")
        assert not words or ("runs/tiny" in words and len(words) > 60), text
    attack.tried(DAMAGE, len(texts), IN_WORDS)


def test_any_damage_to_a_stamp_is_told_in_words(attack):
    study = load_experiment("runs/tiny")
    file = Path("runs/tiny/seed-1/.made-from/extract-test.json")
    texts = [*damaged(json.loads(file.read_text(encoding="utf-8")))][:: max(1, 6 // attack.trials(1))]
    for text in texts:
        file.write_bytes(text)
        words = refusal(check_outputs, study, study.run(1), ["test"])
        assert not words or ("seed-1/outputs/test'" in words and "`sirc extract …" in words), text
    file = Path("runs/tiny/seed-1/.made-from/results.json")
    more = [*damaged(json.loads(file.read_text(encoding="utf-8"))["made"])]
    for text in more:
        file.write_bytes(text)
        words = refusal(read_results, "runs/tiny/seed-1/results.csv")
        assert not words or "was changed or cut" in words, text
    attack.tried(DAMAGE, len(texts) + len(more), IN_WORDS)


@pytest.mark.slow
def test_any_damage_to_experiment_toml_is_told_in_words(attack):
    file = Path("runs/tiny/experiment.toml")
    whole = file.read_text(encoding="utf-8")
    mutants = [*mutated(tomllib.loads(whole))][:: max(1, 25 // attack.trials(1))]
    for settings in mutants:
        with contextlib.suppress(TypeError, AttributeError):  # TOML has no null, and is a table
            file.write_text(tomli_w.dumps(settings), encoding="utf-8")
        words = refusal(load_experiment, "runs/tiny")
        assert not words or "experiment.toml" in words, settings
    attack.tried(DAMAGE, len(mutants), IN_WORDS)
    deep = f"[model.options.{'.'.join('a' * 5000)}]\nb = 1\n"
    for text in ((whole + deep).encode(), b"\xff" + whole.encode(), whole.encode("utf-16"), whole[:-40].encode()):
        file.write_bytes(text)
        assert "experiment.toml" in refusal(load_runs, ["runs/tiny"])


def test_settings_of_every_type_are_compared():
    point_to("marking:make", "folder", since=datetime.date(2020, 1, 1))
    assert refusal(load_runs, ["runs/tiny"]) == ""


def name_imports(spec):
    """Make the finished study one whose settings import a module and name a score."""
    file = Path("runs/tiny/experiment.toml")
    settings = tomllib.loads(file.read_text(encoding="utf-8"))
    settings |= {"imports": ["marking"], "model": {"name": "timm:resnet18", "pretrained": False}}
    settings["fit"]["specs"].append(spec)
    file.write_text(tomli_w.dumps(settings), encoding="utf-8")
    Path("marking.py").write_text(MARKING, encoding="utf-8")


@pytest.mark.parametrize("spec", ["energy", "score_of_marking"])
def test_imports_of_a_folder_from_elsewhere_take_trust(command, spec):
    name_imports(spec)
    for arguments in (("calibrate", "runs/tiny", "--seed", 1, "--plain"), ("fit", "runs/tiny/experiment.toml")):
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert "experiment.toml' names code that this command runs: `marking`." in err
    assert nothing_ran()


def test_looking_imports_nothing_and_says_what_would_help(command):
    name_imports("score_of_marking")
    for name in ("report", "check"):
        code, _, err = command(name, "runs/tiny", "--quiet")
        assert code == 2
        assert "unknown score `score_of_marking`" in err
        assert "If you trust them, pass `--import marking`, or import them first." in err
        assert err.count("--import") == 1
    assert nothing_ran()


@pytest.mark.parametrize("imports", ["'marking'", "[3]"])
def test_imports_that_are_no_list_of_modules_are_told(command, imports):
    code, _, err = command("fit", "tiny.toml", "--set", f"imports={imports}", "--set", "fit.specs=['of_marking']")
    assert code == 2
    assert '`imports` must be a list of modules, such as ["my_scores"]; got' in err


def test_imports_of_an_experiment_that_the_user_names_are_imported(command, scratch_registry):
    Path("marking.py").write_text(
        f"{MARKING}import sirc\n@sirc.score(needs='logits')\ndef of_marking(logits):\n    return logits[:, 0]\n",
        encoding="utf-8",
    )
    lines = ["--set", "imports=['marking']", "--set", "fit.specs=['msp', 'of_marking']", "--set", "name=other"]
    code, _, err = command("fit", "tiny.toml", *lines)
    told = command("fit", "tiny.toml", *lines, "--set", "fit.specs=['of_markng']")[2]
    assert "Did you mean `of_marking`?" in told
    assert told.endswith(". None of the modules in `imports` registers it.\n")
    sys.modules.pop("marking", None)
    assert code == 1
    assert "Extract them first" in err  # the score was known
    assert Path("marker").exists()
