"""The HTTP port of a node and of a name server: metrics, health checks and a status page. It only reads.

In reading order:

- ``interfaces``: what the pages ask of a node.
- ``server``: requests and answers; limits on connections, requests and slow clients.
- ``catalogue``: the names, labels and meanings of all metrics.
- ``exposition``: metrics as text for Prometheus, made in steps.
- ``sampling``: what is looked at regularly: the disk, rates of puts, the last warnings, the reactor's turns.
- ``watchednode``: a node, and what its pages watch, for all of the following.
- ``nodemetrics``: a node's metrics.
- ``health``: the checks of load balancers.
- ``plots``: small plots as SVG.
- ``page``: the status page and status.json.
- ``sharing``: answers that take long are made one at a time, and shared.
- ``nodeweb``: all of this as a node's service.
- ``namesrvweb``: the same for a name server, with a page of the cluster.
"""
