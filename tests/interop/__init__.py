"""The real Apache RocketMQ 4.9.3, run for tests and benchmarks. It alone needs a JDK (17 or later) and Maven.

In reading order: `rocketmq` starts name servers, brokers and clients of the Java release and needs no pytest;
`java/Driver.java` is what those clients run; `pom.xml` names the release; `conftest` hands all of it to tests
as fixtures; `test_harness` proves that the harness itself tells the truth. `nodes` has our side: a node as its own
process, and a relay for the HA channel. `goclient` builds and runs the official Go client (`go/main.go`), which needs
a Go compiler instead; so do `nodeclient` and `cppclient` with clients for Node and C++. `client_stories` is what each
of these must show. The proofs are `test_java_master`, `test_java_slave` (with `growing_master`) and `test_faults`.
"""
