"""The name of a class says which class it is: no two public classes of the product share one, except those listed."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.rules.sources import parsed

ROOT = Path(__file__).parents[2] / "rmqha"
TWINS = "the same thing in two forms, in modules of which a program imports one"
FORMS = "a short name in a room of its own: no module imports both"
SHARED = {
    "Access": FORMS,
    "Answer": FORMS,
    "BodyError": "a body that is not as told, for the pipeline, and for the client, which needs no pipeline",
    "Brokers": FORMS,
    "Change": FORMS,
    "Client": FORMS,
    "Compacted": FORMS,
    "Cut": FORMS,
    "DiskFull": FORMS,
    "Found": FORMS,
    "Gap": FORMS,
    "History": FORMS,
    "Holder": FORMS,
    "Lines": FORMS,
    "Membership": FORMS,
    "Message": "a message to store, and one to send: both are what RocketMQ calls so",
    "MessageQueue": "a queue in locks, and one of a topic's route: both are what RocketMQ calls so",
    "NoAnswer": FORMS,
    "NodeFailed": FORMS,
    "Options": "the options of a process: twistd's plugins expect the name",
    "Part": FORMS,
    "Pieces": FORMS,
    "Place": FORMS,
    "Producer": TWINS,
    "PropertyPairs": FORMS,
    "PushConsumer": TWINS,
    "ReadUpTo": "the option of a reader, and the setting of a broker: their values differ",
    "Run": FORMS,
    "Selection": FORMS,
    "Sender": FORMS,
    "Shares": FORMS,
    "Survey": FORMS,
    "Target": FORMS,
    "TransactionProducer": TWINS,
    "TransactionResult": FORMS,
    "Trouble": FORMS,
    "Unit": FORMS,
    "Wanted": FORMS,
    "Watch": FORMS,
    "Way": FORMS,
}
"""Why names may be shared. Do not add one: find a name that tells the class apart."""


def modules_by_class(sources: dict[str, str]) -> dict[str, list[str]]:
    """The modules that define each public class."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return found


def product() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted(ROOT.rglob("*.py"))
        if "testing" not in path.relative_to(ROOT).parts
    }


def test_no_two_classes_share_a_name() -> None:
    shared = {name: paths for name, paths in modules_by_class(product()).items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED} == {}
    assert set(SHARED) - set(shared) == set(), "these are not shared any more: take them out of SHARED"


def test_no_module_imports_two_classes_of_one_name() -> None:
    for path, source in product().items():
        names = [
            alias.name
            for node in ast.walk(parsed(source))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rmqha.")
            for alias in node.names
            if SHARED.get(alias.name) == FORMS and alias.asname is not None
        ]
        assert names == [], f"{path} imports a class under another name, as it knows two of one name"


def test_a_name_that_two_modules_give_is_found() -> None:
    twice = modules_by_class({"a.py": "class Node: ...\nclass _Own: ...", "b.py": "class Node: ...\nclass _Own: ..."})
    assert twice == {"Node": ["a.py", "b.py"]}
