"""A query with GROUP BY whose messages our workers count, instead of Spark.

Spark 4.3 pushes filters into a source written in Python, but neither the choice of columns nor an aggregate. So
``in_workers`` reads the plan of a query, and asks the same of the view ``stats``. What it does not understand, it
refuses.
"""

import operator
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from rmqha.kit.times import EPOCH
from rmqha.pipeline.options import Options, Selection, View, parse_options, range_text
from rmqha.pipeline.schema import COLUMNS, NEVER_NULL
from rmqha.pipeline.source import SELECTED_BY_RANGE, Comparison, Range, common_range, range_of
from rmqha.pipeline.sums import SUMS, groups_of

COMPARISONS: dict[str, Callable[..., Comparison]] = {
    kind.__name__: kind for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
}
MIRRORED = {
    "EqualTo": "EqualTo",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}
"""The comparison with its two sides exchanged."""
OPERATIONS: dict[str, Callable[..., Column]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": Column.eqNullSafe,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": operator.invert,
    "IsNull": Column.isNull,
    "IsNotNull": Column.isNotNull,
    "In": Column.isin,
    "Like": sql.like,
    "StartsWith": sql.startswith,
    "EndsWith": sql.endswith,
    "Contains": sql.contains,
}
"""What a condition on grouped columns may consist of: Spark's names of it, and the same in Python."""
SUM_OF = {(kind, column): name for name, (column, kind, _) in SUMS.items()}
"""The sum of the view that a function of a column is."""
AGAIN: dict[str, Callable[[str], Column]] = {"sum": sql.sum, "min": sql.min, "max": sql.max}
OF_ROWS = {"columns", "properties", "decompress", "bodymaxbytes", "bodyschemas", "view", "pushdown"}
OF_ROWS |= {"bodyformat", "bodyschema", "bodydescriptor", "bodymessage"}
"""Options that change what is in a row, but not which rows there are, or who filters them."""

Node = Any
"""A node of a plan or of an expression, in the JVM."""


class NotInWorkers(ValueError):
    """The workers cannot sum up what this query asks. The text says what, and what to do."""


def in_workers(query: DataFrame) -> DataFrame:
    """The same result as ``query``, with messages summed up in the workers. Nothing is read yet.

    The query is a GROUP BY of columns over ``format("rmqha")``, by SQL or with ``groupBy``. It may ask for
    ``count(*)``, ``sum(totalSize)``, and ``min`` and ``max`` of queueOffset, storeTimestamp and columns of
    ``sums.GROUPS``. Its conditions are on the same columns; those on queueOffset and times compare them with a
    constant. Functions such as ``current_timestamp()`` are computed now.

    Raises NotInWorkers for all others.
    """
    frame = getattr(query, "_jdf", None)
    if frame is None:
        raise NotInWorkers("Spark Connect does not show the plan of a query: read view=stats with columns= instead")
    if query.isStreaming:
        raise NotInWorkers("this is a stream: read view=stats with columns= instead, and sum up its rows")
    return _Query(frame.queryExecution().analyzed()).rows(query.sparkSession)


