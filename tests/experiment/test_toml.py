"""TOML becomes dataclasses and TOML again; what is wrong is told by file, line, key, rule and way out."""

import dataclasses
import datetime
import math
import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sirc.errors import ConfigError
from sirc.experiment import toml
from support.examples import examples


@dataclass(frozen=True)
class Optimiser:
    lr: float = 0.1
    nesterov: bool = False
    milestones: tuple[int, ...] = (30, 60)
    schedule: Literal["steps", "cosine"] = "steps"

    def __post_init__(self):
        if not self.lr > 0:
            raise ValueError(f"`lr` must be positive; got {self.lr}.")
        if len(self.milestones) > 5:
            raise ValueError("too many milestones")


@dataclass(frozen=True)
class Place:
    path: str
    count: int | None = None


@dataclass(frozen=True)
class Study:
    name: str
    epochs: int = 90
    size: int | tuple[int, int] | None = 224
    scale: tuple[float, float] = (0.08, 1.0)
    crossfit: int | Literal["auto"] = "auto"
    pretrained: bool | str = False
    note: str | None = None
    train: Optimiser | None = None
    test: Optimiser = field(default_factory=Optimiser)
    places: dict[str, Place] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self):
        if "bad" in self.places:
            raise ValueError("`places.bad.path` must not be bad. Rename it.")


def study(tmp_path, text, *overrides):
    path = tmp_path / "study.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return toml.Document.open(path, overrides).build(Study)


def refusal(tmp_path, text, *overrides):
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, text, *overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_every_kind_of_value_is_read(tmp_path):
    read = study(
        tmp_path,
        """
        name = "a \\"b\\" \\u00e9"
        size = [480, 480]
        scale = [0, 1]
        crossfit = 0
        pretrained = "IMAGENET1K_V1"
        train.lr = 1
        train.milestones = []
        places."my set" = { path = "x", count = 3 }
        [places.other]
        path = "y"
        [options]
        depth = 3
        deeper = { a = [1, 2.5, "c"] }
        """,
    )
    assert read == Study(
        'a "b" é',
        size=(480, 480),
        scale=(0.0, 1.0),
        crossfit=0,
        pretrained="IMAGENET1K_V1",
        train=Optimiser(lr=1.0, milestones=()),
        places={"my set": Place("x", 3), "other": Place("y")},
        options={"depth": 3, "deeper": {"a": [1, 2.5, "c"]}},
    )
    assert type(read.train.lr) is float
    assert all(type(value) is float for value in read.scale)


def test_defaults_fill_what_is_left_out(tmp_path):
    assert study(tmp_path, 'name = "x"') == Study("x")


