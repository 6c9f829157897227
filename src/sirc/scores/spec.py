"""Grammar of score specs: `msp`, `knn(k=20)`, `sirc(entropy, residual)`, `linear(msp, l1, c=0.1)`."""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import final

from torch import Tensor

from sirc._utils.text import closest, quoted, shorten
from sirc.scores import registry

Value = float | tuple[float, ...] | str


@dataclass(frozen=True)
class Combination:
    """A way to combine two or more specs."""

    title: str
    keywords: Mapping[str, Value | None] = field(default_factory=dict)
    """The parameters and their defaults; None for one that is fitted or must be given."""
    most: int | None = None
    """The largest number of specs."""
    bounded_first: bool = False
    """Whether it takes log(S1max − S1) of its first score, and a and b of the others, as `sirc` does."""
    compute: Callable[..., Tensor] | None = None
    """The formula, if it was registered with `combination`."""


COMBINATIONS = {
    "sirc": Combination("SIRC", {"a": None, "b": None, "budget": None}, bounded_first=True),
    "additive": Combination("Additive", {"kappa": 0.1, "a": None, "b": None}, bounded_first=True),
    "bayes": Combination("Bayes", {"alpha": 0.5, "beta": 0.5, "metric": "aurc"}, bounded_first=True),
    "linear": Combination("Linear", {"c": None}, most=2),
    "product": Combination("Product"),
    "both": Combination("Both"),
}
_BUILT_IN = tuple(COMBINATIONS)
registry.RESERVED.update(_BUILT_IN)
_WORDS = {"metric": ("aurc", "aurr")}
_RANGES = {
    "budget": (0.0, 100.0, "the points of AUROC of ID✗|ID✓ that S2 may cost, from 0 to 100"),
    "b": (math.ulp(0.0), math.inf, "positive: the slope against S2, 1/σ"),
    "kappa": (math.ulp(0.0), math.inf, "positive: the weight of S2's part"),
    "alpha": (math.ulp(0.0), 1.0, "the share of ID input, above 0 and at most 1"),
    "beta": (0.0, 1.0, "the cost of accepting ID✗, from 0 to 1"),
}
_DEEPEST, _LONGEST = 20, 2000
_NUMBER = re.compile(r"(?<![\w.])[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_OPERATOR = re.compile(r"[^\w\s,=()\[\]]|[)\]]\s*[(\[]|\b(not|lambda|if|for|await|and|or|in|is)\b")
_GRAMMAR = "A spec is a name (`msp`) or a combination such as `sirc(msp, residual)` or `linear(energy, l1, c=0.1)`"


def combination(
    *, title: str = "", most: int | None = None, bounded_first: bool = False
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register the decorated function as a combination under its own name.

    It receives the plain values of two or more specs, at most `most`. Its keyword-only arguments are numbers that a
    spec may set; one without a default must be set. With `bounded_first` it receives, by position, log(S1max − S1) of
    the first score and three lists: the values of the others, their a and their b. `fit` finds a and b as for `sirc`:
    a = μ − 3σ and b = 1/σ over ID training data.

    Tables, figures and the page call it `title`, by default its name with spaces for underscores.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = function.__name__
        if name in (*_BUILT_IN, "vim", "scod", *registry.names()):
            raise ValueError(f"`{name}` is a name of the grammar already; give the combination another")
        numbers: dict[str, Value | None] = {}
        for key, value in registry.keyword_defaults(function).items():
            required = value is inspect.Parameter.empty
            if key in ("a", "b") or not (required or isinstance(value, int | float)):
                default = "no default" if required else f"the default {quoted(value)}"
                raise ValueError(
                    f"the parameters of combination `{name}` must be numbers, and none may be called a or b; got "
                    f"`{key}` with {default}"
                )
            numbers[key] = None if required else float(value)
        registry.check_call(f"combination `{name}`", function, 4 if bounded_first else 2, numbers)
        fitted: dict[str, Value | None] = {"a": None, "b": None} if bounded_first else {}
        readable = title or registry.readable(name)
        COMBINATIONS[name] = Combination(readable, {**numbers, **fitted}, most, bounded_first, function)
        registry.RESERVED.add(name)
        _parse.cache_clear()
        return function

    return register


@dataclass(frozen=True)
class Spec:
    """A parsed spec. `str(spec)` is its canonical text, under which its parameters are stored."""

    name: str
    args: tuple[Spec, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    is_default: bool = False
    """Whether it was written as `scod`, whose S2 scores (witnesses) depend on the data."""
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Made only once, since each batch looks up parameters by it.
        parts = [] if self.is_default else [str(a) for a in self.args]
        parts += [f"{k}={v}" for k, v in self.given.items()]
        text = f"{self.called}({', '.join(parts)})" if parts else self.called
        object.__setattr__(self, "_text", "vim" if is_vim(self) else text)

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def is_leaf(self) -> bool:
        """Whether it is a single score rather than a combination."""
        return self.name not in COMBINATIONS

    @property
    def has_bounded_first(self) -> bool:
        """Whether it takes log(S1max − S1) of its first score, as `sirc`, `additive` and `bayes` do."""
        return not self.is_leaf and COMBINATIONS[self.name].bounded_first

    @property
    def finds_spread(self) -> bool:
        """Whether it learns the mean and the spread of its S2 scores from training data."""
        return self.has_bounded_first and not {"a", "b"} <= set(self.options)

    @property
    def tunes(self) -> bool:
        """Whether it requires labelled ID validation data."""
        return "budget" in self.options or self.name == "both"

    @property
    def given(self) -> Mapping[str, Value]:
        """The options that differ from the defaults; the default metric of `scod` is AURR."""
        if not self.is_default:
            return self.options
        others = {key: value for key, value in self.options.items() if key != "metric"}
        return others if self.options.get("metric") == "aurr" else {**others, "metric": "aurc"}

    @property
    def called(self) -> str:
        """The name in its text."""
        return "scod" if self.is_default else self.name

    def witnessed_by(self, others: Sequence[Spec]) -> Spec:
        """The same `scod`, with the same text, but other S2 scores."""
        return replace(self, args=(self.args[0], *others))

    def with_defaults(self, change: Callable[[Spec], Spec]) -> Spec:
        """The same spec with `change` applied to each `scod` in it."""
        if self.is_default:
            return change(self)
        return replace(self, args=tuple(arg.with_defaults(change) for arg in self.args)) if self.args else self

    def with_only(self, other: Spec) -> Spec:
        """This combination with a single S2."""
        return Spec(self.name, (self.args[0], other), self.options)

    def walk(self) -> Iterator[Spec]:
        """This spec and all specs inside it, innermost first."""
        for arg in self.args:
            yield from arg.walk()
        yield self

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """A keyword parameter as a tuple; None if it was not given."""
        value = self.options.get(key)
        assert not isinstance(value, str)
        return (value,) if isinstance(value, int | float) else value


def is_vim(spec: Spec) -> bool:
    """Whether it is `vim`, the linear combination whose c is fitted."""
    return spec.name == "linear" and "c" not in spec.options


VIM = Spec("linear", (Spec("energy"), Spec("residual")))
WITNESSES = (Spec("residual"), VIM, *map(Spec, ("mahalanobis", "mahalanobis_pp", "knn", "l1", "energy")))
"""The S2 scores of `scod`: those before the last that the data can fit; if there are none, the last."""
SCOD = Spec("bayes", (Spec("msp"), *WITNESSES[:-1]), {"metric": "aurr"}, is_default=True)


def known_names() -> tuple[str, ...]:
    """All names that a spec may use: scores, `vim`, combinations and `scod`.

    Example:
        >>> import sirc
        >>> sirc.known_names()[:3]
        ('msp', 'doctor', 'entropy')
        >>> {"residual", "vim", "sirc", "scod"} <= set(sirc.known_names())
        True
    """
    return (*registry.names(), "vim", *COMBINATIONS, "scod")


def parse(text: str) -> Spec:
    """Read a spec from its text; a `ValueError` says what is wrong with the text and how to write it."""
    if not isinstance(text, str):
        raise ValueError(f"a spec must be a string; got {type(text).__name__}. {_GRAMMAR}")
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Spec:
    # Check the depth first, as Python's limit depends on the caller's stack. Operators nest too.
    depth = max(accumulate((c in "([") - (c in ")]") for c in text), default=0)
    if depth > _DEEPEST or len(text) > _LONGEST or len(_OPERATOR.findall(_NUMBER.sub("", text))) > _DEEPEST:
        raise ValueError(
            f"specs nest at most {_DEEPEST} deep and have at most {_LONGEST} characters; got `{shorten(text)}`"
        )
    text = text.strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as error:
        raise ValueError(f"`{shorten(text)}` is not a score spec: {getattr(error, 'msg', error)}. {_GRAMMAR}") from None
    return _Parser(text).spec(tree)


@final
class _Parser:
    """Turns the syntax tree of a text into a spec."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _error(self, problem: str, advice: str = "") -> ValueError:
        return ValueError(f"{problem} in `{shorten(self._text)}`{'. ' if advice else ''}{advice}")

    def _source(self, tree: ast.expr) -> str:
        return shorten(ast.get_source_segment(self._text, tree) or "")

    def spec(self, tree: ast.expr) -> Spec:
        """The spec of a name or a call."""
        if isinstance(tree, ast.Name):
            return self._build(tree.id, (), {})
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
            raise self._error(f"`{self._source(tree)}` is not a score,", _GRAMMAR)
        options: dict[str, Value] = {}
        for keyword in tree.keywords:
            if keyword.arg is None or keyword.arg in options:
                problem = f"`{shorten(keyword.arg)}` is given twice" if keyword.arg else "`**` is not a score spec"
                raise self._error(problem, _GRAMMAR)
            options[keyword.arg] = self._value(keyword.value, keyword.arg)
        return self._build(tree.func.id, tuple(map(self.spec, tree.args)), options)

    def _value(self, tree: ast.expr, key: str) -> Value:
        if key in _WORDS:
            if isinstance(tree, ast.Name) and tree.id in _WORDS[key]:
                return tree.id
            raise self._error(f"`{key}` must be {' or '.join(_WORDS[key])}; got `{self._source(tree)}`")
        if isinstance(tree, ast.Tuple | ast.List):
            numbers = tuple(self._number(item, key) for item in tree.elts)
            return numbers[0] if len(numbers) == 1 else numbers  # `a=(1,)` and `a=1` are the same spec
        return self._number(tree, key)

    def _number(self, tree: ast.expr, key: str) -> float:
        sign, inner = 1, tree
        while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.USub | ast.UAdd):
            sign, inner = (-sign if isinstance(inner.op, ast.USub) else sign), inner.operand
        value = inner.value if isinstance(inner, ast.Constant) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > sys.float_info.max:
            raise self._error(f"`{shorten(key)}` must be a finite number; got `{self._source(inner)}`")
        return sign * float(value) + 0.0  # −0 becomes 0: equal specs have one text

    def _build(self, name: str, args: tuple[Spec, ...], options: dict[str, Value]) -> Spec:
        called = name
        if name == "vim" and not args:  # `vim(c=…)` and `linear(energy, residual, c=…)` are the same spec
            name, args = "linear", VIM.args
        if name == "scod" and not args:
            name, args, options = "bayes", SCOD.args, {"metric": "aurr"} | options
        if name not in known_names():
            hint, known = closest(name, known_names()), f"Known: {', '.join(known_names())}"
            raise self._error(
                f"unknown score `{shorten(name)}`",
                f"{hint} {known}. One of your own is known once its module is imported (`--import MODULE`)".lstrip(),
            )
        is_leaf = name not in COMBINATIONS
        if args and is_leaf:
            raise self._error(
                f"`{name}` is a single score and takes no other specs,", f"Combinations are {', '.join(COMBINATIONS)}"
            )
        takes = registry.get(name).options if is_leaf else COMBINATIONS[name].keywords
        for key, value in options.items():
            if key not in takes:
                known = ", ".join(f"{keyword}=" for keyword in takes) or "no parameters"
                raise self._error(f"`{called}` has no parameter `{shorten(key)}`,", f"It takes {known}")
            if isinstance(value, tuple) and (is_leaf or key not in ("a", "b")):
                raise self._error(f"`{key}` of `{called}` must be one number; got {quoted(value)}")
        if is_leaf:
            return self._leaf(name, options)
        return self._combination(SCOD if called == "scod" else Spec(name, args), options)

    def _leaf(self, name: str, options: dict[str, Value]) -> Spec:
        score, given = registry.get(name), {}
        for key, value in options.items():
            default = score.options[key]
            whole = isinstance(default, int)
            least, most = score.limits.get(key, (1, math.inf) if whole else (-math.inf, math.inf))
            assert isinstance(value, float)
            if not least <= value <= most or (whole and value != int(value)):
                limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
                number = "whole number" if whole else "number"
                raise self._error(f"`{key}` of `{name}` must be a {number} {limits}; got {quoted(value)}")
            # A tunable option stays even at its default: an option that is given is not tuned.
            if score.tune is not None or value != default:
                given[key] = type(default)(value)
        return Spec(name, (), given)

    def _combination(self, bare: Spec, options: dict[str, Value]) -> Spec:
        name, args, combination = bare.name, bare.args, COMBINATIONS[bare.name]
        if not 2 <= len(args) <= (combination.most or len(args)):
            count = "2" if combination.most == 2 else "at least 2"
            raise self._error(f"`{name}` combines {count} specs; got {len(args)}")
        given = {k: options[k] for k, v in combination.keywords.items() if options.get(k, v) != v}
        spec = replace(bare, options=given)
        if spec.has_bounded_first:
            self._check_first(spec)
            self._check_numbers(spec)
            self._check_others(spec)
        elif name == "linear" and "c" not in options and args != VIM.args:
            raise self._error("`linear` needs `c`", "Only linear(energy, residual), which is `vim`, finds its own")
        if combination.compute is not None:
            for key, default in combination.keywords.items():
                if default is None and key not in ("a", "b") and key not in options:
                    raise self._error(f"`{name}` needs `{key}`, a number,")
        return spec

    def _check_first(self, spec: Spec) -> None:
        first = spec.args[0]
        bounded = [name for name in registry.names() if registry.get(name).log_gap]
        if first.name not in bounded:
            raise self._error(
                f"the first score of `{spec.name}` must be bounded, one of {', '.join(bounded)}; got "
                f"`{shorten(str(first))}`",
                "A score of your own is bounded if it has a `log_gap`",
            )
        score = registry.get(first.name)
        if spec.name == "bayes" and not {"logits", "softmax"}.issuperset(score.needs):
            raise self._error(
                "the first score of `bayes` must be one of the logits alone: it is compared with its value for equal "
                f"logits; `{first}` needs {', '.join(score.needs)},",
                "Use it in `sirc`",
            )
        for option, value in first.options.items():
            least, most = score.limits.get(f"{option}_bounded", (-math.inf, math.inf))
            if isinstance(value, int | float) and not least <= value <= most:
                raise self._error(
                    f"`{option}` of `{first.name}` must be from {least:g} to {most:g} as the first score of "
                    f"`{spec.name}`, where it is bounded; got {quoted(value)}"
                )

    def _check_numbers(self, spec: Spec) -> None:
        others = spec.args[1:]
        for key in ("a", "b"):
            given = spec.numbers(key)
            if given is not None and len(given) != len(others):
                raise self._error(
                    f"`{key}` of `{spec.name}` must give one number for each S2, {len(others)} here; got {len(given)}",
                    f"Write several as `{key}=({', '.join('…' for _ in others)})`",
                )
        for key, (least, most, rule) in _RANGES.items():
            for value in spec.numbers(key) or ():
                if not least <= value <= most:
                    raise self._error(f"`{key}` of `{spec.called}` must be {rule}; got {quoted(value)}")
        if spec.tunes and {"a", "b"} & set(spec.options):
            raise self._error("a and b must be left out beside `budget`, which finds them on validation data,")

    def _check_others(self, spec: Spec) -> None:
        for outer in (part for other in spec.args[1:] for part in other.walk()):
            # μ and σ of a linear form follow from its terms; those of any other combination only from its values.
            for part in () if outer.is_leaf or outer.name == "linear" else outer.walk():
                if is_vim(part) or part.finds_spread or part.tunes:
                    advice = {"linear": "Give its c= explicitly", **dict.fromkeys(("bayes", "both"), "Leave it out")}
                    where = "" if part is outer else f" inside `{shorten(str(outer))}`"
                    raise self._error(
                        f"`{shorten(str(part))}`{where} would have to be fitted before this S2 could be,",
                        advice.get(part.name, "Give its a= and b= explicitly"),
                    )
