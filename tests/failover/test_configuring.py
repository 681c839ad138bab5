"""The cluster's settings, as an operator types them."""

import json
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.failover.configuring import ConfigError, ConfigRace, StoredConfig, parse_setting
from rmqha.failover.keys import CONFIG, ClusterConfig, InvalidKey
from tests.failover.clusters import PREFIX, Keys


class ParseTests(SynchronousTestCase):
    def test_values_have_the_types_of_their_settings(self) -> None:
        texts = ("ttl=20", "renew = 2.5", "mode=async", "paused=TRUE", "maximum_lag=0")
        self.assertEqual(
            dict(map(parse_setting, texts)),
            {"ttl": 20, "renew": 2.5, "mode": "async", "paused": True, "maximum_lag": 0},
        )

    def test_what_cannot_be_used_is_named(self) -> None:
        for text, reason in (
            ("ttl", "write NAME=VALUE"),
            ("tll=3", "there is no setting 'tll'; there are ttl, renew"),
            ("ttl=2.5", "ttl=2.5: expected a whole number"),
            ("renew=soon", "renew=soon: expected a number"),
            ("failover_pause=nan", "expected a number"),
            ("failover_pause=inf", "expected a number"),
            ("paused=maybe", "expected true or false"),
        ):
            with self.subTest(text), self.assertRaises(ConfigError) as caught:
                parse_setting(text)
            self.assertIn(reason, str(caught.exception))


class ChangeTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.keys = Keys(Clock())
        self.client = self.keys.store.client("cli")

    def read(self) -> StoredConfig:
        return self.keys.run(StoredConfig.read(self.client, PREFIX))

    def change(self, stored: StoredConfig, **changes: Any) -> ClusterConfig:
        return self.keys.run(stored.change(self.client, changes))

    def test_the_first_change_keeps_the_other_defaults(self) -> None:
        self.assertEqual(self.change(self.read(), ttl=20), ClusterConfig(ttl=20))
        self.assertEqual(self.keys.view().config, ClusterConfig(ttl=20))

    def test_settings_that_do_not_fit_together_are_not_written(self) -> None:
        with self.assertRaises(ConfigError) as caught:
            self.change(self.read(), renew=10.0)
        self.assertIn("nothing was written: renew + 2 * timeout", str(caught.exception))
        self.assertIsNone(self.keys.raw(CONFIG))

    def test_a_change_meanwhile_is_not_overwritten(self) -> None:
        for before in (None, ClusterConfig(ttl=30)):
            if before is not None:
                self.keys.put(CONFIG, before)
            stored = self.read()
            self.keys.put(CONFIG, ClusterConfig(ttl=40))
            with self.assertRaises(ConfigRace):
                self.change(stored, paused=True)
            self.assertEqual(self.keys.view().config, ClusterConfig(ttl=40))

    def test_fields_of_a_newer_version_are_kept(self) -> None:
        self.keys.put(CONFIG, b'{"ttl": 20, "newer": [1]}')
        self.change(self.read(), paused=True)
        found = json.loads(self.keys.raw(CONFIG) or b"")
        self.assertEqual((found["newer"], found["ttl"], found["paused"]), ([1], 20, True))

    def test_settings_that_cannot_be_read_are_replaced_only_on_demand(self) -> None:
        for damaged in (b"\xff", b'{"ttl": "soon"}', b"null"):
            with self.subTest(damaged):
                self.keys.put(CONFIG, damaged)
                with self.assertRaises(InvalidKey):
                    self.change(self.read(), paused=True)
                self.assertEqual(self.keys.raw(CONFIG), damaged)
                self.keys.run(self.read().change(self.client, {"paused": True}, from_defaults=True))
                self.assertEqual(self.keys.view().config, ClusterConfig(paused=True))

    def test_unusable_settings_can_be_mended(self) -> None:
        self.keys.put(CONFIG, ClusterConfig(ttl=1))
        self.assertEqual(self.change(self.read(), ttl=15), ClusterConfig())
