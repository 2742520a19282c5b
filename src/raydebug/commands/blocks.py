"""The compound commands of a shell script: which one is open, and where each of them ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raydebug.commands.tokens import Operator, Token, Word
from raydebug.commands.values import Values

LOOPS = ("for", "while", "until", "select")
CLOSE = ("fi", "done", "esac", "}")
PASSED = ("time", "exec", "command", "nohup", "builtin")
STRUCTURE = frozenset(("if", "then", "elif", "else", "case", "{", "function", "do", "!", *LOOPS, *CLOSE, *PASSED))


@dataclass
class Block:
    """An open `if`, `case`, loop or group.

    Args:
        runs: whether its commands run.
        done: whether a branch was taken, or the loop has ended.
        doubt: the place of the condition that was not decided; empty if there is none.
        start: index of the loop's condition or body.
        word: what `case` compares; None where it is not known.
        branch: that of a `case` that was chosen, and how many were passed.
        values: that a `for` has not taken yet.
        negated: whether `!` is before a group.
        saved: the shell's values before a subshell.
    """

    kind: str
    place: str
    runs: bool = True
    done: bool = False
    doubt: str = ""
    start: int = 0
    word: str | None = None
    branch: int = -1
    passed: int = 0
    name: str = ""
    values: list[str] = field(default_factory=list)
    rounds: int = 0
    negated: bool = False
    saved: Values | None = None


def is_here(tokens: list[Token], at: int, text: str) -> bool:
    """Return whether the token of an index is an operator, or a plain word, of this text."""
    token = tokens[at] if at < len(tokens) else None
    return token is not None and (token.text if isinstance(token, Operator) else token.plain) == text


def past(tokens: list[Token], at: int, text: str) -> int:
    """Return the index behind the next operator or plain word of this text."""
    return next((n + 1 for n in range(at, len(tokens)) if is_here(tokens, n, text)), len(tokens))


def past_pattern(tokens: list[Token], at: int) -> int:
    """Return where the commands behind a pattern of `case` begin; at `esac` there is none."""
    for n in range(at, len(tokens)):
        if is_here(tokens, n, "esac"):
            return n
        if is_here(tokens, n, ")"):
            return n + 1
    return len(tokens)


def name_of(token: Token) -> str:
    """Return a word's text, where nothing in it is quoted or expanded."""
    return (token.plain or "") if isinstance(token, Word) else ""


def _walk(tokens: list[Token], at: int) -> Iterator[tuple[int, int, str]]:
    """Yield index, depth and text of each word that begins a command, and of each separator, from an index on."""
    depth, begins = 0, True
    for n in range(at, len(tokens)):
        token = tokens[n]
        text = token.text if isinstance(token, Operator) else token.plain or ""
        if isinstance(token, Operator) or begins:
            if not isinstance(token, Operator) and text in CLOSE:
                depth -= 1
            yield n, depth, text
            if not isinstance(token, Operator) and text in ("if", "case", "{", "for", "while", "until", "select"):
                depth += 1
        begins = isinstance(token, Operator) or (begins and text in STRUCTURE)


def exits(tokens: list[Token], at: int) -> bool:
    """Return whether the branch that begins here ends the script."""
    for _, depth, text in _walk(tokens, at):
        if depth < 0 or (depth == 0 and text in ("elif", "else", ";;")):
            return False
        if depth == 0 and text in ("exit", "return"):
            return True
    return False


def exits_of_case(tokens: list[Token], at: int) -> list[bool]:
    """Return of each branch of a `case` whether it ends the script; `at` is its first pattern."""
    found = []
    while not is_here(tokens, begin := past_pattern(tokens, at), "esac") and begin < len(tokens):
        found.append(exits(tokens, begin))
        ends = ((n, text) for n, depth, text in _walk(tokens, begin) if depth < 0 or (depth == 0 and text == ";;"))
        n, text = next(ends, (len(tokens), ""))
        if text != ";;":
            break
        at = n + 1
    return found or [False]


def end_of_group(tokens: list[Token], at: int) -> int:
    """Return the index of the `}` that closes the group whose commands begin here."""
    return next((n for n, depth, _ in _walk(tokens, at) if depth < 0), len(tokens))


def end_of_subshell(tokens: list[Token], at: int) -> int:
    """Return the index of the `)` that closes the subshell whose commands begin here; a pattern's closes none."""
    depth, cases, begins = 0, 0, True
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if not isinstance(token, Operator):
            if begins and token.plain == "case":
                cases += 1
                at = past_pattern(tokens, past(tokens, at, "in"))
            cases -= begins and token.plain == "esac"
            begins = begins and token.plain in STRUCTURE
            continue
        begins = True
        if token.text in (";;", ";&", ";;&") and cases:
            at = past_pattern(tokens, at)
        elif token.text == ")" and depth == 0:
            return at - 1
        depth += (token.text == "(") - (token.text == ")")
    return len(tokens)
