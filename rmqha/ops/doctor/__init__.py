"""``rmqha doctor``: named checks of brokers, stores and name servers. Nothing is written anywhere.

In reading order:

- ``facts``: what is known about each broker, store and name server.
- ``findings``: what a check says.
- ``ofnodes``: checks of each broker and each store by itself.
- ``ofclusters``: checks that compare brokers and name servers.
- ``checks``: the list of all checks.
- ``asking``: asks brokers and name servers, all at once.
- ``reading``: reads a store on this machine.
"""
