"""A code of a request or an answer has its name in the code: a bare number hides a slip, and a slip is a hole."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rmqha.acl import needs
from rmqha.wire.command import RequestCode
from tests.rules.sources import parsed

ROOT = Path(__file__).parents[2]
TAKES_A_CODE = {"RemotingCommand", "RequestRefused", "ask", "call", "push", "invoke", "refused"}
"""What takes a code as its first argument."""
HAS_CODES = ("codes", "processors", "needs")
"""How the names of tables end whose keys are codes."""
NAMED = {RequestCode.__name__, "ResponseCode"}


def last_name(node: ast.expr) -> str:
    """The last word of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def numbers_in(nodes: Iterable[ast.expr | None]) -> list[int]:
    """The bare numbers among expressions, also within tuples, sets and lists."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            found.append(node.value)
        elif isinstance(node, ast.Starred):
            found += numbers_in([node.value])
        elif isinstance(node, ast.Tuple | ast.Set | ast.List):
            found += numbers_in(node.elts)
    return found


def is_code(node: ast.expr) -> bool:
    """Whether an expression is called a code."""
    name = last_name(node)
    return name == "code" or name.endswith("_code")


def has_code_keys(node: ast.expr) -> bool:
    """Whether an expression is a table by codes."""
    return last_name(node).lower().endswith(HAS_CODES)


def is_named_code(node: ast.expr | None) -> bool:
    """Whether an expression is a member, such as ``RequestCode.PULL_MESSAGE``."""
    return isinstance(node, ast.Attribute) and last_name(node.value) in NAMED


def bare_codes(tree: ast.AST) -> Iterator[str]:
    """Where a number stands for a code: compared with one, given as one, looked up, or listed beside members."""
    for node in ast.walk(tree):
        suspects: Iterable[ast.expr | None] = ()
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(is_code, (left, *others))):
                suspects = (left, *others)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *_]) if has_code_keys(table):
                suspects = (key,)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                is_asking = last_name(function) in TAKES_A_CODE
                given = [keyword.value for keyword in keywords if keyword.arg == "code"]
                suspects = (*(arguments[:1] if is_asking else ()), *given)
            case ast.Subscript(value=table, slice=key) if has_code_keys(table):
                suspects = (key,)
            case ast.Dict(keys=keys) if any(map(is_named_code, keys)):
                suspects = keys
            case ast.Set(elts=elements) | ast.List(elts=elements) | ast.Tuple(elts=elements):
                suspects = elements if any(map(is_named_code, elements)) else ()
        if numbers_in(suspects):
            assert isinstance(node, ast.expr)
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("room", sorted(path.name for path in (ROOT / "rmqha").iterdir() if path.is_dir()))
def test_no_number_stands_for_a_code(room: str) -> None:
    for path in (ROOT / "rmqha" / room).rglob("*.py"):
        assert list(bare_codes(parsed(path.read_text()))) == [], f"{path.relative_to(ROOT)}: name the code"


def test_the_permissions_have_no_numbers() -> None:
    """Only constants with names of their own, such as the bits of a permission."""
    tree = ast.parse(Path(needs.__file__).read_text())
    tables = [node for node in tree.body if not (isinstance(node, ast.Assign) and numbers_in([node.value]))]
    numbers = [each for node in tables for each in ast.walk(node) if isinstance(each, ast.Constant)]
    assert [(each.lineno, each.value) for each in numbers if type(each.value) is int] == []
    for table in (needs.JAVAS, needs.STRICT, needs.TOPIC_FIELDS):
        assert {type(code) for code in table} == {RequestCode}


@pytest.mark.parametrize(
    "source",
    [
        "answer.code == 17",
        "request.code in (10, 310)",
        "11 != code",
        "RemotingCommand(34, 5)",
        "Answer(code=0)",
        "self._ask.call(105, {})",
        "answer._replace(code=1)",
        "self._processors.get(10)",
        "MAIN_PORT_CODES[11]",
        "{RequestCode.PULL_MESSAGE: one, 361: two}",
        "frozenset({*(21, 26), RequestCode.HEART_BEAT})",
    ],
)
def test_a_bare_code_is_found(source: str) -> None:
    assert len(list(bare_codes(ast.parse(source)))) == 1


def test_other_numbers_may_stay() -> None:
    source = "count == 17\nanswer.code == ResponseCode.SUCCESS\nRemotingCommand(code, 5)\n(1, 2)\nrows.get(3)"
    assert list(bare_codes(ast.parse(source))) == []
