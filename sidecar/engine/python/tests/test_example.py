"""The README's engine, without a sidecar."""

import unittest
from unittest import mock

import baton
import example


class Instances(unittest.TestCase):
    def test_each_engine_has_its_own(self):
        with mock.patch.object(baton, "attach") as attach:
            for instance in (None, None, 5):
                example.Engine("dir", "g", *([instance] if instance else []))
        first, second, given = (call.kwargs["instance"] for call in attach.call_args_list)
        self.assertTrue(first and second)
        self.assertNotEqual(first, second)
        self.assertEqual(given, 5)

    def test_freed_without_a_manifest_is_failed(self):
        with mock.patch.object(baton, "attach"):
            engine = example.Engine("dir", "g")
        free = baton.Decision(1, baton.DecisionKind.FREE, label="r")
        engine.rank.decisions.return_value = [free]
        for manifest in (None, mock.Mock(), None):
            engine.failed.clear()
            engine.export("r", [1, 2], 3)
            engine.rank.poll.return_value = [baton.Exported("r", manifest)] * bool(manifest) + [baton.Through(1)]
            engine.step()
            self.assertEqual("r" in engine.failed, manifest is None)
            self.assertEqual(len(engine.free), example.BLOCKS)


if __name__ == "__main__":
    unittest.main()
