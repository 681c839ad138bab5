"""Automatic failover: a coordinator says who leads, and the nodes keep to it.

In reading order:

- ``keys``: what a cluster keeps in the coordinator.
- ``view``: all of it at one revision, and what it means for a node.
- ``states``: the states of a node, and the moves between them.
- ``member``: what the agent asks of the node around it.
- ``watching``: a watch of the keys that is made again after it has ended.
- ``trust``: whether the coordinator still has what was written.
- ``eligible``: whether a node may try for the lead, and who should be let first.
- ``step/``: decides, step by step: follow, try for the lead, lead, hand over. All of it is data.
- ``agent``: does what the step says, and tells it what came of that.
- ``knownfile``: what a node keeps of its cluster on its disk.
- ``facts``: what a node tells of its cluster, in state.json and on its pages.
- ``orders``: orders of operators, and how a command waits for the answer.
- ``configuring``: reads and changes the cluster's settings.
- ``forgetting``: takes out a member that is gone for good.
- ``overview``: what operators see of a cluster.
"""
