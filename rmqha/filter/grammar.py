"""The grammar of SQL92 filters, and parsing in steps, by lark.

RocketMQ's parser takes the longest start of the text that is an expression, and ignores what follows: ``a = 1 b`` is
``a = 1``. We refuse such a text: its consumer would get other messages than it asks for.

The words of RocketMQ 5, CONTAINS, STARTSWITH and ENDSWITH, are words only where they can be: a property may have such a
name, as in RocketMQ 4.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedToken, VisitError
from lark.parsers.lalr_interactive_parser import InteractiveParser

from rmqha.filter import expressions
from rmqha.filter.expressions import BooleanConstant, Constant, Part, Property, SqlError, SqlFilter, TextTest
from rmqha.kit.steps import Steps, at_once

MAX_SQL_CHARACTERS = 4096
TOKENS_AT_ONCE = 100
MAX_STACK = 10 * expressions.MAX_DEPTH
"""Of symbols that lark keeps for parts that have no end yet."""
KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"}) | TextTest.__members__.keys()
GRAMMAR = r"""
?start: or_
?or_: and_ (OR and_)*
?and_: equality (AND equality)*
?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null
?comparison: unary
    | comparison SYMBOL unary -> compared
    | comparison BETWEEN unary AND unary -> between
    | comparison NOT BETWEEN unary AND unary -> not_between
    | comparison IN "(" texts ")" -> in_
    | comparison NOT IN "(" texts ")" -> not_in
    | comparison _text_test STRING -> has_text
    | comparison NOT _text_test STRING -> has_not_text
_text_test: CONTAINS | STARTSWITH | ENDSWITH
texts: STRING ("," STRING)*
?unary: "+" unary
    | "-" unary -> negated
    | NOT unary -> not_
    | primary
?primary: STRING -> text
    | DECIMAL -> decimal
    | FLOAT -> floating
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | (ID | CONTAINS | STARTSWITH | ENDSWITH) -> property
    | "(" or_ ")"

%declare NOT AND OR BETWEEN IN IS TRUE FALSE NULL CONTAINS STARTSWITH ENDSWITH
SYMBOL.2: ">=" | "<=" | ">" | "<"
NOT_EQUAL.3: "<>"
FLOAT.2: /[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL.1: /[1-9][0-9]*[lL]?|0/
STRING: /'(?:''|[^'])*'/
ID: /[A-Za-z_$][A-Za-z0-9_$]*/
BLANK: /[ \t\n\r\f]+/
LINE_COMMENT.5: /--[^\n\r]*(\r\n|\n|\r)/
BLOCK_COMMENT.5: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
%ignore BLANK
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""


class _Builder(Transformer[Token, Any]):
    """Makes the parts. lark calls a method for each rule of the grammar, with what is in it."""

    def or_(self, found: list[Any]) -> Part:
        return expressions.junction(found[::2], True)

    def and_(self, found: list[Any]) -> Part:
        return expressions.junction(found[::2], False)

    def equal(self, found: list[Any]) -> Part:
        return expressions.equals(*found)

    def not_equal(self, found: list[Any]) -> Part:
        return expressions.not_(expressions.equals(found[0], found[-1]))

    def is_null(self, found: list[Any]) -> Part:
        return expressions.is_null(found[0])

    def is_not_null(self, found: list[Any]) -> Part:
        return expressions.not_(expressions.is_null(found[0]))

    def compared(self, found: list[Any]) -> Part:
        return expressions.compares(*found)

    def between(self, found: list[Any]) -> Part:
        return expressions.between(found[0], found[2], found[4], False)

    def not_between(self, found: list[Any]) -> Part:
        return expressions.between(found[0], found[3], found[5], True)

    def in_(self, found: list[Any]) -> Part:
        return expressions.is_in(found[0], found[-1], False)

    def not_in(self, found: list[Any]) -> Part:
        return expressions.is_in(found[0], found[-1], True)

    def has_text(self, found: list[Any]) -> Part:
        return expressions.has_text(found[0], found[1].upper(), _text_in(found[2]), False)

    def has_not_text(self, found: list[Any]) -> Part:
        return expressions.has_text(found[0], found[2].upper(), _text_in(found[3]), True)

    def texts(self, found: list[Token]) -> list[str]:
        return [_text_in(token) for token in found]

    def negated(self, found: list[Any]) -> Part:
        return expressions.negation(found[-1])

    def not_(self, found: list[Any]) -> Part:
        return expressions.not_(found[-1])

    def text(self, found: list[Token]) -> Part:
        return Constant(1, 1, _text_in(found[0]))

    def decimal(self, found: list[Token]) -> Part:
        return expressions.decimal(found[0])

    def floating(self, found: list[Token]) -> Part:
        return expressions.floating(found[0])

    def true(self, _: list[Token]) -> Part:
        return BooleanConstant(1, 1, True)

    def false(self, _: list[Token]) -> Part:
        return BooleanConstant(1, 1, False)

    def null(self, _: list[Token]) -> Part:
        return expressions.NULL

    def property(self, found: list[Token]) -> Part:
        return Property(1, 1, str(found[0]))


def _text_in(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _with_type(token: Token) -> Token:
    """A word that may be a keyword."""
    word = token.upper()
    return token.update(type=word) if word in KEYWORDS else token


@cache
def _parser() -> Lark:
    """It takes some 50 ms."""
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_Builder(),
        lexer_callbacks={"ID": _with_type},
        keep_all_tokens=False,
        maybe_placeholders=False,
    )


def prepare() -> None:
    """Make the parser, which else is made when it is used for the first time."""
    _parser()


def parsing(text: str) -> Steps[SqlFilter]:
    """The filter that a text means, in steps. Raises SqlError."""
    if len(text) > MAX_SQL_CHARACTERS:
        raise SqlError(f"an expression of {len(text)} characters; at most {MAX_SQL_CHARACTERS} are taken")
    try:
        state = _parser().parse_interactive(text)
        root = yield from _feed(state)
        return SqlFilter(text, expressions.condition(root))
    except VisitError as error:
        raise _of(error.orig_exc) from None
    except UnexpectedCharacters as error:
        raise SqlError(f"character {error.column}: {error.char!r} cannot be there") from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise SqlError("the expression ends too early") from None
        found = repr(str(error.token)[: expressions.SHOWN_CHARACTERS])
        raise SqlError(f"character {error.column}: {found} cannot be there") from None
    except LarkError as error:
        raise SqlError(str(error).splitlines()[0]) from None


def _of(error: Exception) -> Exception:
    return error if isinstance(error, SqlError) else SqlError(f"{type(error).__name__}: {error}")


def _feed(state: InteractiveParser) -> Steps[Any]:
    """Parse all tokens."""
    tokens: Iterator[Token] = state.lexer_thread.lex(state.parser_state)
    for count, token in enumerate(tokens, 1):
        state.feed_token(token)
        if len(state.parser_state.state_stack) > MAX_STACK:
            raise SqlError(f"the expression is nested more than {expressions.MAX_DEPTH} deep")
        if count % TOKENS_AT_ONCE == 0:
            yield
    return state.feed_eof()


def parse(text: str) -> SqlFilter:
    """Like ``parsing``, at once. Raises SqlError."""
    return at_once(parsing(text))
