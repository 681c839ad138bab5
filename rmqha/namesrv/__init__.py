"""A name server: knows the brokers and the topics that they carry (spec/remoting.md 2.22).

In reading order:

- ``routeinfo``: the registered brokers, and the routes of topics.
- ``peers``: who may register brokers and administer.
- ``kvconfig``: the key-value configuration, kept in kvConfig.json.
- ``nameserver``: answers requests, and removes brokers that have become silent.
"""
