"""Messages, bounds, errors, and the hash chain."""

import json
import pathlib
import re
import unittest

import baton
from baton import _wire

ROOT = pathlib.Path(__file__).resolve().parents[4]

MANIFEST = baton.Manifest(baton.HandoffID("p", 3, 5, 7), bytes(range(16)), "r1", 9, 9, 2, 4,
                          baton.Resume((1, 2), (-0.5,), b"\0x", True), bytes(32), bytes(32))


class Messages(unittest.TestCase):
    def test_a_key_is_not_shown(self):
        self.assertNotIn(repr(MANIFEST.key), repr(baton.Exported("l", MANIFEST)))
        self.assertNotIn("key", repr(MANIFEST))

    def test_manifest(self):
        self.assertEqual(baton.Manifest.parse(bytes(MANIFEST)), MANIFEST)
        for bad in (b"", b"\xff\xff", bytes(MANIFEST)[:10], bytes(1 << 25)):
            with self.assertRaises(baton.Bound):
                baton.Manifest.parse(bad)

    def test_bounds(self):
        export = dict(label="l", blocks=[1], tokens=4, slot=-1, position=4, resume=None, copies=1, max_hold=0.5, weights_epoch=0,
                      salt=None, parts=0, fence=0)
        self.assertEqual(_wire.export(export).export.max_hold_ns, 500_000_000)
        for changed in (
            {"label": "x" * 257}, {"label": None}, {"blocks": [1 << 31]}, {"blocks": ["a"]}, {"tokens": (1 << 20) + 1},
            {"slot": -2}, {"copies": 0}, {"max_hold": -1.0}, {"max_hold": 1e12}, {"weights_epoch": -1}, {"fence": 1 << 64}, {"parts": 1 << 17},
            {"resume": baton.Resume(tokens=[0] * 1025)}, {"resume": baton.Resume(sampler=bytes((1 << 20) + 1))},
            {"salt": baton.Salt(media=b"short")}, {"salt": baton.Salt(lora="\ud800")},
        ):
            with self.assertRaises(baton.Bound, msg=changed):
                _wire.export({**export, **changed})

    def test_newer_messages_are_refused(self):
        for data in (b"", b"\x9a\x06\x00"):
            with self.assertRaises(baton.Bound):
                _wire.event(_wire.decode(data))
        d = _wire._new("engine.v1.ToEngine")
        d.decision.n, d.decision.kind = 1, 77
        with self.assertRaises(baton.Bound):
            _wire.event(d)


class Errors(unittest.TestCase):
    def test_every_sentinel_has_a_class(self):
        table = (ROOT / "proto" / "errs" / "table.go").read_text()
        names = re.findall(r'^\t\{"([a-z-]+\.[a-z-]+)", ', table, re.M)
        self.assertGreater(len(names), 40)
        self.assertEqual(sorted(names), sorted(baton.errors.BY_NAME))

    def test_what_why_and_what_to_do(self):
        e = baton.errors.named(["handoff.gone", "handoff.peer", "made.up"], "handoff: gone: freed")
        self.assertIsInstance(e, baton.Gone)
        self.assertEqual(e.names, ("handoff.gone", "handoff.peer"))
        self.assertEqual(str(e), "handoff: gone: freed; to do: " + baton.Gone.remedy)
        self.assertIs(type(baton.errors.named(["made.up"], "x")), baton.Error)
        self.assertEqual(baton.Bound("x").names, ("handoff.bound",))


class Hashes(unittest.TestCase):
    def test_chain(self):
        file = ROOT / "sidecar" / "engine" / "blockhash" / "testdata" / "aux_block_hashes.json"
        for case in json.loads(file.read_text())["cases"]:
            self.assertEqual(baton.hashes(case["tokens"], case["block_size"]), case["hashes"])

    def test_salt(self):
        plain = baton.hashes(range(8), 4)
        self.assertEqual(plain, baton.hashes(range(8), 4, weights_epoch=3, policy=baton.WeightsPolicy.ALLOW))
        seen = {tuple(plain)}
        for more in ({"model": "m"}, {"weights_epoch": 1}, {"salt": baton.Salt(lora="m")}, {"salt": baton.Salt(namespace="m")},
                     {"salt": baton.Salt(media=b"m" * 32)}):
            seen.add(tuple(baton.hashes(range(8), 4, **more)))
        self.assertEqual(len(seen), 6)
        with self.assertRaises(ValueError):
            baton.hashes([1], 0)


if __name__ == "__main__":
    unittest.main()
