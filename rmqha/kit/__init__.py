"""Small parts that know nothing of RocketMQ. Every other room may use them, and they import none of ours.

In reading order:

- ``events``: the names of what the log reports.
- ``exitcodes``: the exit codes of commands and nodes.
- ``times``: times as people write them.
- ``collecting``: the collector of cycles, while modules are imported.
- ``interrupts``: Ctrl-C while modules are imported.
- ``printing``: escapes text that others chose, for terminals and log files.
- ``progress``: what shows how far a long work has come.
- ``bar``: a bar on the terminal.
- ``showing``: shows it on stderr, as a bar or as lines.
- ``histogram``: durations, counted in classes.
- ``steps``: long work that is done in steps.
- ``services``: Twisted services that stop in order, and periodic calls that survive errors.
- ``threads``: work in another thread.
- ``wallclock``: the time of day, for those who must be able to set it.
- ``rates``: token buckets, also one for each address.
- ``trouble``: a trouble that lasts gets one line in the log.
- ``sending``: writes to a socket now, because somebody waits for the bytes.
- ``connecting``: connections that are retried, and how the log reports that.
- ``httpchannel``: a connection of a small HTTP server, with its limits.
"""
