"""The grammar of score specs: `msp`, `knn(k=20)`, `sirc(entropy, residual)`, `linear(msp, l1, c=0.1)`."""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sirc.scores import registry

Value = float | tuple[float, ...]

# How many specs each combination takes (at least, at most) and its keyword parameters.
_COMBINATIONS: dict[str, tuple[int, int | None, tuple[str, ...]]] = {
    "sirc": (2, None, ("a", "b")),
    "linear": (2, 2, ("c",)),
    "product": (2, None, ()),
}
_DEEPEST = 20
_GRAMMAR = "A spec is a name (`msp`) or a combination such as `sirc(msp, residual)` or `linear(energy, l1, c=0.1)`"


@dataclass(frozen=True)
class Spec:
    """A parsed spec. `str(spec)` is its canonical text, under which its parameters are kept."""

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
        """Whether it is a score of its own rather than a combination."""
        return self.name not in _COMBINATIONS

    @property
    def is_unfitted_sirc(self) -> bool:
        """Whether it is a `sirc` with parameters left to find on training data."""
        return self.name == "sirc" and not {"a", "b"} <= set(self.options)

    def walk(self) -> Iterator[Spec]:
        """This spec and all inside it, each after what is inside it."""
        for arg in self.args:
            yield from arg.walk()
        yield self

    def numbers(self, key: str) -> tuple[float, ...] | None:
        """A keyword parameter as a tuple, or None where it was not given."""
        value = self.options.get(key)
        return value if value is None or isinstance(value, tuple) else (value,)


VIM = Spec("linear", (Spec("energy"), Spec("residual")))
"""`vim` is this combination with its fitted c."""


def known_names() -> tuple[str, ...]:
    """All names a spec may use: scores, `vim`, and combinations."""
    return (*registry.names(), "vim", *_COMBINATIONS)


def parse(text: str) -> Spec:
    """Parse a spec; a `ValueError` says what is wrong with it and what would be right."""
    if not isinstance(text, str):
        raise ValueError(f"a spec must be a string; got {type(text).__name__}. {_GRAMMAR}")
    return _parse(text)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Spec:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"`{text}` is not a score spec: {getattr(error, 'msg', error)}. {_GRAMMAR}") from None
    try:
        return _spec(tree, text)
    except RecursionError:  # an expression so long that it cannot even be quoted back
        raise ValueError(f"`{text}` is not a score spec: it nests too deeply. {_GRAMMAR}") from None


def _spec(tree: ast.expr, text: str, depth: int = 0) -> Spec:
    if depth > _DEEPEST:
        raise ValueError(f"specs nest at most {_DEEPEST} deep; got more in `{text}`")
    if isinstance(tree, ast.Name):
        return _build(tree.id, (), {}, text)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        options: dict[str, Value] = {}
        for keyword in tree.keywords:
            if keyword.arg is None:
                raise ValueError(f"`**` has no meaning in `{text}`. {_GRAMMAR}")
            if keyword.arg in options:
                raise ValueError(f"`{keyword.arg}` is given twice in `{text}`")
            options[keyword.arg] = _value(keyword.value, keyword.arg, text)
        return _build(tree.func.id, tuple(_spec(a, text, depth + 1) for a in tree.args), options, text)
    raise ValueError(f"`{ast.unparse(tree)}` is not a score, in `{text}`. {_GRAMMAR}")


def _value(tree: ast.expr, key: str, text: str) -> Value:
    if isinstance(tree, ast.Tuple | ast.List):
        return tuple(_number(item, key, text) for item in tree.elts)
    return _number(tree, key, text)


