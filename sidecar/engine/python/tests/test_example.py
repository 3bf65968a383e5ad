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


if __name__ == "__main__":
    unittest.main()