def test_none_can_be_said_where_the_default_is_something_else(tmp_path):
    assert study(tmp_path, 'name = "x"\nsize = "none"').size is None
    assert study(tmp_path, 'name = "x"', "size=none").size is None
    assert study(tmp_path, 'name = "x"\nnote = "none"').note == "none"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "x"\n\nepoch = 3', "study.toml:3: `epoch` is not a key of the top level. Did you mean `epochs`?"),
        (
            'name = "x"\n[test]\n# hm\nzzz = 3',
            "study.toml:4: `test.zzz` is not a key of [test]. It knows lr, nesterov, milestones, schedule.",
        ),
        ('name = "x"\nepochs = "3"', 'study.toml:2: `epochs` must be a whole number; got "3".'),
        ('name = "x"\nepochs = 3.0', "study.toml:2: `epochs` must be a whole number; got 3.0."),
        ('name = "x"\nepochs = true', "study.toml:2: `epochs` must be a whole number; got true."),
        ('name = "x"\n[test]\nnesterov = 1', "study.toml:3: `test.nesterov` must be true or false; got 1."),
        ('name = "x"\ntest.lr = false', "study.toml:2: `test.lr` must be a number; got false."),
        ("name = 3", 'study.toml:1: `name` must be a string; got 3. Write "3", in quotes.'),
        (
            'name = "x"\ntest = { schedule = "cosin" }',
            'study.toml:2: `test.schedule` must be "steps" or "cosine"; got "cosin". Did you mean `cosine`?',
        ),
        (
            'name = "x"\n[test]\nmilestones = [\n  30,\n  "sixty",\n]',
            'study.toml:3: `test.milestones[1]` must be a whole number; got "sixty".',
        ),
        (
            'name = "x"\nscale = [1]',
            "study.toml:2: `scale` must be a list of 2 numbers; got [1].",
        ),
        (
            'name = "x"\nsize = [1, 2, 3]',
            "study.toml:2: `size` must be a whole number or a list of 2 whole numbers; got [1, 2, 3].",
        ),
        (
            'name = "x"\ncrossfit = "aut"',
            'study.toml:2: `crossfit` must be a whole number or "auto"; got "aut". Did you mean `auto`?',
        ),
        (
            'name = "x"\ntrain = 3',
            "study.toml:2: `train` must be a table with lr, nesterov, milestones, schedule; got 3.",
        ),
        ('name = "x"\nplaces = [1]', "study.toml:2: `places` must be a table; got [1]."),
        ("epochs = 3", "study.toml: `name` is missing; it must be a string."),
        (
            'name = "x"\n\n[places."my set"]\ncount = 3',
            'study.toml:3: `places."my set".path` is missing; it must be a string.',
        ),
        ('name = "x"\n[train]\nlr = -1\n', "study.toml:3: `train.lr` must be positive; got -1.0."),
        ('name = "x"\n[train]\nlr = nan\n', "study.toml:3: `train.lr` must be positive; got nan."),
        (
            'name = "x"\n[train]\nmilestones = [1, 2, 3, 4, 5, 6]\n',
            "study.toml:2: `train` is refused: too many milestones",
        ),
        ('name = "x"\n[places.bad]\npath = ""', "study.toml:3: `places.bad.path` must not be bad. Rename it."),
    ],
)
def test_a_mistake_is_told_with_its_place_and_the_rule(tmp_path, text, words):
    assert refusal(tmp_path, text).startswith(words)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('name = "x"\r\n\r\ntest.lr = "a"\r\n', 3),
        ('name = "x"\n[test]\n\n\n"lr" = "a"', 5),
        ('name = """\nlr = 3\n[test]\n"""\n[test]\nlr = "a"', 6),
        ('name = "x" # test.lr\noptions = { a = [\n1,\n2] }\n# lr = 3\n[test]\nepochs = 1', 7),
        ('name = "x\u2028\x85"\ntest.lr = ""', 2),
        ('\ufeffname = "x"\ntest.lr = ""', 2),
    ],
)
def test_the_line_is_where_the_key_is_not_where_its_name_occurs(tmp_path, text, line):
    assert refusal(tmp_path, text).startswith(f"study.toml:{line}: `test.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = 1\nb = \n", "study.toml:2: this is not TOML: Invalid value (at line 2, column 5)."),
        ("a = 1\na = 2", "study.toml:2: this is not TOML: Cannot overwrite a value"),
        ("a = [1,\n2,\n\n", "study.toml:2: this is not TOML: "),
        ("hello", "study.toml:1: this is not TOML: "),
        (b"a = 1\nb = '\xff'", "'study.toml' must be UTF-8, as all TOML is"),
        ("a = " + "[" * 100_000, "study.toml"),
        ("\0", "study.toml:1: this is not TOML"),
    ],
)
def test_what_is_not_toml_is_told_with_its_line(tmp_path, text, words):
    assert refusal(tmp_path, text).startswith(words)


def test_a_file_that_is_not_there_is_told_with_the_nearest(tmp_path):
    (tmp_path / "resnet50.toml").touch()
    with pytest.raises(ConfigError, match=r"there is no file '.*resnet5.toml'. Did you mean `resnet50.toml`\?"):
        toml.Document.open(tmp_path / "resnet5.toml")
    with pytest.raises(ConfigError, match=r"there is no file '.*nowhere/x.toml'.$"):
        toml.Document.open(tmp_path / "nowhere" / "x.toml")
    for path in (tmp_path, tmp_path / "resnet50.toml" / "x", "a\0b"):
        with pytest.raises(ConfigError, match=r"is a folder; name a TOML file in it|cannot be read: "):
            toml.Document.open(path)


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("epochs=3", {"epochs": 3}),
        (" epochs = 3 ", {"epochs": 3}),
        ("name=plain words", {"name": "plain words"}),
        ("name=a=b", {"name": "a=b"}),
        ("name=", {"name": ""}),
        ('name="3"', {"name": "3"}),
        ("name=x\nepochs = 3", {"name": "x\nepochs = 3"}),
        ("train.lr=1e-3", {"train": Optimiser(lr=1e-3)}),
        ("train.milestones=[1, 2]", {"train": Optimiser(milestones=(1, 2))}),
        ("size=[3, 4]", {"size": (3, 4)}),
        ("pretrained=true", {"pretrained": True}),
        ('places."a=b.c".path=~/x y', {"places": {"a=b.c": Place("~/x y")}}),
        ("places.Near-IN.path=/x", {"places": {"Near-IN": Place("/x")}}),
        ("options.a.b=1", {"options": {"a": {"b": 1}}}),
    ],
)
def test_an_override_sets_what_the_file_could(tmp_path, override, changed):
    assert study(tmp_path, 'name = "x"', override) == dataclasses.replace(Study("x"), **changed)


