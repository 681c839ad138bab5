"""RocketMQ's access control, ACL 1.0: who may do what on the remoting ports (docs/acl.md, spec/remoting.md 13).

In reading order:

- ``signing``: the signature of a request, and what signs our own requests.
- ``plainloader``: the loader of YAML, with limits.
- ``yamlfile``: reads a small YAML file that may be hostile.
- ``credentials``: the keys of a client, from a file or from the environment.
- ``addresses``: patterns of addresses.
- ``needs``: what each request needs.
- ``usual``: sends that are allowed as the one before.
- ``rules``: the accounts, and whether they allow a request.
- ``files``: the files of the accounts.
- ``patience``: how long a stranger waits for a refusal.
- ``gate``: the gate before the processors of a broker.
- ``admin``: mqadmin's requests about the accounts.
"""
