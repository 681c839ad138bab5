"""SQL92 filters: which messages a consumer wants, by their properties (spec/remoting.md 2.3.3).

In reading order:

- ``values``: values and their types, and how RocketMQ compares them.
- ``expressions``: the parts of an expression, and what each gives for a message.
- ``grammar``: the grammar, and parsing in steps.
"""
