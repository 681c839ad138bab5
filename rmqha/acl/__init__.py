"""RocketMQ's access control, ACL 1.0: who may do what on the remoting ports (docs/acl.md, spec/remoting.md 13).

In reading order:

- ``signing``: the signature of a request, and what signs our own requests.
- ``yamlfile``: reads a small YAML file that may be hostile.
- ``credentials``: the keys of a client, from a file or from the environment.
"""