def _number(tree: ast.expr, key: str, text: str) -> float:
    sign = 1
    while isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        sign, tree = (-sign if isinstance(tree.op, ast.USub) else sign), tree.operand
    value = tree.value if isinstance(tree, ast.Constant) else None
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{key}` must be a finite number; got `{ast.unparse(tree)}` in `{text}`")
    return sign * number + 0.0  # −0 is 0: equal specs have one text


def _build(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    if name in _COMBINATIONS:
        return _combination(name, args, options, text)
    if name not in registry.names() and name != "vim":
        close = difflib.get_close_matches(name.lower(), known_names(), n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        raise ValueError(f"unknown score `{name}` in `{text}`.{hint} Known: {', '.join(known_names())}")
    if args:
        raise ValueError(
            f"`{name}` is a score of its own and takes no other specs; got `{text}`. "
            f"Combinations are {', '.join(_COMBINATIONS)}"
        )
    if name == "vim":
        # One combination, one c: `vim(c=…)` and `linear(energy, residual, c=…)` are the same spec.
        return _combination("linear", VIM.args, options, text)
    defaults = registry.get(name).options
    for key, value in options.items():
        if key not in defaults:
            takes = f"it takes {', '.join(defaults)}" if defaults else "it has no parameters"
            raise ValueError(f"`{name}` has no parameter `{key}` (in `{text}`): {takes}")
        if isinstance(value, tuple):
            raise ValueError(f"`{key}` of `{name}` must be one number; got {_text(value)} in `{text}`")
        if isinstance(defaults[key], int) and (value != int(value) or value < 1):
            raise ValueError(
                f"`{key}` of `{name}` must be a whole number of at least 1; got {_text(value)} in `{text}`"
            )
    given = {key: type(defaults[key])(value) for key, value in options.items() if not isinstance(value, tuple)}
    return Spec(name, (), {key: value for key, value in given.items() if value != defaults[key]})


def _combination(name: str, args: tuple[Spec, ...], options: dict[str, Value], text: str) -> Spec:
    least, most, keys = _COMBINATIONS[name]
    if len(args) < least or (most is not None and len(args) > most):
        count = f"{least}" if most == least else f"at least {least}"
        raise ValueError(f"`{name}` combines {count} specs; got {len(args)} in `{text}`")
    for key in options:
        if key not in keys:
            takes = f"it takes {', '.join(f'{k}=' for k in keys)}" if keys else "it has none"
            raise ValueError(f"`{name}` has no parameter `{key}` (in `{text}`): {takes}")
    # A tuple of one is that number, so that both spellings are one spec.
    plain = {k: v[0] if isinstance(v, tuple) and len(v) == 1 else v for k, v in options.items()}
    spec = Spec(name, args, {key: plain[key] for key in keys if key in plain})
    if name == "sirc":
        _check_sirc(spec, text)
    elif name == "linear":
        if "c" not in options and args != VIM.args:
            raise ValueError(
                f"`linear` needs `c=` in `{text}`; only linear(energy, residual), which is `vim`, finds its own"
            )
        if isinstance(plain.get("c"), tuple):
            raise ValueError(f"`c` of `linear` must be one number in `{text}`")
    return spec


def _check_sirc(spec: Spec, text: str) -> None:
    first, others = spec.args[0], spec.args[1:]
    bounded = [name for name in registry.names() if registry.get(name).log_gap]
    if first.name not in bounded:
        raise ValueError(
            f"the first score of `sirc` must be bounded, one of {', '.join(bounded)}; got `{first}` in `{text}`"
        )
    for key in ("a", "b"):
        given = spec.numbers(key)
        if given is not None and len(given) != len(others):
            raise ValueError(
                f"`{key}` of `sirc` must give one number for each S2, {len(others)} here; got {len(given)} in "
                f"`{text}`. Write several as `{key}=({', '.join('…' for _ in others)})`"
            )
    if any(b <= 0 for b in spec.numbers("b") or ()):
        raise ValueError(f"`b` of `sirc` must be positive: it is the slope against S2, 1/σ; got `{text}`")
    for other in others:
        for outer in other.walk():
            # μ and σ of a linear form follow from those of its terms; of anything else, only from its values.
            fitted = (
                [n for n in outer.walk() if is_vim(n) or n.is_unfitted_sirc]
                if outer.name in ("sirc", "product")
                else []
            )
            if fitted:
                raise ValueError(
                    f"`{fitted[0]}` inside `{outer}` would have to be fitted before this S2 could be, in `{text}`. "
                    f"Give its {'c=' if is_vim(fitted[0]) else 'a= and b='} explicitly"
                )


def is_vim(spec: Spec) -> bool:
    """Whether it is the linear combination that finds its own c."""
    return spec.name == "linear" and "c" not in spec.options


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_text(v) for v in value)}{',' if len(value) == 1 else ''})"
    return repr(value)