def test_later_overrides_win_and_go_into_tables_of_the_file(tmp_path):
    read = study(tmp_path, 'name = "x"\n[train]\nlr = 1.0\nnesterov = true', "train.lr=2", "train.lr=3")
    assert read.train == Optimiser(lr=3.0, nesterov=True)
    assert study(tmp_path, 'name = "x"\n[train]\nlr = 1.0', "train={nesterov = true}").train == Optimiser(nesterov=True)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.lr=fast", '--set train.lr=fast: `train.lr` must be a number; got "fast".'),
        ("train.lr=-1", "--set train.lr=-1: `train.lr` must be positive; got -1.0."),
        (
            "train.milestone=1",
            "--set train.milestone=1: `train.milestone` is not a key of [train]. Did you mean `milest",
        ),
        ("places.a.count=1", "--set places.a.count=1: `places.a.path` is missing; it must be a string."),
        ("epochs.a=1", "--set epochs.a=1: `epochs` must be a table to set a key in it; got 3."),
        ("name=3", '--set name=3: `name` must be a string; got 3. Write "3", in quotes.'),
        ("epochs", "--set epochs: an override must be KEY=VALUE"),
        ("=3", "--set =3: an override must be KEY=VALUE"),
        ("é=3", "--set é=3: an override must be KEY=VALUE, the key as in the file, quoted if it has odd"),
        ("a=1\nb=2", "--set a=1\nb=2: `a` is not a key of the top level"),
        ("epochs=\udcff", '--set epochs=\udcff: `epochs` must be a whole number; got "\\udcff".'),
    ],
)
def test_a_bad_override_is_told_by_its_own_text(tmp_path, override, words):
    assert refusal(tmp_path, 'name = "x"\nepochs = 3', override).startswith(words)


