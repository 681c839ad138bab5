"""Rules for what objects hand each other: objects with interfaces, few arguments, classes that fit into one head.

The lists below may only shrink. An entry that is no longer needed fails its test, so that it is struck out.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Set
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
from zope.interface import implementer
from zope.interface.exceptions import BrokenImplementation
from zope.interface.verify import verifyClass

from rmqha.coordination.interface import IWatch
from tests.rules.sources import parsed

ROOT = Path(__file__).parents[2]

MOST_CALLABLES = 203
"""Lines of the product that hand over bare functions. It only goes down."""
MOST_ARGUMENTS = 6
"""Of a function or a constructor, without self and cls."""
MOST_LINES = 500
"""Of a class."""

PUBLIC_FACE: Set[str] = set()
"""What users of ``rmqha.client`` call by keywords, and which so may have more arguments."""
MAY_TAKE_MORE = {"rmqha/wire/record.py: pack_record", "rmqha/store/put.py: _encode"}
"""The fields of a record, each of them where its bytes are made."""
NOT_YET_FEW_ARGUMENTS: Set[str] = set()
NOT_YET_SHORT: Set[str] = set()
NOT_YET_PHASES: Set[str] = set()
"""Modules that ask ``hasattr(self, …)`` which phase an object is in: a type or an Enum says that."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources(folder: str) -> Mapping[str, str]:
    """The modules below a folder of the checkout, by their paths in it."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


def product() -> Iterator[tuple[str, str]]:
    """The modules of the product with their sources, without what only tests use."""
    return ((path, source) for path, source in sources("rmqha").items() if not path.startswith("rmqha/testing/"))


def callables_in(source: str) -> int:
    """The lines that have ``Callable[``, or that say the same in another way."""
    bare = len(re.findall(r"^.*(?:\bCallable\[|\bCallable +as +|= *Callable$).*$", source, re.MULTILINE))
    protocols = (node for node in ast.walk(parsed(source)) if isinstance(node, ast.ClassDef) and is_protocol(node))
    return bare + sum(
        isinstance(each, Function) and each.name == "__call__" for node in protocols for each in node.body
    )


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class is one of typing's protocols: a Twisted Protocol is not."""
    names = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    return "Protocol" in names and any(
        isinstance(each, Function) and isinstance(each.body[-1], ast.Expr) and ast.unparse(each.body[-1]) == "..."
        for each in node.body
    )


def named(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """The classes and functions below a node, each with its name and the names of the classes around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            yield within + child.name, child
        yield from named(child, f"{within}{child.name}." if isinstance(child, ast.ClassDef) else within)


@cache
def definitions() -> list[tuple[str, ast.ClassDef | Function]]:
    """The classes and functions of the whole package, each with its module's path and its name."""
    return [
        (f"{path}: {name}", node) for path, source in sources("rmqha").items() for name, node in named(parsed(source))
    ]


def arguments_of(function: Function) -> int:
    """How many arguments it takes besides self and cls; ``*args`` and ``**kwargs`` are one each."""
    given = function.args
    all_of_them = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return len([each for each in all_of_them if each is not None and each.arg not in ("self", "cls")])


def is_command(function: Function) -> bool:
    """Whether click calls it, with an argument for each option."""
    return any(
        re.match(r"(?:click\.|\w+\.)(?:command|option|argument|group)\(", ast.unparse(each))
        for each in function.decorator_list
    )


def test_fewer_and_fewer_functions_are_handed_over() -> None:
    """A place that needs several functions of an object gets the object; what it needs of it is an interface."""
    assert sum(callables_in(source) for _, source in product()) <= MOST_CALLABLES


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(a: Callable[[], None], b: int) -> Callable[[], None]: ...", 1),
        ("Way = Callable[[str], None]\nx: 'Callable[[], int] | None' = None", 2),
        ("from collections.abc import Callable as C", 1),
        ("import collections.abc as abc\nx: abc.Callable[[], None]", 1),
        ("F = Callable", 1),
        ("class A(Protocol):\n  def __call__(self) -> None: ...", 1),
        ("class A(Protocol[T]):\n  x: int\n  def __call__(self) -> None:\n    '''Do.'''\n    ...", 1),
        ("from collections.abc import Callable\nclass A(Factory):\n  def __call__(self) -> None: pass", 0),
    ],
)
def test_callables_are_counted_under_other_names_too(source: str, count: int) -> None:
    assert callables_in(source) == count


def test_functions_take_few_arguments() -> None:
    """What belongs together comes as one frozen record, or is an object's own."""
    many = {
        name
        for name, node in definitions()
        if isinstance(node, Function) and arguments_of(node) > MOST_ARGUMENTS and not is_command(node)
    }
    assert many == NOT_YET_FEW_ARGUMENTS | MAY_TAKE_MORE | PUBLIC_FACE


def test_long_functions_and_commands_are_told_apart() -> None:
    source = "@click.option('--a')\n@main.command()\ndef f(a): pass\nclass A:\n def g(self, a, /, b, *c, d, **e): pass"
    (_, command), (_, _), (name, method) = named(parsed(source))
    assert isinstance(command, Function)
    assert isinstance(method, Function)
    assert is_command(command)
    assert (name, arguments_of(method), is_command(method)) == ("A.g", 5, False)


def test_classes_are_short() -> None:
    """A class that is longer does work that two classes should share, each with a name of its own."""
    long = {name for name, node in definitions() if isinstance(node, ast.ClassDef) and lines_of(node) > MOST_LINES}
    assert long == NOT_YET_SHORT


def lines_of(node: ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_phases_are_types_or_states() -> None:
    assert {path for path, source in product() if "hasattr(self" in source} == NOT_YET_PHASES


@cache
def interfaces() -> dict[str, str]:
    """The interfaces of ours by their names, of which no two are the same, each with the module that has it."""
    found = [
        (name, module_of(path))
        for path, source in product()
        for name, node in named(parsed(source))
        if isinstance(node, ast.ClassDef)
        and any(re.fullmatch(r"Interface|I[A-Z]\w+", ast.unparse(base)) for base in node.bases)
    ]
    assert len(dict(found)) == len(found), "two interfaces have one name"
    return dict(found)


def module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def implementers() -> Iterator[tuple[str, str, str]]:
    """The name of an interface of ours, the module of a class that implements it, and this class's name."""
    for path, source in {**sources("rmqha"), **sources("tests")}.items():
        for name, node in named(parsed(source)) if "@implementer(" in source else ():
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == "implementer":
                    told = {ast.unparse(argument).split(".")[-1] for argument in each.args}
                    yield from ((interface, module_of(path), name) for interface in told & interfaces().keys())


def test_every_implementer_keeps_its_interface() -> None:
    """The tests' doubles too: a double that has less than the product needs would prove nothing."""
    found = list(implementers())
    for interface, module, name in found:
        implementer = attrgetter(name)(import_module(module))  # a class within a function is not found: move it out
        assert verifyClass(getattr(import_module(interfaces()[interface]), interface), implementer)
    assert {interface for interface, _, _ in found} == interfaces().keys(), "nothing implements the others"


def test_a_class_that_lacks_a_method_is_found() -> None:
    with pytest.raises(BrokenImplementation):
        verifyClass(IWatch, implementer(IWatch)(type("NeverStops", (), {})))
