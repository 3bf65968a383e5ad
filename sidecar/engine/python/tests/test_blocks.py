"""Block events: what is told of the prefix cache, to whom, and in which messages."""

import unittest
import unittest.mock

import baton
from attached import Attached
from baton import _session


class Blocks(Attached):
    def test_blocks_are_told_to_who_asks(self):
        client, s, stated = self.attach(tells_blocks=True)
        self.assertTrue(stated.tells_blocks)

        def told():
            return [(e.kind, e.parent, [(b.id, list(b.tokens)) for b in e.blocks], list(e.removed), e.lost) for e in s.next("block_events").events]

        client.stored([(1, [5, 6]), (2, [7, 8])])  # nobody asked
        client.stored([(9, [1, 1])], salt=baton.Salt(lora="a"))
        client.removed([9, 77])
        client.stored([(3, [9, 9])], parent=2)
        s.say("tell_blocks", on=True)
        self.assertEqual(told(), [(3, 0, [], [], 0), (1, 0, [(1, [5, 6]), (2, [7, 8]), (3, [9, 9])], [], 0)])
        client.stored([(1, [5, 6]), (2, [7, 8]), (4, [0, 0])])
        self.assertEqual(told(), [(1, 2, [(4, [0, 0])], [], 0)])
        client.removed([2, 55])
        self.assertEqual(told(), [(2, 0, [], [2], 0)])
        client.removed([2]), client.stored([(1, [5, 6])])  # known
        client.cleared()
        self.assertEqual(told(), [(3, 0, [], [], 0)])
        with self.assertRaises(baton.EngineFault):
            client.stored([(0, [1])])
        with self.assertRaises(baton.EngineFault):
            client.stored([(10, [-1])])
        with unittest.mock.patch.object(_session.Session, "room", False):
            client.stored([(6, [1, 2])])
            client.removed([6]), client.stored([(7, [1, 2])])
            client.poll()
        client.poll()
        self.assertEqual(told(), [(3, 0, [], [], 3), (1, 0, [(7, [1, 2])], [], 0)])
        s.end()
        s = self.sidecar.session()
        s.settle()
        client.stored([(8, [1, 2])], parent=7)
        s.say("tell_blocks", on=True)
        self.assertEqual(told(), [(3, 0, [], [], 0), (1, 0, [(7, [1, 2]), (8, [1, 2])], [], 0)])
        client.close()
        for say in (lambda: client.stored([(9, [1, 2])]), lambda: client.removed([8]), client.cleared):
            with self.assertRaises(baton.SessionClosed) as caught:
                say()
            self.assertIn("to do: attach anew", str(caught.exception))

    def test_many_long_blocks_are_told_in_messages_that_fit(self):
        client, s, _ = self.attach(tells_blocks=True)
        n, per = 1 << 12, 1 << 11
        tokens = [1 << 30] * per  # 5 bytes each: 40 MiB in all
        for at in range(0, n, 1 << 10):
            client.stored([(i + 1, tokens) for i in range(at, at + (1 << 10))], parent=at)
        s.say("tell_blocks", on=True)
        ids, said = [], 0
        while len(ids) < n:
            events = s.next("block_events").events
            ids += [b.id for e in events for b in e.blocks]
            said += 1
        self.assertEqual(ids, list(range(1, n + 1)))
        self.assertGreater(said, 2)
        self.assertIsNone(client.away)

    def test_what_no_message_carries_is_not_stored(self):
        client, s, _ = self.attach(tells_blocks=True)
        for tokens in ([1 << 31], [-1 << 40], ["a"], [0.5], [1] * ((1 << 16) + 1), []):
            with self.assertRaises(baton.EngineFault):
                client.stored([(1, tokens)])
        for salt in (baton.Salt(lora="a" * 300), baton.Salt(media=b"short")):
            with self.assertRaises(baton.Bound):
                client.stored([(1, [1])], salt=salt)
        s.say("tell_blocks", on=True)
        self.assertEqual([e.kind for e in s.next("block_events").events], [3])

    def test_blocks_of_who_tells_none(self):
        client, _, _ = self.attach()
        for tell in (lambda: client.stored([(1, [1])]), lambda: client.removed([1]), client.cleared):
            with self.assertRaises(baton.EngineFault):
                tell()


if __name__ == "__main__":
    unittest.main()
