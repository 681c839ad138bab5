"""What answers clients, and asks other brokers (spec/remoting.md).

In reading order:

- the line: ``remoting`` (the protocol, both ends), ``remotingclient`` (a connection that is kept), ``header`` (a
  request's fields);
- what a broker knows: ``configmanager`` (a table and its file), ``topics``, ``groups``, ``offsets``, ``clients`` (who
  is connected), ``locks``, ``stats``;
- who answers: ``send``, ``pull`` with ``filters``, ``query``, ``transaction``, ``admin``, ``runtimeinfo``;
- what runs by itself: ``schedule`` (delayed messages), ``outerapi`` with ``registration`` (name servers), ``slavesync``
  (a slave's copies of its master's tables);
- ``controller``, where all of them meet. A node has one; none of the others knows of it.
"""
