"""What a member decides: from what it knows, and what happened, to what it knows then, and what is to be done.

Nothing here waits, talks or looks at a clock. The shell (``rmqha.failover.agent``) does it, and tells what came of it.

In reading order:

- ``events``: what happens, and what the member sees at that moment.
- ``actions``: what is to be done.
- ``syncset``: which members puts wait for: how one is added, and how one is left out.
- ``knowledge``: what the member knows.
- ``work``: one event at work; a procedure that goes on with each answer; the answers of calls.
- ``rights``: the state, the lease and the right to lead.
- ``reading``: reads the keys, and notes what they say.
- ``telling``: writes the node's own key.
- ``obeying``: what operators order, and how the lead is given up.
- ``leading``: a step of the leader; who is in ``sync``.
- ``trying``: tries for the lead, and takes it.
- ``following``: a node that does not lead follows who does. What it promises to the leader.
- ``turns``: a whole step: which of these it is, and what comes of a failure. The start, and the stop.
- ``step``: takes an event in each state.
"""
