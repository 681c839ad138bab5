"""The processors of a broker. Each answers some request codes.

In reading order:

- ``stamps``: the address and time that a broker stamps on messages.
- ``timersends``: what becomes of timer messages.
- ``ordinarysends``: stores ordinary messages, all that one read brings.
- ``send``: stores messages.
- ``recall``: takes timer messages back.
- ``reply``: replies to request(), passed on to who asked.
- ``sharedreads``: one read for pulls that wake together and ask for the same messages.
- ``pull``: reads messages, and holds a pull until a message arrives.
- ``pop``: refuses POP consumption, which 5.x added.
- ``confirmed``: tells slaves what is confirmed.
- ``query``: finds messages by key and by id.
- ``transaction``: transactions, and the checks of their state.
- ``config``: changes of settings while a broker runs.
- ``admin``: requests of operators and their tools.
- ``tablechanges``: tells slaves when topics, groups or deletions change.
- ``overview``: those about all groups, all producers and single queues, and those that clean.
- ``later``: refuses what tools ask for and this broker does not have, mostly of RocketMQ 5.
- ``toclients``: those that the broker passes on to consumers.
"""
