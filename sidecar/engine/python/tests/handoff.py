"""Hand-offs between engines in Python through real sidecars and movers. e2e runs it, with the
run directories of a cluster's sidecars in the first line of standard input."""

import json
import os
import signal
import sys
import unittest

import baton
import toy

TOLD = {}


class Handoff(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefill, cls.decode = toy.Group(TOLD["prefill"]), toy.Group(TOLD["decode"])
        cls.both = [cls.prefill, cls.decode]
        sys.stdin.readline()  # that the cluster is up

    @classmethod
    def tearDownClass(cls):
        for g in cls.both:
            g.close()

    def export(self, label, prompt, **more):
        for i, r in enumerate(self.prefill.ranks):
            r.export(label, prompt, resume=baton.Resume(tokens=[7], logprobs=[-0.5], sampler=b"s") if i == 0 else None, **more)
        said = toy.until(self.both, lambda: toy.heard(self.prefill, baton.Exported, label), f"{label} is exported")
        return baton.Manifest.parse(bytes(said.manifest))

    def bring(self, label, manifest, prompt):
        """Imports, again while the group is not complete."""
        while True:
            self.decode.lead.import_(label, manifest, prompt, deadline=toy.PATIENCE)
            end = toy.until(self.both, lambda: toy.heard(self.decode, (baton.Imported, baton.Failed), label), f"{label} ends")
            if isinstance(end, baton.Imported):
                return end
            if not end.source_safe or not isinstance(end.error, (baton.NotReady, baton.PeerLost)):
                raise end.error

    def all_free(self):
        def free():
            return all(r.idle for g in self.both for r in g.ranks)

        toy.until(self.both, free, "all memory is free")

    def finish(self, label):
        for r in self.decode.ranks:
            held, _ = r.live.pop(label)
            r.give(held)

    def test_bytes_are_equal(self):
        for n in (1, toy.TOKENS, 3 * toy.TOKENS + 1):
            prompt = [i * 7 % 50 for i in range(n)]
            label = f"equal-{n}"
            m = self.export(label, prompt)
            self.assertEqual((m.label, m.tokens, m.position, m.block_tokens), (label, n, n, toy.TOKENS))
            got = self.bring(label + "-here", m, prompt)
            self.assertGreater(got.bytes, 0)
            for r in self.decode.ranks:
                held, reserve = r.live[label + "-here"]
                self.assertTrue(r.memory.holds(prompt, *held), f"rank {r.client.rank.rank} of {label}")
                self.assertEqual(tuple(reserve.resume.tokens), (7,))
                self.assertEqual(list(reserve.hashes), baton.hashes(prompt, toy.TOKENS, model="toy"))
            self.finish(label + "-here")
            self.all_free()

    def test_memory_is_where_it_was_asked_for(self):
        for g in self.both:
            for r in g.ranks:
                kinds = {"shm": (None, 0), "cuda": (64, 0), "chunks": (0, 2)}
                want = kinds[os.environ.get("TOY_MEMORY", "shm")]
                self.assertEqual([b.gpu and (len(b.gpu.handle), len(b.gpu.chunks)) or (None, 0) for b in r.client._buffers], [want])

    def test_no_copy_is_left(self):
        prompt = list(range(5))
        m = self.export("twice", prompt)
        self.bring("first", m, prompt)
        with self.assertRaises((baton.Taken, baton.Gone)):
            self.bring("second", m, prompt)
        self.finish("first")
        self.all_free()

    def test_another_prompt(self):
        m = self.export("other", [1, 2, 3])
        with self.assertRaises(baton.WrongPosition) as caught:
            self.bring("wrong", m, [1, 2, 3, 4])
        self.assertIn("handoff.position", caught.exception.names)
        self.assertTrue(caught.exception.spoken)
        self.prefill.lead.release("other")
        self.all_free()

    def test_fence_by_event(self):
        class Event:
            passed = False

            def query(self):
                return self.passed

        class Stream:
            def record_event(self):
                return event

        event, prompt = Event(), [4, 5]
        for i, r in enumerate(self.prefill.ranks):
            r.export("fenced", prompt, stream=Stream(), resume=baton.Resume(tokens=[1]) if i == 0 else None)
        for _ in range(20):
            self.prefill.step()
            self.assertIsNone(toy.heard(self.prefill, baton.Exported, "fenced"))
        event.passed = True
        said = toy.until(self.both, lambda: toy.heard(self.prefill, baton.Exported, "fenced"), "the fence passes")
        self.bring("fenced-here", said.manifest, prompt)
        self.finish("fenced-here")
        self.all_free()

    def test_bad_calls(self):
        lead = self.prefill.lead
        with self.assertRaises(baton.EngineFault):
            lead.applied(1 << 40)
        with self.assertRaises(baton.Bound):
            lead.export("big", range(1 << 21), 1)
        with self.assertRaises(baton.Bound):
            lead.export("label" * 100, [0], 1)
        with self.assertRaises(baton.Bound):
            lead.announce(3)
        with self.assertRaises(baton.Bound):
            lead.export("epoch", [0], 1, weights_epoch=-1)
        with self.assertRaises(baton.AlreadyAttached):
            toy.Rank(TOLD["prefill"], 0, len(TOLD["prefill"]["dirs"]))
        self.assertIsNone(lead.error)

    def test_sidecar_is_killed(self):
        prompt = list(range(9))
        m = self.export("held", prompt)
        lead = self.decode.lead
        os.kill(int(TOLD["decode"]["pids"][0]), signal.SIGKILL)
        toy.until(self.both, lambda: lead.away is not None, "the session is lost")
        lead.import_("lost", m, prompt)
        toy.until(self.both, lambda: lead.away is None, "the rank attaches again")
        failed = toy.heard(self.decode, baton.Failed, "lost")
        if failed is not None:
            self.assertTrue(failed.source_safe)
            self.assertIsInstance(failed.error, baton.PeerLost)
        self.bring("again", m, prompt)
        for r in self.decode.ranks:
            self.assertTrue(r.memory.holds(prompt, *r.live["again"][0]))
        self.finish("again")
        self.all_free()


if __name__ == "__main__":
    TOLD.update(json.loads(sys.stdin.readline()))
    unittest.main(verbosity=2)
