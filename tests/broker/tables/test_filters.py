"""The SQL92 filters of a broker that may have none when it starts."""

from rmqha.broker.tables.filters import SqlFilters
from rmqha.filter.expressions import SqlFilter
from rmqha.kit.steps import at_once
from rmqha.settings.settings import Settings, make_settings


def test_filters_allowed_at_run_time_are_parsed_in_turns_of_their_own() -> None:
    filters = SqlFilters(Settings())
    filters.settings = make_settings({"enablePropertyFilter": "true"})
    steps = filters.parsing("a > 5")
    assert next(steps) is None, "other work may run after the import"
    assert next(steps) is None, "and after the parser is made"
    found = at_once(steps)
    assert isinstance(found, SqlFilter)
    assert filters.get("a > 5") is found
