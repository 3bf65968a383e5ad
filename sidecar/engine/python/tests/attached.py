"""What tests of a session begin with: a client that is attached to a sidecar that the test is."""

import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy

import baton
from sidecar import PATIENCE, Sidecar
from test_shard import attach


class Attached(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="baton-")
        self.addCleanup(self.tmp.cleanup)
        self.sidecar = Sidecar(self.tmp.name)
        self.addCleanup(lambda: self.sidecar.close())
        self.kv = baton.shm(4096).numpy((1, 8, 4, 2, 16), numpy.float32)
        self.pool = ThreadPoolExecutor(2)
        self.addCleanup(self.pool.shutdown)

    def attach(self, **changed):
        """Attaches; returns the client, its session, and what it stated."""
        coming = self.pool.submit(attach, self.kv, self.tmp.name, **{"redial": (0.001, 0.01), "timeout": PATIENCE, **changed})
        s = self.sidecar.session()
        stated = s.settle()
        client = coming.result(PATIENCE)
        self.addCleanup(client.close)
        return client, s, stated

    def until(self, client, ok):
        end = time.monotonic() + PATIENCE
        while not ok():
            self.assertLess(time.monotonic(), end, "never")
            client.wait(0.01)

    def poll(self, client, n):
        """So many events, less those of movers."""
        out = []
        self.until(client, lambda: out.extend(m for m in client.poll() if not isinstance(m, baton.MoverStarted)) or len(out) >= n)
        self.assertEqual(len(out), n, out)
        return out
