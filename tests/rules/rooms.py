"""Prints the rooms of ``rmqha``, floor by floor, and circles of imports: ``python -m tests.rules.rooms``.

A room is a folder of the package, or a module at its root. It stands one floor above the highest room that it imports.
``python -m tests.rules.rooms rmqha.store`` shows the floors within a room. ``PYTHONPATH=DIR`` shows another checkout.
Exit code 1: there is a circle.
"""

import sys
from collections.abc import Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp

Imports = Mapping[str, Set[str]]
"""What each module, or each room, imports."""


@cache
@cache
def modules_of(package: str) -> Imports:
    """The imports between all modules of a package, those inside functions too."""
    graph = grimp.build_graph(package, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def rooms_of(imports: Imports, package: str) -> Imports:
    """The imports between the parts of a package that are one level below it, without their own name in front."""
    found: dict[str, set[str]] = {}
    for module, others in imports.items():
        if module.startswith(f"{package}."):
            room = _room(module, package)
            used = {_room(each, package) for each in others if each.startswith(f"{package}.")}
            found.setdefault(room, set()).update(used - {room})
    return found


def _room(module: str, package: str) -> str:
    return module.removeprefix(f"{package}.").split(".")[0]


def floors_of(imports: Imports) -> list[list[str]]:
    """The rooms of each floor, the ground floor first. Raises graphlib.CycleError if there is a circle."""
    sorter = TopologicalSorter(imports)
    sorter.prepare()
    floors = []
    while sorter.is_active():
        floors.append(sorted(ready := sorter.get_ready()))
        sorter.done(*ready)
    return floors


def circle_of(imports: Imports) -> list[str]:
    """A circle of imports, if there is one."""
    try:
        floors_of(imports)
    except CycleError as error:
        return list(error.args[1])
    return []


def circles_of(package: str) -> dict[str, list[str]]:
    """A circle of imports between the modules of a package, and between the parts of each package in it."""
    modules = modules_of(package)
    packages = {above for module in modules if (above := module.rpartition(".")[0])}
    found = {above: circle_of(rooms_of(modules, above)) for above in packages}
    return {name: circle for name, circle in {"": circle_of(modules), **found}.items() if circle}


def main(package: str = "rmqha") -> int:
    """Print the picture."""
    modules = modules_of("rmqha")
    rooms = rooms_of(modules, package)
    within = [module.removeprefix(f"{package}.") for module in modules if module.startswith(f"{package}.")]
    packages = {module.split(".")[0] for module in within if "." in module}
    at_root = ", ".join(sorted(rooms.keys() - packages))
    print(f"{len(within)} modules in {len(packages)} rooms, and at the root: {at_root}")
    circles = circles_of("rmqha")
    if package not in circles:
        for number, floor in reversed(list(enumerate(floors_of(rooms), 1))):
            print(f"{number:2}  {', '.join(floor)}")
    for name, circle in circles.items():
        print(f"circle in {name or 'all modules'}: {' -> '.join(circle)}")
    if not circles:
        print("no circle of imports")
    return 1 if circles else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
