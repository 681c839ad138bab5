"""Apache RocketMQ's own integration tests, run against brokers of ours: ``python -m tests.peer``, ``make peer-proof``.

The tests are the module `rocketmq-test` of Maven Central (4.9.7: 4.9.8 and 5.x have none there). `java/BaseConf.java`
stands before the class of that name in its jar: it starts no brokers, it uses those that run. `java/Suite.java` runs
the classes that it is told, and prints a line for each test. `java/JavaCluster.java` has RocketMQ's own brokers, the
control. `classes.txt` names the classes; those of DLedger are left out, because they start brokers of their own.
`classes-tls.txt` names those that want TLS.
"""
