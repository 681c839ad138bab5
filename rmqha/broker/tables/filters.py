"""The SQL92 filters of consumers, parsed once (spec/remoting.md 2.3.3)."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from rmqha.kit.steps import Steps
from rmqha.remoting.header import refused
from rmqha.remoting.protocol import RequestRefused
from rmqha.settings.settings import Settings
from rmqha.wire.command import ResponseCode
from rmqha.wire.subscription import SQL92

if TYPE_CHECKING:  # most brokers have no such filters, and start quicker
    from rmqha.filter.expressions import SqlFilter

MAX_KEPT_CHARACTERS = 256 * 1024
"""Of all expressions that are kept parsed. A parsed one takes some hundred times as many bytes."""
COST_OF_ENTRY = 100
"""An expression counts as this many characters more."""


class SqlFilters:
    """Parses expressions, and keeps those that were used last. A wrong one is kept too, as the text of its error."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        """The settings now."""
        self._kept: OrderedDict[str, SqlFilter | str] = OrderedDict()
        self._characters = 0
        if settings.enable_property_filter:
            from rmqha.filter.grammar import prepare

            prepare()  # now, and not while a consumer waits: it takes some 50 ms

    def check_type(self, expression_type: str) -> None:
        """Raises RequestRefused if the broker does not filter by expressions of this type."""
        problem = f"The broker does not support consumer to filter message by {expression_type[:20]}"
        if expression_type != SQL92:
            raise refused(problem)
        if not self.settings.enable_property_filter:
            raise refused(f"{problem}: it has enablePropertyFilter=false")

    def get(self, expression: str) -> "SqlFilter | str | None":
        """The filter, or what is wrong with the expression; None if it is not parsed."""
        found = self._kept.get(expression)
        if found is not None:
            self._kept.move_to_end(expression)
        return found

    def parsing(self, expression: str) -> "Steps[SqlFilter | str]":
        """Like ``get``. The expression is parsed in steps if it is not yet."""
        found = self.get(expression)
        if found is not None:
            return found
        from rmqha.filter import grammar  # both are there already, unless the setting has changed since the start
        from rmqha.filter.expressions import SqlError

        yield
        grammar.prepare()
        yield
        try:
            found = yield from grammar.parsing(expression)
        except SqlError as error:
            found = str(error)
        if expression not in self._kept:
            self._characters += len(expression) + COST_OF_ENTRY
        self._kept[expression] = found
        while self._characters > MAX_KEPT_CHARACTERS and len(self._kept) > 1:
            first, _ = self._kept.popitem(last=False)
            self._characters -= len(first) + COST_OF_ENTRY
        return found


def parse_failed(problem: str, code: ResponseCode = ResponseCode.SUBSCRIPTION_PARSE_FAILED) -> RequestRefused:
    """The refusal of a wrong expression."""
    return RequestRefused(code, f"the SQL92 expression is invalid: {problem}")
