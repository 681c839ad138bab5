"""PyYAML's safe loader, with limits: the writer of a file may be hostile."""

from typing import Any

import yaml

MAX_DEPTH = 20


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader. It also refuses aliases, which can make a small file large, great depth, and a key that is
    there twice: the last one would silently count.
    """

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name), which is not allowed here")
        if self._depth >= MAX_DEPTH:
            raise yaml.YAMLError(f"it has more than {MAX_DEPTH} levels")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{key.value!r} in line {line} is there twice in one mapping; keep one of them")
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)
