"""The plugin: what its options accept and refuse, the recipes, and that twistd finds it."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from twisted.application.service import IServiceCollection, IServiceMaker, loadApplication
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver
from twisted.plugin import getPlugins
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.slave.replica import StartFrom
from rmqha.ha.slave.slaveservice import OnGap, SlaveOptions
from rmqha.node.node import Node
from rmqha.node.plan import NodePlan
from rmqha.ops.logs import LogFormat, NodeLogObserver, SyslogObserver
from rmqha.settings.settings import BrokerRole, FlushDiskType
from rmqha.tap import Options
from tests.fixtures import new_folder
from tests.waiting import WAIT_SECONDS

CHECKOUT = Path(__file__).parent.parent
CONTRACT_OPTIONS = frozenset(
    (
        "role",
        "store",
        "conf",
        "master",
        "port",
        "ha-port",
        "from",
        "on-gap",
        "once",
        "name",
        "cluster",
        "broker-id",
        "namesrv",
    )
)
BROKER_CONF = """
# as a Java slave has it
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=1
brokerRole=SLAVE
listenPort=10921
haMasterAddress=10.0.0.1:10912
namesrvAddr=10.0.0.1:9876
storePathRootDir=/data/store
storePathCommitLog=/fast/commitlog
flushDiskType=SYNC_FLUSH
autoCreateTopicEnable=true
"""


class OptionsTestCase(SynchronousTestCase):
    def options(self, *arguments: str, twistd_options: Any = None) -> Options:
        """What the arguments mean; they are right."""
        options = Options()
        options.parent = twistd_options
        options.parseOptions(arguments)
        return options

    def refusal(self, *arguments: str) -> str:
        """What is said of wrong arguments: one line, with status 2."""
        stderr = StringIO()
        self.patch(sys, "__stderr__", stderr)
        leaving = self.assertRaises(SystemExit, self.options, *arguments)
        self.assertEqual(leaving.code, 2)
        line = stderr.getvalue()
        self.assertEqual(line.count("\n"), 1, line)
        self.assertTrue(line.startswith("rmqha: "), line)
        self.assertTrue(line.endswith("(see twistd rmqha --help)\n"), line)
        return line

    def conf(self, text: str = BROKER_CONF) -> str:
        path = new_folder(self) / "broker.conf"
        path.write_text(text)
        return f"--conf={path}"


class AcceptedTests(OptionsTestCase):
    def test_a_slave_needs_little(self) -> None:
        options = self.options("--role=slave", "--store=/data/replica", "--master=broker-a:10912")
        self.assertEqual(options.settings.broker_role, BrokerRole.SLAVE)
        self.assertEqual(options.settings.commit_log_folder, Path("/data/replica/commitlog"))
        self.assertEqual(options.settings.ha_master_address, "broker-a:10912")
        self.assertEqual(options.slave, SlaveOptions(StartFrom(), OnGap.STOP, once=False))
        self.assertEqual(options.log_format, LogFormat.TEXT)

    def test_every_role_has_its_name(self) -> None:
        for name, role in (("async-master", BrokerRole.ASYNC_MASTER), ("sync-master", BrokerRole.SYNC_MASTER)):
            with self.subTest(name):
                self.assertEqual(self.options(f"--role={name}", "--store=s").settings.broker_role, role)

    def test_the_other_options_of_a_slave(self) -> None:
        options = self.options(
            "--role=slave", "--master=h:1", "--from=4096", "--on-gap=reseed", "--once", "--log-format=json"
        )
        self.assertEqual(options.slave, SlaveOptions(StartFrom(offset=4096), OnGap.RESEED, once=True))
        self.assertEqual(options.log_format, LogFormat.JSON)
        last = self.options("--role=slave", "--master=h:1", "--from=last")
        self.assertEqual(last.slave.start_from, StartFrom(last=True))

    def test_a_rate_is_what_a_master_sends_and_a_slave_receives(self) -> None:
        for text, rate in (("65536", 65536), ("64k", 65536), ("10M", 10 << 20), ("2g", 2 << 30)):
            slave = self.options("--role=slave", "--master=h:1", f"--max-rate={text}").settings
            self.assertEqual((slave.max_ha_receive_bytes_in_second, slave.ha_flow_control_enable), (rate, False))
            for role in ("async-master", "sync-master"):
                master = self.options(f"--role={role}", f"--max-rate={text}").settings
                self.assertEqual((master.ha_flow_control_enable, master.max_ha_transfer_bytes_in_second), (True, rate))
                self.assertIsNone(master.max_ha_receive_bytes_in_second)

    def test_names_and_addresses(self) -> None:
        settings = self.options(
            "--role=slave", "--master=h:1", "--name=b", "--cluster=c", "--broker-id=3", "--namesrv=a:1;b:2"
        ).settings
        self.assertEqual(
            (settings.broker_name, settings.broker_cluster_name, settings.broker_id, settings.namesrv_addr),
            ("b", "c", 3, "a:1;b:2"),
        )

    def test_ports_follow_the_listen_port(self) -> None:
        for arguments, ports in (
            ([], (10911, 10909, 10912)),
            (["--port=20000"], (20000, 19998, 20001)),
            (["--port=20000", "--ha-port=7"], (20000, 19998, 7)),
            (["--port=0"], (0, 0, 0)),
            (["--port=0", "--ha-port=20001"], (0, 0, 20001)),
            (["--port=20000", "--ha-port=0"], (20000, 19998, 0)),
            (["--port=3"], (3, 1, 4)),
        ):
            with self.subTest(arguments):
                settings = self.options("--role=async-master", *arguments).settings
                self.assertEqual((settings.listen_port, settings.fast_port, settings.ha_port), ports)

    def test_a_broker_conf_is_read_as_it_is(self) -> None:
        settings = self.options(self.conf()).settings
        self.assertEqual(settings.broker_role, BrokerRole.SLAVE)
        self.assertEqual((settings.listen_port, settings.ha_port, settings.broker_id), (10921, 10922, 1))
        self.assertEqual(settings.commit_log_folder, Path("/fast/commitlog"))
        self.assertEqual(settings.flush_disk_type, FlushDiskType.SYNC_FLUSH)

    def test_the_command_line_wins_over_the_file(self) -> None:
        settings = self.options(
            self.conf(), "--role=async-master", "--port=20000", "--name=other", "--broker-id=0", "--cluster=c"
        ).settings
        self.assertEqual(settings.broker_role, BrokerRole.ASYNC_MASTER)
        self.assertEqual((settings.listen_port, settings.broker_name, settings.broker_id), (20000, "other", 0))
        self.assertEqual(settings.commit_log_folder, Path("/fast/commitlog"))

    def test_the_store_option_moves_the_whole_store(self) -> None:
        settings = self.options(self.conf(), "--store=/data/other").settings
        self.assertEqual(settings.commit_log_folder, Path("/data/other/commitlog"))

    def test_any_other_setting_can_be_given(self) -> None:
        settings = self.options(
            self.conf(),
            "--set=flushDiskType=ASYNC_FLUSH",
            "--set",
            "haTransferBatchSize=1024",
            "--set=metricsLabel=a=b",
            "--set=haSendHeartbeatInterval=100",
        ).settings
        self.assertEqual(settings.flush_disk_type, FlushDiskType.ASYNC_FLUSH)
        self.assertEqual((settings.ha_transfer_batch_size_bytes, settings.ha_send_heartbeat_interval_ms), (1024, 100))

    def test_a_named_option_wins_over_set(self) -> None:
        self.assertEqual(self.options(self.conf(), "--set=listenPort=1000", "--port=2000").settings.listen_port, 2000)

    def test_set_with_store_path_commit_log_keeps_it(self) -> None:
        settings = self.options("--role=async-master", "--store=/a", "--set=storePathCommitLog=/b").settings
        self.assertEqual((settings.store_path_root_dir, settings.commit_log_folder), (Path("/a"), Path("/b")))


class RefusedTests(OptionsTestCase):
    def test_each_wrong_value_is_named_with_the_reason(self) -> None:
        slave = ("--role=slave", "--master=h:1")
        for arguments, words in (
            (["--role=primary"], ("role is 'primary'", "slave", "async-master", "sync-master")),
            (["--role="], ("role is ''",)),
            ([*slave, "--port=http"], ("listenPort=http", "not a whole number")),
            ([*slave, "--port=65536"], ("listenPort=65536", "between 0 and 65535")),
            ([*slave, "--port=-1"], ("listenPort=-1", "between 0 and 65535")),
            ([*slave, "--port=2"], ("listenPort=2", "fast port")),
            ([*slave, "--port=65535"], ("listenPort=65535", "haListenPort")),
            ([*slave, "--ha-port=x"], ("haListenPort=x", "not a whole number")),
            ([*slave, "--port=100", "--ha-port=98"], ("haListenPort=98", "fast port")),
            ([*slave, "--broker-id=0"], ("brokerId=0", "master")),
            ([*slave, "--broker-id=one"], ("brokerId=one", "not a whole number")),
            ([*slave, "--name="], ("brokerName=", "empty")),
            ([*slave, "--cluster="], ("brokerClusterName=", "empty")),
            ([*slave, "--store="], ("storePathRootDir=", "empty")),
            ([*slave, "--store=/a,/b"], ("storePathRootDir=/a,/b", "several paths")),
            ([*slave, "--store=~nobody-of-this-name/x"], ("storePathRootDir=~nobody-of-this-name/x", "home")),
            ([*slave, "--from=middle"], ("from is 'middle'", "min, last or an offset")),
            ([*slave, "--from=-5"], ("from is '-5'",)),
            ([*slave, "--on-gap=panic"], ("on-gap is 'panic'", "stop or reseed")),
            ([*slave, "--log-format=xml"], ("log-format is 'xml'", "text or json")),
            ([*slave, "--set=novalue"], ("--set novalue", "KEY=VALUE")),
            ([*slave, "--set=flushDiskType=NEVER"], ("flushDiskType=NEVER", "ASYNC_FLUSH, SYNC_FLUSH")),
            ([*slave, "--set=haTransferBatchSize=0"], ("haTransferBatchSize=0", "between")),
            ([*slave, "--set=mappedFileSizeCommitLog=100"], ("mappedFileSizeCommitLog=100", "between")),
            ([*slave, "--set=enableDLegerCommitLog=true"], ("enableDLegerCommitLog=true", "own replication")),
            ([*slave, "--set=haHousekeepingInterval=1000"], ("haHousekeepingInterval=1000", "haSendHeartbeatInterval")),
            ([*slave, "--max-rate=fast"], ("max-rate: 'fast' is not a number of bytes",)),
            ([*slave, "--max-rate=5"], ("maxHaReceiveByteInSecond=5", "between 1024")),
            (["--role=async-master", "--max-rate=1.5m"], ("max-rate: '1.5m' is not a number of bytes",)),
            (["--role=async-master", "--max-rate=1k", "--set=haMaxBytesInFlight=1"], ("haMaxBytesInFlight=1",)),
            (["--role=slave"], ("a slave needs --master=HOST:PORT", "--namesrv")),
            (["--role=slave", "--namesrv=;"], ("a slave needs --master=HOST:PORT", "--namesrv")),
            (["--role=slave", "--once"], ("a slave needs --master=HOST:PORT", "--namesrv")),
            (["--role=slave", "--namesrv=h:1", "--master-remoting=h:2"], ("--master-remoting needs --master",)),
            ([*slave, "--namesrv=h"], ("'h' is neither HOST:PORT",)),
            ([*slave, "--once", "--embed-namesrv=9876"], ("--once", "--embed-namesrv")),
            (["--role=async-master", "--embed-namesrv=65536"], ("embed-namesrv=65536", "between 0 and 65535")),
            (["--role=async-master", "--embed-namesrv=usual"], ("embed-namesrv=usual is not a port",)),
            (["--role=slave", "--master="], ("a slave needs --master=HOST:PORT",)),
            (["--role=slave", "--master=broker-a"], ("'broker-a' is neither HOST:PORT nor a Twisted client endpoint",)),
            (["--role=slave", "--master=h:99999"], ("'h:99999'", "a port is between 1 and 65535")),
            (["--role=slave", "--master=tls:h"], ("'tls:h' is neither",)),
            ([*slave, "--master-remoting=h"], ("'h' is neither HOST:PORT",)),
            (["--role=async-master", "--once"], ("--once is valid only for a slave",)),
            ([], ("--role is missing: give --role=slave, async-master or sync-master, or a --conf with brokerRole",)),
            ([*slave, "--colour=red"], ("colour",)),
            ([*slave, "--once=yes"], ("once",)),
            ([*slave, "stray"], ("arguments",)),
        ):
            with self.subTest(arguments):
                line = self.refusal(*arguments)
                for word in words:
                    self.assertIn(word, line)

    def test_a_conf_that_cannot_be_read_is_named(self) -> None:
        folder = new_folder(self)
        self.assertIn(str(folder / "none.conf"), self.refusal(f"--conf={folder / 'none.conf'}"))
        self.assertIn("Is a directory", self.refusal(f"--conf={folder}"))

    def test_a_conf_with_a_wrong_value_names_its_key(self) -> None:
        self.assertIn("listenPort=ten", self.refusal(self.conf("brokerRole=ASYNC_MASTER\nlistenPort=ten\n")))
        self.assertIn("brokerRole=LEADER", self.refusal(self.conf("brokerRole=LEADER\n")))

    def test_nothing_is_said_to_a_stderr_that_is_closed(self) -> None:
        self.patch(sys, "__stderr__", None)
        leaving = self.assertRaises(SystemExit, self.options, "--role=nobody")
        self.assertEqual(leaving.code, 2)

    def test_callers_in_python_hear_of_it_by_usage_error(self) -> None:
        options = Options()
        options["role"] = "nobody"
        self.assertRaises(usage.UsageError, options.postOptions)


class PlanTests(OptionsTestCase):
    def plan(self, *arguments: str) -> NodePlan:
        return self.options(*arguments).plan(MemoryReactorClock())

    def masters(self, *arguments: str) -> tuple[str, str]:
        plan = self.plan("--role=slave", *arguments)
        return repr(plan.master), repr(plan.master_remoting)

    def test_the_masters_remoting_port_is_one_below_its_ha_port(self) -> None:
        self.assertEqual(
            self.masters("--master=broker-a:10912"),
            ("<HostnameEndpoint broker-a:10912>", "<HostnameEndpoint broker-a:10911>"),
        )
        self.assertEqual(
            self.masters("--master=[fe80::1]:10912"),
            ("<HostnameEndpoint [fe80::1]:10912>", "<HostnameEndpoint [fe80::1]:10911>"),
        )
        ha, remoting = self.masters("--master=tcp:broker-a:10912")
        self.assertIn("TCP4ClientEndpoint", ha)
        self.assertEqual(remoting, "<HostnameEndpoint broker-a:10911>")

    def test_the_masters_remoting_port_is_reached_over_tls_where_its_ha_port_is(self) -> None:
        self.assertEqual(self.masters("--master=tls:broker-a:10912"), ("<TLS to broker-a>", "<TLS to broker-a>"))

    def test_the_masters_remoting_port_can_be_given(self) -> None:
        self.assertEqual(
            self.masters("--master=tls:broker-a:10912", "--master-remoting=broker-a:5")[1],
            "<HostnameEndpoint broker-a:5>",
        )

    def test_there_may_be_no_remoting_port(self) -> None:
        for arguments in (
            ["--master=broker-a:10912", "--master-remoting=none"],
            ["--master=unix:/run/ha"],
            ["--master=broker-a:1"],
        ):
            with self.subTest(arguments):
                self.assertEqual(self.masters(*arguments)[1], "None")

    def test_a_master_has_no_master(self) -> None:
        plan = self.plan("--conf=" + self.conf().removeprefix("--conf="), "--role=sync-master", "--broker-id=0")
        self.assertEqual((plan.master, plan.master_remoting), (None, None))

    def test_name_servers_may_be_all_that_tells_a_slave_its_master(self) -> None:
        plan = self.plan("--role=slave", "--namesrv=ns-a:9876; ns-b:9876;")
        self.assertEqual((plan.master, plan.master_remoting), (None, None))
        self.assertEqual([name for name, _ in plan.name_servers], ["ns-a:9876", "ns-b:9876"])
        self.assertEqual(
            [repr(endpoint) for _, endpoint in plan.name_servers],
            ["<HostnameEndpoint ns-a:9876>", "<HostnameEndpoint ns-b:9876>"],
        )
        embedded = self.plan("--role=slave", "--embed-namesrv=9876")
        self.assertEqual((embedded.master, embedded.name_servers, embedded.embedded_port), (None, [], 9876))

    def test_a_name_server_is_embedded_only_if_asked_for(self) -> None:
        self.assertIsNone(self.plan("--role=async-master").embedded_port)
        self.assertEqual(self.plan("--role=async-master", "--embed-namesrv=0").embedded_port, 0)

    def test_the_address_to_listen_at(self) -> None:
        self.assertEqual(self.plan("--role=async-master").bind_address, "")
        self.assertEqual(self.plan("--role=async-master", "--bind=::1").bind_address, "::1")


class WhereEventsGoTests(OptionsTestCase):
    def observer(
        self, twistd_options: dict[str, Any] | None, *arguments: str
    ) -> NodeLogObserver | SyslogObserver | None:
        options = self.options("--role=async-master", *arguments, twistd_options=twistd_options)
        return options.plan(MemoryReactorClock()).observer

    def test_syslog_gets_escaped_lines(self) -> None:
        self.assertIsInstance(self.observer({"syslog": True, "prefix": "rmqha"}), SyslogObserver)

    def test_another_logger_of_twistds_stays(self) -> None:
        self.assertIsNone(self.observer({"logger": "my.logger", "nodaemon": True}))

    def test_twistds_log_file_is_ours(self) -> None:
        path = new_folder(self) / "node.log"
        self.assertIsNotNone(self.observer({"logfile": str(path)}))
        self.assertTrue(path.exists())

    def test_a_daemon_writes_where_twistd_would(self) -> None:
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(new_folder(self))
        self.assertIsNotNone(self.observer({"nodaemon": False, "logfile": None}))
        self.assertEqual(os.listdir(), ["twistd.log"])

    def test_in_the_foreground_it_is_standard_output(self) -> None:
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(new_folder(self))
        self.assertIsNotNone(self.observer({"nodaemon": True, "logfile": None}))
        self.assertIsNotNone(self.observer({"nodaemon": False, "logfile": "-"}))
        self.assertEqual(os.listdir(), [])

    def test_under_a_recipe_twistd_decides_unless_json_is_asked_for(self) -> None:
        self.assertIsNone(self.observer(None))
        self.assertIsNotNone(self.observer(None, "--log-format=json"))


class RecipeTests(SynchronousTestCase):
    def load(self, name: str) -> NodePlan:
        """The plan of the one node of the recipe, which makes nothing on disk."""
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(new_folder(self))
        application: Any = loadApplication(str(CHECKOUT / "tac" / f"{name}.tac"), "python")
        (node,) = IServiceCollection(application)
        self.assertIsInstance(node, Node)
        self.assertIsNone(ILogObserver(application, None))
        self.assertEqual(os.listdir(), [])
        plan: NodePlan = node.core.plan
        self.assertTrue(plan.manages_process)
        return plan

    def test_every_recipe_is_tested(self) -> None:
        names = sorted(path.stem for path in (CHECKOUT / "tac").iterdir())
        known = ["async_master", "failover", "namesrv", "slave", "sync_master"]  # test_namesrv_tap has the third
        self.assertEqual(names, known)

    def test_failover(self) -> None:
        plan = self.load("failover")
        self.assertEqual(plan.settings.broker_role, BrokerRole.SLAVE)
        self.assertIsNotNone(plan.member)

    def test_async_master(self) -> None:
        settings = self.load("async_master").settings
        self.assertEqual(settings.broker_role, BrokerRole.ASYNC_MASTER)
        self.assertEqual((settings.listen_port, settings.ha_port), (10911, 10912))

    def test_sync_master(self) -> None:
        settings = self.load("sync_master").settings
        self.assertEqual(settings.broker_role, BrokerRole.SYNC_MASTER)
        self.assertEqual((settings.listen_port, settings.ha_port), (10911, 10912))

    def test_slave(self) -> None:
        plan = self.load("slave")
        self.assertEqual(plan.settings.broker_role, BrokerRole.SLAVE)
        self.assertEqual(repr(plan.master), "<HostnameEndpoint 127.0.0.1:10912>")
        self.assertEqual(repr(plan.master_remoting), "<HostnameEndpoint 127.0.0.1:10911>")
        self.assertEqual((plan.settings.listen_port, plan.settings.broker_id), (10921, 1))
        self.assertEqual(plan.slave, SlaveOptions())

    def test_master_and_slave_of_the_recipes_share_no_port_and_no_store(self) -> None:
        master, slave = self.load("sync_master").settings, self.load("slave").settings
        self.assertFalse(_ports(master) & _ports(slave))
        self.assertNotEqual(master.store_path_root_dir, slave.store_path_root_dir)


BUILT = """
import json, os, sys
from rmqha.tap import Options, makeService

