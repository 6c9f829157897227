"""Grammar of score specs: `msp`, `knn(k=20)`, `sirc(entropy, residual)`, `linear(msp, l1, c=0.1)`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from sirc._utils.hints import closest
from sirc._utils.text import shorten
from sirc.scores import registry

Value = float | tuple[float, ...] | str


@dataclass(frozen=True)
class Combination:
    """A way to combine two or more specs: its name for people and its keyword parameters."""

    title: str
    keywords: Mapping[str, Value | None] = field(default_factory=dict)
    """With their defaults; None where the value is fitted or must be given."""
    most: int | None = None
    """How many specs it takes at most."""
    bounded_first: bool = False
    """Whether it takes its first score by the distance from S1max, the others by how typical they are of ID data."""


COMBINATIONS = {
    "sirc": Combination("SIRC", {"a": None, "b": None, "budget": None}, bounded_first=True),
    "additive": Combination("Additive", {"kappa": 0.1, "a": None, "b": None}, bounded_first=True),
    "bayes": Combination("Bayes", {"alpha": 0.5, "beta": 0.5, "metric": "aurc"}, bounded_first=True),
    "linear": Combination("Linear", {"c": None}, most=2),
    "product": Combination("Product"),
}
_WORDS = {"metric": ("aurc", "aurr")}
_RANGES = {
    "budget": (0.0, 100.0, "the points of AUROC of ID✗|ID✓ that S2 may cost, from 0 to 100"),
    "kappa": (math.ulp(0.0), math.inf, "positive: the weight of S2's part"),
    "alpha": (math.ulp(0.0), 1.0, "the share of ID input, above 0 and at most 1"),
    "beta": (0.0, 1.0, "the cost of accepting ID✗, from 0 to 1"),
}
_DEEPEST = 20
_GRAMMAR = "A spec is a name (`msp`) or a combination such as `sirc(msp, residual)` or `linear(energy, l1, c=0.1)`"


@dataclass(frozen=True)
class Spec:
    """A parsed spec. `str(spec)` is its canonical text, under which its parameters are stored."""

    name: str
    args: tuple[Spec, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        if is_vim(self):
            return "vim"
        parts = [str(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.options.items()]
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def is_leaf(self) -> bool:
        """Whether it is a single score rather than a combination."""
        return self.name not in COMBINATIONS

    @property
    def has_bounded_first(self) -> bool:
        """Whether it takes its first score by the distance from S1max: `sirc`, `additive`, `bayes`."""
        return not self.is_leaf and COMBINATIONS[self.name].bounded_first

    @property
    def finds_spread(self) -> bool:
        """Whether mean and spread of its S2 scores come from training data."""
        return self.has_bounded_first and not {"a", "b"} <= set(self.options)

    @property
    def tunes(self) -> bool:
        """Whether it requires labelled ID validation data."""
        return "budget" in self.options

    def walk(self) -> Iterator[Spec]:
        """This spec and all inside it, each after what is inside it."""
        for arg in self.args:
            yield from arg.walk()
        yield self

    def default(self, key: str) -> float:
        """The default of a keyword parameter of a combination."""
        value = COMBINATIONS[self.name].keywords[key]
        assert isinstance(value, float)
        return value

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """A keyword parameter as a tuple, or None where it was not given."""
        value = self.options.get(key)
        if value is None or isinstance(value, tuple):
            return value
        assert not isinstance(value, str)
        return (value,)


VIM = Spec("linear", (Spec("energy"), Spec("residual")))
"""`vim` is this combination with its fitted c."""


def known_names() -> tuple[str, ...]:
    """All names a spec may use: scores, `vim`, and combinations."""
    return (*registry.names(), "vim", *COMBINATIONS)


def parse(text: str) -> Spec:
    """Parse a spec; a `ValueError` says what is wrong with it and what would be right."""
    if not isinstance(text, str):
        raise ValueError(f"a spec must be a string; got {type(text).__name__}. {_GRAMMAR}")
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Spec:
    return _Reader(text).read()


class _Reader:
    """Recursive descent over the text of a spec, at most `_DEEPEST` brackets deep."""

    def __init__(self, text: str) -> None:
        self._quoted = shorten(text)
        words = map(str.strip, re.findall(r"[(),=\[\]]|[^(),=\[\]]+", text))
        self._tokens = [word for word in words if word][::-1]  # a stack: the next token is the last

    def read(self) -> Spec:
        spec = self._spec(0)
        return self._refuse() if self._tokens else spec

    def _spec(self, depth: int) -> Spec:
        if depth > _DEEPEST:
            raise ValueError(f"specs nest at most {_DEEPEST} deep; got more in `{self._quoted}`")
        if self._skip("("):
            spec = self._spec(depth + 1)
            return spec if self._skip(")") else self._refuse()
        if not self._tokens or not self._tokens[-1].isidentifier():
            self._refuse()
        name = self._tokens.pop()
        args: list[Spec] = []
        options: dict[str, Value] = {}
        for _ in self._items(")") if self._skip("(") else ():
            if self._tokens[-2:-1] == ["="]:
                key = self._tokens.pop()
                self._skip("=")
                if key in options:
                    raise ValueError(f"`{shorten(key)}` is given twice in `{self._quoted}`")
                options[key] = self._value(key)
            elif options:
                raise ValueError(f"specs come before keyword parameters; got the reverse in `{self._quoted}`")
            else:
                args.append(self._spec(depth + 1))
        return _build(name, tuple(args), options, self._quoted)

    def _items(self, end: str) -> Iterator[None]:
        """Step through a list up to its closing bracket; the caller reads each item."""
        while not self._skip(end):
            yield
            if not self._skip(",") and self._tokens[-1:] != [end]:
                self._refuse()

    def _value(self, key: str) -> Value:
        end = ")" if self._skip("(") else "]" if self._skip("[") else ""
        if not end:
            return self._word(key) if key in _WORDS else self._number(key)
        numbers = [self._number(key) for _ in self._items(end)]
        # One number in brackets is that number, so that both spellings are one spec.
        return numbers[0] if len(numbers) == 1 else tuple(numbers)

    def _word(self, key: str) -> str:
        word = self._tokens.pop() if self._tokens else ""
        if word not in _WORDS[key]:
            rule = " or ".join(_WORDS[key])
            raise ValueError(f"`{key}` must be {rule}; got `{shorten(word)}` in `{self._quoted}`")
        return word

    def _number(self, key: str) -> float:
        text = self._tokens.pop() if self._tokens else ""
        digits = text.lstrip("+- ")
        try:
            number = float(digits)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"`{shorten(key)}` must be a finite number; got `{shorten(text)}` in `{self._quoted}`")
        negative = text.count("-", 0, len(text) - len(digits)) % 2
        return (-number if negative else number) + 0.0  # −0 is 0: equal specs have one text

    def _skip(self, token: str) -> bool:
        """Step over the next token if it is this one."""
        if self._tokens[-1:] != [token]:
            return False
        self._tokens.pop()
        return True

    def _refuse(self) -> NoReturn:
        reason = f"unexpected `{shorten(self._tokens[-1], 20)}`" if self._tokens else "it ends too early"
        raise ValueError(f"`{self._quoted}` is not a score spec: {reason}. {_GRAMMAR}")


def _build(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    if name in COMBINATIONS:
        return _combination(name, args, options, text)
    if name not in registry.names() and name != "vim":
        known = known_names()
        raise ValueError(
            f"unknown score `{shorten(name)}` in `{text}`.{closest(name, known)} Known: {', '.join(known)}"
        )
    if args:
        raise ValueError(
            f"`{name}` is a score of its own and takes no other specs; got `{text}`. "
            f"Combinations are {', '.join(COMBINATIONS)}"
        )
    if name == "vim":
        # One combination, one c: `vim(c=…)` and `linear(energy, residual, c=…)` are the same spec.
        return _combination("linear", VIM.args, options, text)
    score = registry.get(name)
    _check_keywords(name, options, score.options, text)
    given = {}
    for key, value in options.items():
        if isinstance(value, tuple | str):
            raise ValueError(f"`{key}` of `{name}` must be one number; got {shorten(_text(value))} in `{text}`")
        _check_option(name, key, value, text)
        given[key] = type(score.options[key])(value)
    # A tunable option stays even at its default: to give it is to ask for no tuning.
    return Spec(name, (), {k: v for k, v in given.items() if score.tune is not None or v != score.options[k]})


def _check_keywords(name: str, given: Mapping[str, Value], known: Mapping[str, object], text: str) -> None:
    for key in given:
        if key not in known:
            takes = f"it takes {', '.join(f'{k}=' for k in known)}" if known else "it has no parameters"
            raise ValueError(f"`{name}` has no parameter `{shorten(key)}` (in `{text}`): {takes}")


def _check_option(name: str, key: str, value: float, text: str) -> None:
    score = registry.get(name)
    whole = isinstance(score.options[key], int)
    least, most = score.limits.get(key, (1, math.inf) if whole else (-math.inf, math.inf))
    if least <= value <= most and (not whole or value == int(value)):
        return
    rule = ("a whole number" if whole else "a number") + (
        f" of at least {least:g}" if most == math.inf else f" from {least:g} to {most:g}"
    )
    raise ValueError(f"`{key}` of `{name}` must be {rule}; got {_text(value)} in `{text}`")


def _combination(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    combination = COMBINATIONS[name]
    if not 2 <= len(args) <= (combination.most or len(args)):
        count = "2" if combination.most == 2 else "at least 2"
        raise ValueError(f"`{name}` combines {count} specs; got {len(args)} in `{text}`")
    _check_keywords(name, options, combination.keywords, text)
    for key, value in options.items():
        if isinstance(value, tuple) and key not in ("a", "b"):
            raise ValueError(f"`{key}` of `{name}` must be one number in `{text}`")
    spec = Spec(name, args, {k: options[k] for k, v in combination.keywords.items() if options.get(k, v) != v})
    if spec.has_bounded_first:
        _check_first(spec, text)
        _check_numbers(spec, text)
        _check_others(spec, text)
    elif name == "linear" and "c" not in options and args != VIM.args:
        raise ValueError(
            f"`linear` needs `c=` in `{text}`; only linear(energy, residual), which is `vim`, finds its own"
        )
    return spec


def _check_first(spec: Spec, text: str) -> None:
    first = spec.args[0]
    bounded = [name for name in registry.names() if registry.get(name).log_gap]
    if first.name not in bounded:
        raise ValueError(
            f"the first score of `{spec.name}` must be bounded, one of {', '.join(bounded)}; got "
            f"`{shorten(str(first))}` in `{text}`"
        )
    score = registry.get(first.name)
    if spec.name == "bayes" and not {"logits", "softmax"}.issuperset(score.needs):
        raise ValueError(
            "the first score of `bayes` must be one of the logits alone: it is compared with what equal logits give; "
            f"`{first}` needs {', '.join(score.needs)}, in `{text}`. Use it in `sirc`"
        )
    for key, (least, most) in score.limits.items():
        option = key.removesuffix("_bounded")
        value = first.options.get(option)
        if option != key and isinstance(value, int | float) and not least <= value <= most:
            raise ValueError(
                f"`{option}` of `{first.name}` must be from {least:g} to {most:g} as the first score of `{spec.name}`, "
                f"where it is bounded; got {_text(value)} in `{text}`"
            )


def _check_numbers(spec: Spec, text: str) -> None:
    others = spec.args[1:]
    for key in ("a", "b"):
        given = spec.numbers(key)
        if given is not None and len(given) != len(others):
            raise ValueError(
                f"`{key}` of `{spec.name}` must give one number for each S2, {len(others)} here; got {len(given)} in "
                f"`{text}`. Write several as `{key}=({', '.join('…' for _ in others)})`"
            )
    if any(b <= 0 for b in spec.numbers("b") or ()):
        raise ValueError(f"`b` of `{spec.name}` must be positive: it is the slope against S2, 1/σ; got `{text}`")
    for key, (least, most, rule) in _RANGES.items():
        for value in spec.numbers(key) or ():
            if not least <= value <= most:
                raise ValueError(f"`{key}` of `{spec.name}` must be {rule}; got {_text(value)} in `{text}`")
    if spec.tunes and {"a", "b"} & set(spec.options):
        raise ValueError(f"`budget` of `sirc` finds a and b on validation data: leave them out; got `{text}`")


def _check_others(spec: Spec, text: str) -> None:
    for other in spec.args[1:]:
        for outer in other.walk():
            # μ and σ of a linear form follow from those of its terms; of anything else, only from its values.
            inside = outer.walk() if outer.has_bounded_first or outer.name == "product" else ()
            fitted = next((part for part in inside if is_vim(part) or part.finds_spread), None)
            if fitted is None:
                continue
            advice = {"linear": "Give its c= explicitly", "bayes": "Leave it out"}
            where = "" if fitted is outer else f" inside `{shorten(str(outer))}`"
            raise ValueError(
                f"`{shorten(str(fitted))}`{where} would have to be fitted before this S2 could be, in `{text}`. "
                f"{advice.get(fitted.name, 'Give its a= and b= explicitly')}"
            )


def is_vim(spec: Spec) -> bool:
    """Whether it is the linear combination that finds its own c."""
    return spec.name == "linear" and "c" not in spec.options


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return f"({', '.join(_text(v) for v in value)}{',' if len(value) == 1 else ''})"
    return repr(value)
