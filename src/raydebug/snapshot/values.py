"""The values of a snapshot: looks up names, attributes and items, and runs no code."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

from raydebug.console.view import number, shape
from raydebug.protocol.snapshot import CONTENT, NUMPYS, SavedValue
from raydebug.protocol.wire import Message
from raydebug.render import visible

REFUSED = "code cannot run in a snapshot: it holds values, not objects; names, attributes, items and len() are shown"
MOST_DEPTH = 30  # of nested values in a text
MOST_STEPS = 6  # from a local to a tensor that is listed
KEY_CHARS = 80
MOST_CHARS = 500  # of an expression: it is walked recursively
_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "dict": ("{", "}")}
_NAMED = ("type", "function", "builtin_function_or_method", "method", "module")  # `text` of these is a name
_BYTES = ("b'", 'b"', "bytearray(")  # `text` of these is a repr
_TYPES = ({"dtype": "torch.dtype", "device": "torch.device"}, {"dtype": "numpy.dtype"})  # of torch's facts, of numpy's


class NotThere(Exception):
    """A requested value is not in the snapshot; the message is for the user."""


class Values:
    """The values of one snapshot; they refer to each other by their index.

    Args:
        saved: those of the document. The facts about a tensor become values on request.
    """

    def __init__(self, saved: Sequence[SavedValue]) -> None:
        self._saved = list(saved)
        self._known: dict[tuple[int, str], int] = {}

    def __getitem__(self, index: int) -> SavedValue:
        """Return a value; for a config or a batch, its content."""
        value = self._saved[index]
        for _ in range(2):  # a container of omegaconf may be the value of a node
            value = next((self._saved[inner] for inner in _inside(value)), value)
        return value

    # Look up

    def evaluate(self, names: Mapping[str, int], expression: str) -> int:
        """Return the index of the value of an expression: names, with attributes and items; or their len().

        Args:
            names: the locals of a frame.
            expression: as the user typed it; it is parsed, and not run.

        Raises:
            NotThere: it is another kind of expression, or its value is not in the snapshot.
        """
        if len(expression) > MOST_CHARS:
            raise NotThere("SyntaxError: the expression is too long")
        try:
            return self._reach(names, ast.parse(expression.strip(), mode="eval").body)
        except SyntaxError as error:
            raise NotThere(f"SyntaxError: {error.msg}") from error
        except ValueError as error:  # a NUL character
            raise NotThere(f"SyntaxError: {error}") from error

    def _reach(self, names: Mapping[str, int], node: ast.expr) -> int:
        match node:
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Name(id=name):
                raise NotThere(f"NameError: {name!r} is not a local of this frame; globals are not in a snapshot")
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self._reach(names, owner), name)
            case ast.Subscript(value=owner, slice=ast.Constant(value=int() | str() as key)):
                return self._item(self._reach(names, owner), key)
            case ast.Subscript(value=owner, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as key))):
                return self._item(self._reach(names, owner), -key)
            case ast.Call(func=ast.Name(id="len"), args=[owner], keywords=[]):
                return self._length(self._reach(names, owner))
            case ast.Tuple(elts=parts):
                items = [self._reach(names, part) for part in parts]
                self._saved.append({"type": "tuple", "length": len(items), "items": items})
                return len(self._saved) - 1
        raise NotThere(REFUSED)

    def _attribute(self, index: int, name: str) -> int:
        saved, content = self._saved[index].get("attributes", {}), self[index].get("attributes", {})
        attributes = {**saved, **content, **self._facts(index)}
        if name in attributes:
            return attributes[name]
        if _inside(self._saved[index]):
            return self._item(index, name)
        raise self._missing(index, f"attribute {name!r}")

    def _item(self, index: int, key: int | str) -> int:
        value = self[index]
        if "tensor" in value:
            raise NotThere("a snapshot has the summary of a tensor, not its elements: `tensor EXPR`")
        for at, item in value.get("pairs", ()):
            if (self[at].get("type"), self[at].get("text")) == (type(key).__name__, str(key)):
                return item
        items = value.get("items", [])
        if isinstance(key, int) and value.get("type") not in ("set", "frozenset"):
            at = key + value.get("length", len(items)) if key < 0 else key
            if 0 <= at < len(items):
                return items[at]
        raise self._missing(index, f"key {key!r}" if "pairs" in value else f"item {key!r}")

    def _missing(self, index: int, what: str) -> NotThere:
        value = self[index]
        saved = len(value.get("pairs", value.get("items", ())))
        if value.get("redacted"):
            why = "it was redacted"
        elif "length" in value and what[0] != "a":
            some = f"{saved:,} of its " if saved < value["length"] else ""
            why = f"{some}{value['length']:,} items are saved"
        else:
            why = f"cut: {value['cut']}" if "cut" in value else "what code computes is not saved"
        return NotThere(f"{value.get('type', 'value')} has no {what} in the snapshot; {why}")

    def _length(self, index: int) -> int:
        sizes = self[index].get("tensor", {}).get("shape")
        length = sizes[0] if sizes else self[index].get("length")
        if length is None:
            raise NotThere(f"{self[index].get('type', 'value')} has no length in the snapshot")
        return self._add(index, "len()", {"type": "int", "text": str(length)})

    def _facts(self, index: int) -> dict[str, int]:
        """Return the facts about a tensor as values; nothing for other values."""
        facts, tensor = {}, self[index].get("tensor", {})
        is_numpys = tensor.get("storage", "").startswith(NUMPYS)
        for name, fact in tensor.items():
            if isinstance(fact, list):
                items = [self._add(index, f"{name} {at}", _scalar(one)) for at, one in enumerate(fact)]
                kind = ("tuple" if is_numpys else "torch.Size") if name == "shape" else "list"
                facts[name] = self._add(index, name, {"type": kind, "length": len(items), "items": items})
            else:
                facts[name] = self._add(index, name, _scalar(fact, _TYPES[is_numpys].get(name)))
        return facts

    def _add(self, index: int, name: str, value: SavedValue) -> int:
        if (index, name) not in self._known:
            self._known[index, name] = len(self._saved)
            self._saved.append(value)
        return self._known[index, name]

    def children(self, index: int) -> list[tuple[str, int]]:
        """Return the parts of a value, each with the suffix that selects it: `.loss`, `[3]`, `['ids']`."""
        value = self[index]
        found = [(f"[{self.text(key, KEY_CHARS)}]", item) for key, item in value.get("pairs", ())]
        found += [(f"[{at}]", item) for at, item in enumerate(value.get("items", ()))]
        named = {**value.get("attributes", {}), **self._facts(index)}
        return found + [(f".{visible(name, keep='')}", item) for name, item in named.items()]

    def has_children(self, index: int) -> bool:
        value = self[index]
        return any(value.get(part) for part in ("pairs", "items", "attributes", "tensor"))

    def tensors(self, names: Mapping[str, int]) -> dict[str, int]:
        """Return every tensor that the locals of a frame lead to, by its expression, the nearest first."""
        found: dict[str, int] = {}
        reached, seen = [(visible(name, keep=""), index) for name, index in names.items()], set[int]()
        for _ in range(MOST_STEPS):
            further = []
            for name, index in reached:
                if index not in seen and "tensor" in self[index]:
                    found[name] = index
                elif index not in seen:
                    further += [(name + label, child) for label, child in self.children(index)]
                seen.add(index)
            reached = further
        return found

    # Text

    def text(self, index: int, limit: int) -> str:
        """Return a value as Python would write it, on one line and safe to print.

        Args:
            index: of the value.
            limit: characters after which it is cut; values of a file may contain each other without end.
        """
        written, left = [], limit
        for piece in self._pieces(index, ()):
            written.append(piece[:left])
            left -= len(piece)
            if left < 0:
                written.append(f" ... cut at {limit:,} characters")
                break
        return visible("".join(written), keep="")

    def _pieces(self, index: int, above: tuple[int, ...]) -> Iterator[str]:
        value = self[index]
        kind, length = value.get("type", "?"), value.get("length", 0)
        if value.get("redacted"):
            yield "<redacted>"
        elif "tensor" in value:
            yield f"<{tensor_line(value)}>"
        elif index in above or len(above) > MOST_DEPTH:
            yield "..."
        elif "text" in value:
            is_str = "length" in value and not value["text"].startswith(_BYTES)  # also of a subclass
            text = repr(value["text"]) if is_str else value["text"]
            yield f"<{kind} {text}>" if kind in _NAMED else text
            yield f" ... of {length:,} characters" if is_str and length > len(value["text"]) else ""
        elif "pairs" in value or "items" in value:
            saved = len(value["pairs"] if "pairs" in value else value["items"])
            pairs: Iterable[tuple[int | None, int]] = value.get("pairs") or zip(repeat(None), value.get("items", ()))
            other = (f"{kind}({{", "})") if "pairs" in value else (f"{kind}([", "])")
            opening, closing = _BRACKETS.get(kind, other)
            yield opening
            for at, (key, item) in enumerate(pairs):
                yield ", " if at else ""
                if key is not None:
                    yield from self._pieces(key, (*above, index))
                    yield ": "
                yield from self._pieces(item, (*above, index))
            if length > saved:
                yield f"{', ' if saved else ''}... {length - saved:,} more"
            yield f",{closing}" if kind == "tuple" and saved == length == 1 else closing
        else:
            yield f"<{kind}{f' of {length:,}' if length else ''}"
            for at, (name, item) in enumerate(value.get("attributes", {}).items()):
                yield f"{',' if at else ''} {name}="
                yield from self._pieces(item, (*above, index))
            yield f", cut: {value['cut']}>" if "cut" in value else ">"


def _inside(value: SavedValue) -> list[int]:
    attributes = value.get("attributes", {})
    names = CONTENT.get(value.get("type", "").partition(".")[0], ())
    return [attributes[name] for name in names if name in attributes]


def _scalar(fact: object, unquoted: str | None = None) -> SavedValue:
    kind = unquoted or type(fact).__name__
    if isinstance(fact, str):
        return {"type": kind, "text": fact} if unquoted else {"type": kind, "text": fact, "length": len(fact)}
    return {"type": kind, "text": repr(fact)}


def tensor_line(value: SavedValue) -> str:
    """Return a tensor on one line: shape, dtype, device, and its spread as far as that is known."""
    facts = tensor_facts(value)
    parts = [facts["type"], shape(facts["shape"]), facts["dtype"], facts["device"]]
    parts += [f"{name} {number(facts[name])}" for name in ("min", "max", "mean") if name in facts]
    parts += [f"{name} {facts[key]}" for name, key in (("NaN", "nan"), ("Inf", "inf")) if facts.get(key)]
    return "  ".join(filter(None, parts))


def tensor_facts(value: SavedValue, shares_with: Sequence[str] = ()) -> Message:
    """Return a tensor as `view.draw_tensor` takes it."""
    tensor = value.get("tensor", {})
    sizes, sampled = tensor.get("shape", []), tensor.get("sampled", 0)
    numel = math.prod(size if isinstance(size, int) else 0 for size in sizes)  # 0: not known
    notes = [f"of {sampled:,} sampled elements of {numel:,}"] if 0 < sampled < numel else []
    notes += [f"shares memory with {', '.join(shares_with[:8])}"] if shares_with else []
    notes += [f"no values: {tensor['unread']}"] if "unread" in tensor else []
    nan, inf = tensor.get("nan", 0), tensor.get("inf", 0)
    return {
        **tensor,
        **({"nan": nan, "inf": inf, "finite": sampled - nan - inf} if "nan" in tensor else {}),
        "type": value.get("type", "tensor"),
        "shape": sizes,
        "dtype": tensor.get("dtype", "").removeprefix("torch."),
        "device": tensor.get("device", ""),
        "numel": numel,
        **({"note": "\n  ".join(notes)} if notes else {}),
    }