for words in map(str.split, sys.argv[2:]):
    if not os.fork():
        options = Options()
        options.parseOptions(words)
        makeService(options)
        print(json.dumps(sorted(name for name in sys.argv[1].split() if name in sys.modules)), flush=True)
        os._exit(0)
    os.wait()
"""
"""Which of some packages a node has imported that was made of these options, in a process of its own."""
PACKAGES_OF_SOME = (
    "jinja2",
    "lark",
    "prometheus_client",
    "rich",
    "sqlite3",
    "treq",
    "twisted.web",
    "yaml",
    "rmqha.acl.rules",
    "rmqha.client",
    "rmqha.coordination",
    "rmqha.failover",
    "rmqha.filter",
    "rmqha.namesrv",
    "rmqha.pipeline",
)
"""What only some nodes need. Without all of it a start takes a seventh less, and a node 5 MiB less."""


def _ports(settings: Any) -> set[int]:
    return {settings.listen_port, settings.fast_port, settings.ha_port}


def run_in_checkout(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=WAIT_SECONDS)


class PluginTests(SynchronousTestCase):
    def run_python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_in_checkout(sys.executable, *arguments)

    def test_it_is_among_the_plugins(self) -> None:
        makers = {maker.tapname: maker for maker in getPlugins(IServiceMaker)}
        self.assertIn("rmqha", makers)
        self.assertIs(makers["rmqha"].options, Options)

    @pytest.mark.process
    def test_plugin_and_options_install_no_reactor_and_import_what_all_nodes_need(self) -> None:
        pages = ("rmqha.web.nodeweb", "rmqha.web.server", "rmqha.web.page")  # rmqha.web.interfaces costs nothing
        dear = ("twisted.internet.reactor", *pages, "rich", "importlib.metadata", "treq")
        for module in ("twisted.plugins.rmqha_plugin", "rmqha.tap", "rmqha.cli"):
            with self.subTest(module):
                code = f"import sys, {module}; sys.exit(', '.join(sys.modules.keys() & set({dear})) or None)"
                done = self.run_python("-c", code)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    @pytest.mark.process
    def test_a_node_imports_what_it_needs_and_nothing_more(self) -> None:
        folder = new_folder(self)
        (folder / "plain_acl.yml").write_text("accounts: []\n")
        failover = ["rmqha.coordination", "rmqha.failover", "treq", "twisted.web"]
        nodes = {
            "--role=async-master": [],
            "--role=sync-master --namesrv=127.0.0.1:9876": [],
            "--role=slave --master=127.0.0.1:10912": [],
            "--role=slave --master=127.0.0.1:10912 --once": [],
            f"--role=sync-master --set=aclEnable=true --set=aclFolder={folder}": ["rmqha.acl.rules", "yaml"],
            "--role=sync-master --failover=witness:127.0.0.1:9877 --name=broker-a": failover,
        }
        done = self.run_python("-c", BUILT, " ".join(PACKAGES_OF_SOME), *nodes)
        self.assertEqual(done.stderr, "")
        self.assertEqual(dict(zip(nodes, map(json.loads, done.stdout.splitlines()), strict=True)), nodes)

    @pytest.mark.process
    def test_listing_plugins_does_not_import_rmqha(self) -> None:
        code = "import sys, twisted.plugins.rmqha_plugin; sys.exit(any(m.startswith('rmqha') for m in sys.modules))"
        done = self.run_python("-c", code)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @pytest.mark.process
    def test_twistd_lists_it(self) -> None:
        done = self.run_python("-m", "twisted", "--help")
        self.assertRegex(done.stdout, r"rmqha +RocketMQ HA")
        twistd = str(Path(sys.executable).with_name("twistd"))
        listed = run_in_checkout(twistd, "--help")
        self.assertRegex(listed.stdout, r"rmqha +RocketMQ HA")

    @pytest.mark.process
    def test_its_help_tells_every_option(self) -> None:
        twistd = str(Path(sys.executable).with_name("twistd"))
        done = run_in_checkout(twistd, "rmqha", "--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for row in [*Options.optParameters, *Options.optFlags]:
            self.assertIn(f"--{row[0]}", done.stdout)
        for contract in CONTRACT_OPTIONS:
            self.assertIn(f"--{contract}", done.stdout)

    @pytest.mark.process
    def test_another_reactor_can_be_chosen(self) -> None:
        twistd = str(Path(sys.executable).with_name("twistd"))
        command = [twistd, "--reactor=poll", "-n", "--pidfile=", "rmqha", "--role=nobody"]
        done = run_in_checkout(*command)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"^rmqha: role is 'nobody', not one of .*\n$")
