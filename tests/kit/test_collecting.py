"""The collector of cycles is off while modules are imported, and passes over them later."""

import gc

from twisted.application import service
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.collecting import imports_are_kept
from twisted.plugins.rmqha_plugin import rmqha, rmqha_namesrv


class ImportsAreKeptTests(SynchronousTestCase):
    def test_it_is_off_meanwhile_and_does_not_look_at_what_was_made(self) -> None:
        with imports_are_kept():
            self.assertFalse(gc.isenabled())
            made: list[object] = []
        self.assertTrue(gc.isenabled())
        self.assertFalse(any(each is made for each in gc.get_objects()))

    def test_it_stays_off_if_somebody_has_turned_it_off(self) -> None:
        gc.disable()
        self.addCleanup(gc.enable)
        with imports_are_kept():
            pass
        self.assertFalse(gc.isenabled())

    def test_it_is_off_while_twistd_imports_what_a_plugin_names(self) -> None:
        for maker in (rmqha, rmqha_namesrv):
            seen: list[bool] = []

            def look(_: str, seen: list[bool] = seen) -> type:
                seen.append(gc.isenabled())
                return type("module", (), {"Options": None})

            self.patch(service, "namedAny", look)
            self.assertIsNone(maker.options)
            self.assertEqual(seen, [False])