texts = st.text(st.characters(blacklist_categories=("Cs",)))
whole = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False)
anything = st.recursive(
    st.booleans()
    | whole
    | numbers
    | texts
    | st.dates()
    | st.times().filter(lambda t: t.fold == 0)
    | st.datetimes(timezones=st.just(datetime.UTC)).filter(lambda t: t.fold == 0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
optimisers = st.builds(
    Optimiser,
    lr=st.floats(min_value=0, exclude_min=True),
    nesterov=st.booleans(),
    milestones=st.lists(whole, max_size=5).map(tuple),
    schedule=st.sampled_from(["steps", "cosine"]),
)
studies = st.builds(
    Study,
    name=texts,
    epochs=whole,
    size=st.none() | whole | st.tuples(whole, whole),
    scale=st.tuples(numbers, numbers),
    crossfit=whole | st.just("auto"),
    pretrained=st.booleans() | texts,
    note=st.none() | texts,
    train=st.none() | optimisers,
    test=optimisers,
    places=st.dictionaries(
        texts.filter(lambda name: name != "bad"), st.builds(Place, texts, st.none() | whole), max_size=3
    ),
    options=st.dictionaries(texts, anything, max_size=3),
)


@examples(100)
@given(studies)
def test_what_is_dumped_reads_back_equal(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_bytes(toml.dump(value).encode())
    again = toml.Document.open(path).build(Study)
    assert again == value
    assert list(again.places) == list(value.places)
    assert toml.dump(again) == toml.dump(value)


def test_a_dump_says_every_default_and_none_where_it_differs():
    value = Study("x", size=None, train=Optimiser(lr=1e-4), places={"my set": Place("y")}, options={"inf": math.inf})
    optimiser = {"lr": 0.1, "nesterov": False, "milestones": [30, 60], "schedule": "steps"}
    assert tomllib.loads(toml.dump(value)) == {
        "name": "x",
        "epochs": 90,
        "size": "none",
        "scale": [0.08, 1.0],
        "crossfit": "auto",
        "pretrained": False,
        "train": optimiser | {"lr": 1e-4},
        "test": optimiser,
        "places": {"my set": {"path": "y"}},
        "options": {"inf": math.inf},
    }


def test_what_toml_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"TOML cannot hold every value: .*set"):
        toml.dump(Study("x", options={"a": {1}}))
    with pytest.raises(ValueError, match=r"TOML cannot hold every value: .*'\\udcff'"):
        toml.dump(Study("\udcff"))


def test_control_characters_are_escaped():
    assert tomllib.loads(toml.dump(Study('\x00\x1b\x7f"\\\n\t')))["name"] == '\x00\x1b\x7f"\\\n\t'


@pytest.fixture
def extending(tmp_path):
    """Three files, each in a folder of its own, of which each extends the next."""
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases" / "root.toml").write_text(
        'epochs = 1\nscale = [0.1, 0.2]\n\n[train]\nlr = 1.0\nmilestones = [1, 2, 3]\n\n[places.a]\npath = "a"\n',
        encoding="utf-8",
    )
    (tmp_path / "bases" / "middle.toml").write_text(
        'extends = "root.toml"\nepochs = 2\n\n[train]\nnesterov = true\n', encoding="utf-8"
    )
    top = 'extends = "bases/middle.toml"\nname = "top"\n\n[train]\nmilestones = [9]\n\n[places]\na = { count = 2 }\n'
    return lambda more="", *overrides: study(tmp_path, top + more, *overrides)


def test_a_file_states_only_how_it_differs_from_the_one_it_extends(extending):
    assert extending() == Study(
        "top",
        epochs=2,
        scale=(0.1, 0.2),
        train=Optimiser(lr=1.0, nesterov=True, milestones=(9,)),
        places={"a": Place("a", 2)},
    )
    assert extending('b = { path = "b" }').places == {"a": Place("a", 2), "b": Place("b")}
    assert extending("", "train.lr=3", "epochs=4") == dataclasses.replace(
        extending(), epochs=4, train=Optimiser(lr=3.0, nesterov=True, milestones=(9,))
    )


def test_a_mistake_is_told_in_the_file_that_has_it(extending, tmp_path):
    def words(*arguments):
        with pytest.raises(ConfigError) as caught:
            extending(*arguments)
        return str(caught.value).replace(f"{tmp_path}/", "")

    assert words("[test]\nlr = -1").startswith("study.toml:10: `test.lr` must be positive")
    root = tmp_path / "bases" / "root.toml"
    text = root.read_text(encoding="utf-8")
    root.write_text(text.replace("lr = 1.0", 'lr = "fast"'), encoding="utf-8")
    assert words().startswith('bases/root.toml:5: `train.lr` must be a number; got "fast".')
    assert words("", "train.lr=-1").startswith("--set train.lr=-1: `train.lr` must be positive")
    root.write_text(text.replace("epochs", "epoch"), encoding="utf-8")
    assert words().startswith("bases/root.toml:1: `epoch` is not a key of the top level. Did you mean `epochs`?")
    root.write_text(text.replace('path = "a"\n', ""), encoding="utf-8")
    assert words().startswith("study.toml:8: `places.a.path` is missing; it must be a string.")
    root.write_text("[", encoding="utf-8")
    assert words().startswith("bases/root.toml:1: this is not TOML")
    root.write_text('epochs = 1\nextends = "../study.toml"', encoding="utf-8")
    assert words().startswith(
        "bases/root.toml:2: `extends` must name another TOML file, relative to this one, that does not extend this one"
    )
    root.unlink()
    assert words().startswith(
        "bases/middle.toml:1: `extends` must name another TOML file, relative to this one, that does not extend"
    )
    number = refusal(tmp_path, 'name = "x"\nextends = 3')
    assert number.startswith("study.toml:2: `extends` must name another TOML file")
    assert number.endswith("got 3.")
    assert refusal(tmp_path, 'name = "x"\n[test]\nextends = "x"').startswith(
        "study.toml:3: `test.extends` is not a key of [test]."
    )
