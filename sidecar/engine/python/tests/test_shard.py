"""Shards of arrays and tensors: boxes, strides, and what is refused."""

import unittest

import numpy

import baton


def zeros(*shape, dtype=numpy.float32):
    return numpy.zeros(shape, dtype)


class OfArrays(unittest.TestCase):
    def test_cache_of_planes(self):
        kv = zeros(2, 3, 8, 4, 2, 16)  # [2, L, B, T, H, d]
        s = baton.Shard.of(kv[1], "attn.v", "layer block token unit elem", layer=5, unit=2)
        self.assertEqual((s.layers, s.units, s.items, s.rows, s.elems), ((5, 8), (2, 4), 8, 4, 16))
        self.assertEqual((s.layer_stride, s.item_stride, s.row_stride, s.unit_stride, s.elem_stride), (4 * 8 * 4 * 2 * 16, 512, 128, 64, 4))
        self.assertEqual((s.dtype, s.device, s.nbytes), (baton.DType.F32, None, kv[1].nbytes))
        self.assertEqual(s.address, kv.__array_interface__["data"][0] + kv[1].nbytes)

    def test_heads_first_and_left_out(self):
        s = baton.Shard.of(zeros(8, 2, 4, 16).astype(numpy.float16), "attn.k", "block unit token elem")
        self.assertEqual((s.layers, s.row_stride, s.unit_stride), ((0, 1), 32, 128))
        s = baton.Shard.of(zeros(3, 8, 4, 16), "attn.latent", "layer block token elem")
        self.assertEqual(s.units, (0, 1))

    def test_columns_and_slices(self):
        conv = zeros(2, 4, 10, 6)  # [L, S, channels, k], of which 4 to 9 are 2 heads of 3
        band = conv[:, :, 4:].reshape(2, 4, 2, 3, 6)
        s = baton.Shard.of(band, "conv.x", "layer slot unit elem column")
        self.assertEqual((s.unit_stride, s.elem_stride, s.row_stride, s.rows, s.elems), (72, 24, 4, 6, 3))
        self.assertEqual(s.address, conv.__array_interface__["data"][0] + 4 * 24)

    def test_words_that_come_twice(self):
        ssm = zeros(2, 4, 3, 5, 7)
        s = baton.Shard.of(ssm, "ssm", "layer slot unit elem elem")
        self.assertEqual((s.elems, s.elem_stride, s.unit_stride), (35, 4, 140))
        s = baton.Shard.of(zeros(4, 5, 1), "ssm", "slot elem elem")
        self.assertEqual((s.elems, s.elem_stride), (5, 4))
        for bad, dims in ((ssm[..., :6], "layer slot unit elem elem"), (ssm, "elem slot unit elem layer")):
            with self.assertRaises(baton.LayoutError):
                baton.Shard.of(bad, "ssm", dims)

    def test_refused(self):
        for tensor, dims, more in (
            (zeros(2, 2), "layer block token", {}),
            (zeros(2, 2), "layer bloc", {}),
            (zeros(2, 2)[::-1], "layer block", {}),
            (zeros(0, 2), "layer block", {}),
            (numpy.zeros((2, 2), numpy.float64), "layer block", {}),
            (zeros(2, 2), "layer block", {"dtype": baton.DType.BF16}),
            ([1, 2], "layer", {}),
        ):
            with self.assertRaises(baton.LayoutError):
                baton.Shard.of(tensor, "attn.k", dims, **more)


class Memory(unittest.TestCase):
    def test_views_keep_it(self):
        kv = baton.shm(4096).numpy((2, 2, 2, 4), numpy.float32, 64)
        kv[:] = 3
        m = baton.memory.holding(kv.__array_interface__["data"][0], kv.nbytes)
        self.assertEqual(m.memory[64:68].tobytes(), numpy.float32(3).tobytes())
        for shape, offset in (((1025,), 0), ((1,), 4096), ((1,), -4)):
            with self.assertRaises(ValueError):
                m.numpy(shape, numpy.float32, offset)

    def test_it_cannot_shrink(self):
        import os

        with self.assertRaises(PermissionError):
            os.ftruncate(baton.shm(4096).fd, 1)
        with self.assertRaises(ValueError):
            baton.shm(0)

    def test_what_is_elsewhere_is_refused(self):
        with self.assertRaises(baton.AttachRefused) as caught:
            attach(zeros(1, 8, 4, 2, 16))
        self.assertIn("baton.shm", str(caught.exception))


def attach(kv, run_dir="/nowhere", **changed):
    """Attaches a rank of one state of 2 units of 16 elements in 1 layer."""
    model = baton.Model("m", [baton.State("attn.k", layers=1, units=2, elems=16)])
    said = dict(group="g", instance=1, model=model, shards=[baton.Shard.of(kv, "attn.k", "layer block token unit elem")],
                capacity=baton.Capacity(blocks=8, block_tokens=4), timeout=10)
    return baton.attach(run_dir, **{**said, **changed})


class Attach(unittest.TestCase):
    def test_refused_before_anything_is_opened(self):
        kv = baton.shm(4096).numpy((1, 8, 4, 2, 16), numpy.float32)
        other = baton.Model("m", [baton.State("attn.v", layers=1, units=2, elems=16)])
        narrow = baton.Model("m", [baton.State("attn.k", layers=1, units=2, elems=8)])
        fewer = baton.Model("m", [baton.State("attn.k", layers=1, units=1, elems=16)])
        recurrent = baton.Model("m", [baton.State("attn.k", 1, 2, 16, baton.Paging.REQUEST)])
        for kind, changed in (
            (baton.AttachRefused, {"group": ""}),
            (baton.AttachRefused, {"instance": 0}),
            (baton.AttachRefused, {"rank": 1}),
            (baton.AttachRefused, {"shards": []}),
            (baton.AttachRefused, {"redial": (2.0, 1.0)}),
            (baton.LayoutError, {"model": other}),
            (baton.LayoutError, {"model": narrow}),
            (baton.LayoutError, {"model": fewer}),
            (baton.AttachRefused, {"instance": "1"}),
            (baton.AttachRefused, {"model": "m"}),
            (baton.AttachRefused, {"model": baton.Model("m", ["attn.k"])}),
            (baton.AttachRefused, {"shards": [kv]}),
            (baton.AttachRefused, {"shards": baton.Shard.of(kv, "attn.k", "layer block token unit elem")}),
            (baton.AttachRefused, {"capacity": (8, 4)}),
            (baton.AttachRefused, {"capacity": baton.Capacity(blocks=9, block_tokens=4)}),
            (baton.AttachRefused, {"capacity": baton.Capacity(blocks=0, block_tokens=4)}),
            (baton.AttachRefused, {"capacity": baton.Capacity(blocks=8, block_tokens=8)}),
            (baton.AttachRefused, {"capacity": baton.Capacity(blocks=8)}),
            (baton.AttachRefused, {"capacity": baton.Capacity(blocks=8, block_tokens=4), "model": recurrent}),
            (baton.AttachRefused, {"capacity": baton.Capacity(block_tokens=4, slots=9), "model": recurrent}),
            (baton.AttachRefused, {"capacity": baton.Capacity(blocks=8, block_tokens=4, slots=4)}),
            (baton.AttachRefused, {"run_dir": "relative"}),
            (baton.AttachRefused, {"run_dir": "/" + "long" * 30}),
            (baton.PeerLost, {}),
        ):
            with self.assertRaises(kind, msg=changed):
                attach(kv, **changed)


if __name__ == "__main__":
    unittest.main()
