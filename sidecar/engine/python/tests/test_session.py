"""Sessions that begin, are refused, are lost and come back, against a sidecar that the test is."""

import gc
import os
import signal
import subprocess
import sys
import unittest
import unittest.mock

import numpy

import baton
from attached import Attached
from baton import _driver, _session
from sidecar import PATIENCE
from test_shard import attach
from test_wire import MANIFEST

KIND = baton.DecisionKind


class Sessions(Attached):
    def test_what_is_stated(self):
        client, s, stated = self.attach()
        self.assertEqual((stated.group, stated.instance, stated.rank, stated.ranks, stated.on_down), ("g", 1, 0, 1, 1))
        self.assertEqual([(b.id, b.off, b.len) for b in stated.buffers], [(0, 0, 4096)])
        v = stated.shards[0].view
        self.assertEqual((v.buffer, v.off, v.item, v.row, v.unit, v.elem), (0, 0, 512, 128, 64, 4))
        self.assertEqual(self.sidecar.files, [((9, 0), 1)])
        self.assertEqual(client.poll(), [baton.MoverStarted(os.getpid())])
        self.assertFalse(client.wait(0))

    def test_refusals(self):
        for names, kind in ((["handoff.attach"], baton.AttachRefused), (["handoff.relaunch", "handoff.attach"], baton.Relaunch),
                            (["handoff.attached"], baton.AlreadyAttached), ([], baton.PeerLost)):
            coming = self.pool.submit(attach, self.kv, self.tmp.name)
            self.sidecar.session().end(names, "it is so")
            with self.assertRaises(kind) as caught:
                coming.result(PATIENCE)
            self.assertEqual(caught.exception.spoken, bool(names))
        self.sidecar.answer = b"\2"
        coming = self.pool.submit(attach, self.kv, self.tmp.name)
        s = self.sidecar.session()
        s.next("attach")
        s.say("attached", incarnation=1, fd_key=9)
        with self.assertRaisesRegex(baton.AttachRefused, "more of the buffer"):
            coming.result(PATIENCE)

    def test_a_sidecar_that_says_nothing(self):
        with self.assertRaises(TimeoutError):
            attach(self.kv, self.tmp.name, timeout=0.05)

    def test_decisions(self):
        client, s, _ = self.attach()
        s.say("decision", n=1, kind=KIND.RESERVE, label="r", tokens=5, hashes=[3], resume={"finished": True})
        self.assertEqual(s.next("held").n, 1)
        s.say("through", n=1)
        self.assertEqual(self.poll(client, 1), [baton.Through(1)])
        d, = client.decisions(1)
        self.assertEqual((d.n, d.kind, d.label, d.tokens, d.hashes, d.resume.finished), (1, KIND.RESERVE, "r", 5, (3,), True))
        self.assertEqual(client.decisions(1), [])
        client.reserved(1, [4, 5], bytes(range(32)), cached=4)
        client.applied(1)
        r = s.next("reserved")
        self.assertEqual((list(r.blocks), r.slot, r.cached, r.digest), ([4, 5], -1, 4, bytes(range(32))))
        self.assertEqual(s.next("applied").n, 1)
        client.full(1), client.refuse(1, "never"), client.freed(2, 1), client.lifecycle_ack(1, baton.Draining("no"))
        self.assertTrue(s.next("reserved").full)
        self.assertEqual(s.next("reserved").why, "never")
        self.assertEqual(s.next("freed").blocks, 2)
        self.assertEqual(list(s.next("lifecycle_ack").error.names), ["handoff.draining"])

    def test_a_lost_session(self):
        client, s, _ = self.attach()
        client.announce("later"), client.export("held", [1], 4), client.fenced(6)
        client.import_("in", MANIFEST, range(9), deadline=PATIENCE)
        for kind in ("announce", "export", "fenced", "import_request"):
            s.next(kind)
        s.say("decision", n=1, kind=KIND.RESERVE, label="in", tokens=9, hashes=[8, 9])
        s.say("decision", n=2, kind=KIND.SET_WEIGHTS_EPOCH, weights_epoch=4)
        s.say("decision", n=3, kind=KIND.LIFECYCLE, action=baton.Action.STOP_INTAKE)
        s.say("decision", n=4, kind=KIND.FREE, label="other", settled=1)
        for n in range(4):
            s.next("held")
        client.decisions(3), client.applied(3)
        s.end()
        s = self.sidecar.session()
        stated = s.next("attach")
        client.export("meanwhile", [2], 4)
        s.goes_on()
        self.assertEqual((list(stated.pins), list(stated.imports), stated.applied, stated.held), (["held"], ["in"], 3, 4))
        self.assertEqual(([d.n for d in stated.decisions], stated.model.weights_epoch, stated.draining), ([2, 3, 4], 4, True))
        self.assertEqual(s.next("fenced").n, 6)
        self.assertEqual(s.next("announce").label, "later")
        self.assertEqual(s.next("export").label, "meanwhile")
        self.until(client, lambda: client.away is None)
        s.say("imported", label="in", id={"group": "p", "instance": 3, "leader": 5, "n": 7})
        s.say("imported", label="in", id={"group": "p", "instance": 3, "leader": 5, "n": 7})
        s.say("failed", label="held", source_safe=True, error={"text": "of an announcement before"})
        s.say("failed", label="held", error={"text": "x"})
        got = self.poll(client, 2)
        self.assertEqual([(type(m), m.label) for m in got], [(baton.Imported, "in"), (baton.Failed, "held")])

    def test_what_is_applied_is_stated_without_contents(self):
        client, s, _ = self.attach()
        s.say("decision", n=1, kind=KIND.RESERVE, label="in", tokens=9, hashes=[8, 9], resume={"finished": True})
        s.next("held")
        client.decisions(1), client.applied(1)
        s.end()
        d = self.sidecar.session().settle().decisions[0]
        self.assertEqual((d.label, d.tokens, list(d.hashes), d.HasField("resume")), ("in", 0, [], False))

    def test_the_former_mover_has_exited(self):
        mover = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        coming = self.pool.submit(attach, self.kv, self.tmp.name, redial=(0.001, 0.01))
        s = self.sidecar.session()
        s.settle(incarnation=1, mover=mover.pid)
        client = coming.result(PATIENCE)
        self.addCleanup(client.close)
        waits = _session._exited

        def killed_when_waited_for(fd, timeout, stop=None):
            if stop is not None:
                mover.send_signal(signal.SIGKILL)
            return waits(fd, timeout, stop)

        with unittest.mock.patch.object(_session, "_exited", killed_when_waited_for):
            s.end()
            s = self.sidecar.session()
            s.next("attach")
            s.say("attached", incarnation=2, fd_key=9)
            s.next("buffers_ready")
        self.assertEqual(mover.poll(), -signal.SIGKILL)
        s.say("mover_started", pid=os.getpid())
        self.until(client, lambda: client.away is None)
        mover.stdin.close()

    def test_imports_without_a_sidecar(self):
        for policy in (baton.OnDown.FAIL, baton.OnDown.RECOMPUTE):
            client, s, _ = self.attach(on_down=policy, redial=(PATIENCE, PATIENCE))
            client.import_("due", MANIFEST, range(9), deadline=0.05 if policy == baton.OnDown.FAIL else PATIENCE)
            s.next("import_request")
            s.end()
            m, = self.poll(client, 1)
            self.assertEqual((m.label, type(m.error), m.source_safe), ("due", baton.PeerLost, False))
            client.import_("now", MANIFEST, range(9))
            m, = self.poll(client, 1)
            self.assertEqual((m.label, type(m.error), m.source_safe), ("now", baton.PeerLost, True))
            client.close()

    def test_what_ends_a_client(self):
        for names in (["handoff.relaunch"], ["handoff.engine"], ["handoff.model"]):
            client, s, _ = self.attach()
            s.say("through", n=1)
            s.end(names, "it is so")
            self.until(client, lambda: client.error is not None)
            self.assertEqual(client.error.names, tuple(names))
            self.assertIn(baton.Through(1), client.poll())
            with self.assertRaises(baton.SessionClosed):
                client.announce("x")
        client, s, _ = self.attach()
        s.say("decision", n=2, kind=KIND.FREE, label="x")  # a gap: another session brings it
        s = self.sidecar.session()
        s.settle()
        client.close(), client.close()
        self.assertIsInstance(client.error, baton.SessionClosed)

    def test_parts_and_labels(self):
        client, s, _ = self.attach()
        reach = baton.Reach(4, 4)
        client.export_part("p", 1, [1], 8, reach)
        with self.assertRaises(baton.EngineFault):
            client.export_part("p", 3, [1], 8, reach)
        client.export_part("p", 2, [2], 8, baton.Reach(8, 8))
        client.export("p", [1, 2], 8, parts=2)
        client.export_part("unknown", 2, [2], 8, reach)  # of one that has ended: dropped
        client.export("q", [1], 1)
        for label in ("p", "q", ""):
            with self.assertRaises(baton.EngineFault):
                client.export(label, [1], 1)
        self.assertEqual([s.next(k).label for k in ("export_part", "export_part", "export", "export")], ["p", "p", "p", "q"])
        s.say("decision", n=1, kind=KIND.FREE, label="q")
        s.next("held")
        client.decisions(1)
        with self.assertRaisesRegex(baton.EngineFault, "say applied"):
            client.export("q", [1], 1)
        client.applied(1)
        client.export("q", [1], 1)
        client.import_("i", MANIFEST, [1])
        client.import_("i", MANIFEST, [1])  # the same one is under way
        with self.assertRaises(baton.UnknownLabel):
            client.import_("i", baton.Manifest(MANIFEST.id, bytes(16), "l", 1, 1, 0, 4, baton.Resume()), [1])

    def test_parts_of_one_export_fit_together(self):
        client, s, _ = self.attach()
        half, all_ = baton.Reach(4, 4), baton.Reach(8, 8)
        part, closes = dict(label="p", part=2, blocks=[2], tokens=8, reach=all_), dict(label="p", blocks=[1, 2], tokens=8, parts=1)
        client.export_part("p", 1, [1], 8, half)
        for wrong, error in ((dict(blocks=[1]), baton.EngineFault), (dict(blocks=[]), baton.EngineFault), (dict(blocks=[2, 3]), baton.EngineFault),
                             (dict(reach=baton.Reach(0, 8, 1)), baton.EngineFault), (dict(reach=baton.Reach(9, 9)), baton.EngineFault),
                             (dict(reach=baton.Reach(4, 8)), baton.EngineFault), (dict(tokens=7, reach=baton.Reach(7, 7)), baton.WrongPosition),
                             (dict(weights_epoch=7), baton.WrongWeights), (dict(salt=baton.Salt(lora="l")), baton.EngineFault)):
            with self.assertRaises(error, msg=wrong):
                client.export_part(**{**part, **wrong})
        for wrong, error in ((dict(blocks=[2, 1]), baton.EngineFault), (dict(blocks=[]), baton.EngineFault), (dict(weights_epoch=7), baton.WrongWeights),
                             (dict(tokens=7), baton.WrongPosition), (dict(salt=baton.Salt(namespace="n")), baton.EngineFault)):
            with self.assertRaises(error, msg=wrong):
                client.export(**{**closes, **wrong})
        client.export_part(**part, salt=baton.Salt(media=bytes(32)))  # is none
        client.export(**{**closes, "parts": 2})
        self.assertEqual([(s.next(k).label) for k in ("export_part", "export_part", "export")], ["p"] * 3)

    def test_what_is_not_there_is_not_reserved(self):
        client, s, _ = self.attach()
        for blocks, cached, slot in (([8], 0, -1), ([-1], 0, -1), ([0, 0], 0, -1), ([0], 0, 0), ([0, 1], 5, -1), ([0, 1], -4, -1), ([0, 1], 12, -1)):
            with self.assertRaises(baton.Error, msg=(blocks, cached, slot)):
                client.reserved(1, blocks, bytes(32), cached=cached, slot=slot)
        client.reserved(1, numpy.array([7, 0]), bytes(32), cached=8)
        self.assertEqual(list(s.next("reserved").blocks), [7, 0])

    def test_what_rank_0_alone_asks_for(self):
        client, s, _ = self.attach(rank=1, ranks=2)
        with self.assertRaises(baton.WrongRole):
            client.import_("in", MANIFEST, range(9))

    def test_what_is_not_there_is_not_exported(self):
        client, s, _ = self.attach()
        for blocks, tokens, slot in (([8], 4, -1), ([-1], 4, -1), ([0, 0], 8, -1), ([0, 1], 4, -1), ([0], 8, -1), ([0], 4, 0)):
            with self.assertRaises(baton.EngineFault, msg=(blocks, tokens)):
                client.export("x", blocks, tokens, slot=slot)
        with self.assertRaises(baton.EngineFault):
            client.export_part("x", 1, [8], 4, baton.Reach(4, 4))
        for wrong in (dict(blocks=[0.5]), dict(blocks=3), dict(resume=baton.Resume(tokens=[-7])), dict(blocks=["0"]), dict(tokens="4"), dict(tokens=1.5), dict(resume=[7]),
                      dict(stream="s"), dict(label=3), dict(max_hold="1")):
            with self.assertRaises(baton.Error, msg=wrong):
                client.export(**{"label": "x", "blocks": [0], "tokens": 4, **wrong})
        for wrong in (dict(manifest=bytes(MANIFEST)), dict(tokens=3), dict(deadline="1"), dict(label=3)):
            with self.assertRaises(baton.Bound, msg=wrong):
                client.import_(**{"label": "x", "manifest": MANIFEST, "tokens": [1], **wrong})
        client.export("x", numpy.array([7, 0]), 5)  # the label is free still
        self.assertEqual(list(s.next("export").blocks), [7, 0])
        client.close()
        with self.assertRaises(baton.SessionClosed) as caught:
            client.announce("x")
        self.assertEqual(str(caught.exception).count("to do"), 1)

    def test_no_try_ends_the_thread(self):
        """What nobody foresaw is told by the first try, and later ones are followed by others."""
        lack = OSError(24, "too many open files")
        with unittest.mock.patch.object(_session.socket, "socket", side_effect=lack):
            with self.assertRaisesRegex(baton.PeerLost, "too many open files"):
                attach(self.kv, self.tmp.name, timeout=PATIENCE)
        client, s, _ = self.attach()
        with unittest.mock.patch.object(_session.socket, "socket", side_effect=lack):
            s.end()
            self.until(client, lambda: "too many open files" in str(client.away))
        self.sidecar.session().settle()
        self.until(client, lambda: client.away is None)

    def test_close_waits_for_no_answer(self):
        client, s, _ = self.attach()
        self.sidecar.answer = b""  # none
        with unittest.mock.patch.object(_driver, "_ATTACH_LIMIT", 100 * PATIENCE):
            s.end()
            s = self.sidecar.session()
            s.next("attach")
            s.say("attached", incarnation=1, fd_key=9)
            self.until(client, lambda: len(self.sidecar.files) == 2)
            self.pool.submit(client.close).result(PATIENCE)

    def test_descriptors_come_back(self):
        with unittest.mock.patch.object(_driver, "_close") as closed:
            coming = self.pool.submit(attach, self.kv, self.tmp.name, timeout=PATIENCE)
            self.sidecar.session().settle()
            client = coming.result(PATIENCE)
            wake = client.fileno()
            client.close()
            client.poll()  # works still
            closed.assert_not_called()
            del coming, client
            gc.collect()
        closed.assert_called_once()
        self.assertIn(wake, closed.call_args.args)

    def test_fences(self):
        class Stream:
            def record_event(self):
                self.passed = False
                return self

            def query(self):
                return self.passed

        client, s, _ = self.attach()
        one, two = Stream(), Stream()
        client.export("a", [1], 1, stream=one), client.export("b", [1], 1, stream=two)
        self.assertEqual([s.next("export").fence for _ in range(2)], [1, 2])
        two.passed = True
        client.poll(), client.freed()
        s.next("freed")  # the second does not pass before the first
        one.passed = True
        client.poll()
        self.assertEqual(s.next("fenced").n, 2)
        with self.assertRaises(baton.EngineFault):
            client.export("c", [1], 1, fence=9)


if __name__ == "__main__":
    unittest.main()