class _Query:
    """What a query asks of the view ``stats``."""

    def __init__(self, plan: Node) -> None:
        """Raises NotInWorkers."""
        if _kind(plan) != "Aggregate":
            raise NotInWorkers(
                f"the last step of this query is {_kind(plan)}: give in_workers() the query up to its GROUP BY, and "
                "sort, filter or limit the result"
            )
        self._names: dict[int, str] = {}
        self._common: dict[int, Node] = {}
        self._ranges: dict[str, Range] = {}
        self._kept: list[Column] = []
        self._used: dict[str, None] = {}
        self._texts: dict[str, str] = {}
        self._groups: tuple[str, ...] = ()
        self._source(plan.child())
        self._by = [self._group(one) for one in _each(plan.groupingExpressions())]
        self._asked: list[Column] = []
        self._output = [self._result(one).alias(one.name()) for one in _each(plan.aggregateExpressions())]

    def rows(self, session: SparkSession) -> DataFrame:
        """The result of the query."""
        if not self._asked:
            self._asked.append(self._again("sum", "messages"))
        ranges = {name: str(range_text(limits)) for name, limits in self._ranges.items()}
        texts = {**self._texts, **ranges, "view": View.STATS.value, "columns": ",".join(self._used)}
        found = session.read.format("rmqha").options(**texts).load()
        for condition in self._kept:
            found = found.where(condition)
        asked = [one.alias(_place(number)) for number, one in enumerate(self._asked)]
        return found.groupBy(*self._by).agg(*asked).select(*self._output)

    def _source(self, plan: Node) -> Options:
        """The options of the log below a step of the plan. Its columns and conditions are noted."""
        match _kind(plan):
            case "SubqueryAlias" | "View":
                return self._source(plan.child())
            case "Project":
                options = self._source(plan.child())
                self._rename(plan.projectList())
                return options
            case "Filter":
                options = self._source(plan.child())
                self._filter(plan.condition(), options.selection)
                return options
            case "DataSourceV2Relation" if plan.table().name() == "rmqha":
                return self._relation(plan)
            case kind:
                raise NotInWorkers(f"messages must come from format('rmqha') alone: the plan has {kind} below GROUP BY")

    def _relation(self, plan: Node) -> Options:
        given = {str(name).lower(): str(text) for name, text in dict(plan.options()).items()}
        options = parse_options(given)
        if options.view is not View.RECORDS:
            raise NotInWorkers(f"this query reads view={options.view.value}: only view=records is summed up")
        self._texts = {name: text for name, text in given.items() if name not in OF_ROWS}
        self._groups = groups_of(options.is_remote)
        known = {name.lower(): name for name in (*COLUMNS, *self._groups)}
        for one in _each(plan.output()):
            self._names[one.exprId().id()] = known.get(one.name().lower(), one.name())
        return options

    def _rename(self, expressions: Node) -> None:
        for one in _each(expressions):
            column = self._column_of(one)
            if column is not None:
                self._names[one.exprId().id()] = column

    def _column_of(self, one: Node) -> str | None:
        """The column of the log that an expression is; None if it is computed."""
        one = self._plain(one)
        return self._names.get(one.exprId().id()) if _kind(one) == "AttributeReference" else None

    def _group(self, one: Node) -> Column:
        """A column by which the workers group."""
        column = self._column_of(one)
        if column not in self._groups:
            raise NotInWorkers(f"the workers group by {', '.join(self._groups)}, and not by {one.sql()}")
        self._used.setdefault(column)
        return sql.col(column)

    def _filter(self, one: Node, selection: Selection) -> None:
        one = self._opened(one)
        if _kind(one) == "And":
            self._filter(one.left(), selection)
            self._filter(one.right(), selection)
        elif not self._limit(one, selection):
            self._kept.append(self._condition(one))

    def _opened(self, one: Node) -> Node:
        """BETWEEN as the two comparisons that it is. Their common side is noted."""
        if _kind(one) == "Between":
            one = one.child()
        if _kind(one) != "With":
            return one
        self._common |= {common.id().id(): common.child() for common in _each(one.defs())}
        return one.child()

    def _plain(self, one: Node) -> Node:
        """An expression without its name, and without what stands for it."""
        while True:
            kind = _kind(one)
            if kind == "CommonExpressionRef":
                one = self._common[one.id().id()]
            elif kind == "Alias" or (kind == "Cast" and one.dataType().equals(one.child().dataType())):
                one = one.child()
            else:
                return one

    def _limit(self, one: Node, selection: Selection) -> bool:
        """Select by a comparison, if it is one of a column that has ranges and of a constant."""
        kind = _kind(one)
        if kind not in COMPARISONS:
            return False
        column, constant = one.left(), one.right()
        if column.foldable():
            kind, column, constant = MIRRORED[kind], constant, column
        name = self._column_of(column)
        if name not in SELECTED_BY_RANGE or not constant.foldable():
            return False
        value = constant.eval(None)
        if value is not None and _type(constant) == "timestamp":
            try:
                value = EPOCH + timedelta(microseconds=value)
            except OverflowError:
                raise NotInWorkers(f"{constant.sql()} is not a time in the years 1 to 9999") from None
        limits = range_of(COMPARISONS[kind]((name,), value))
        if limits is None:
            raise NotInWorkers(f"{name} is compared with null: no message passes")
        for present in (getattr(selection, SELECTED_BY_RANGE[name]), self._ranges.get(name)):
            limits = limits if present is None else common_range(limits, present)
        self._ranges[name] = limits
        return True

    def _condition(self, one: Node) -> Column:
        """An expression of grouped columns and constants, for Spark."""
        one = self._plain(self._opened(one))
        kind = _kind(one)
        if kind == "AttributeReference":
            return self._group(one)
        if one.foldable():
            return _constant(one)
        if kind == "Cast" and (_type(one.child()), _type(one)) == ("int", "bigint"):
            return self._condition(one.child()).cast("bigint")
        if kind not in OPERATIONS or (kind == "Like" and str(one.escapeChar()) != "\\"):
            raise NotInWorkers(f"the workers do not understand the condition {one.sql()}")
        return OPERATIONS[kind](*(self._condition(child) for child in _each(one.children())))

    def _result(self, one: Node) -> Column:
        """A column of the result: a grouped one, or a sum."""
        call = one.child() if _kind(one) == "Alias" else one
        if _kind(call) != "AggregateExpression":
            return self._group(one)
        self._asked.append(self._sum(call))
        return sql.col(_place(len(self._asked) - 1))

    def _sum(self, call: Node) -> Column:
        function = call.aggregateFunction()
        of = list(_each(function.children()))
        kind = _kind(function).lower()
        if not call.isDistinct() and call.filter().isEmpty():
            if kind == "count" and all(map(self._is_known, of)):
                return sql.coalesce(self._again("sum", "messages"), sql.lit(0))
            column = self._column_of(of[0]) if len(of) == 1 else None
            if (kind, column) in SUM_OF:
                return self._again(kind, SUM_OF[kind, str(column)])
            if kind in ("min", "max") and column in self._groups:
                return self._again(kind, str(column))
        raise NotInWorkers(
            f"the workers do not sum up {call.sql()}, but count(*), sum(totalSize), and min and max of queueOffset, "
            "storeTimestamp and of columns by which they group"
        )

    def _is_known(self, one: Node) -> bool:
        """Whether an expression is never null."""
        return one.eval(None) is not None if one.foldable() else self._column_of(one) in NEVER_NULL

    def _again(self, kind: str, column: str) -> Column:
        self._used.setdefault(column)
        return AGAIN[kind](column)


def _constant(one: Node) -> Column:
    value = one.eval(None)
    if _type(one) == "string" and value is not None:
        value = value.toString()
    if not isinstance(value, str | int | None):
        raise NotInWorkers(f"the workers compare with texts and whole numbers, and not with {one.sql()}")
    return sql.lit(value)


def _place(number: int) -> str:
    """The name of a sum until it gets that of the query, which may occur twice."""
    return f"_{number}"


def _kind(node: Node) -> str:
    return str(node.getClass().getSimpleName())


def _type(one: Node) -> str:
    return str(one.dataType().catalogString())


def _each(sequence: Node) -> Iterator[Node]:
    """The elements of a sequence of Scala."""
    return (sequence.apply(number) for number in range(sequence.size()))
