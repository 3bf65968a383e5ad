"""GPU memory: what is passed of it, and what is refused. LD_LIBRARY_PATH names the stand-in for the
driver; the environment of a test is that of its process."""

import os
import subprocess
import sys
import textwrap
import unittest

import numpy

FAKE = os.environ.get("BATON_FAKE_CUDA") == "1"


def shard(address, gpu_index=0, tokens=4):
    import baton
    import gpu

    a = gpu.array(address, (1, 8, tokens, 2, 16), numpy.float32)
    return baton.Shard.of(gpu.Tensor(a, gpu_index), "attn.k", "layer block token unit elem")


@unittest.skipUnless(FAKE, "BATON_FAKE_CUDA is not set: no stand-in for the driver")
class GPU(unittest.TestCase):
    def place(self, *shards):
        from baton import _place

        return _place.place(shards)

    def test_allocations_are_passed_once(self):
        import gpu

        at = gpu.alloc(0, 1 << 20)
        placed, buffers = self.place(shard(at + 65536), shard(at), shard(gpu.alloc(0, 4096)))
        self.assertEqual([(p.buffer, p.off) for p in placed][:1], [(placed[1].buffer, 65536)])
        self.assertNotEqual(placed[0].buffer, placed[2].buffer)
        first = buffers[placed[1].buffer]
        self.assertEqual((first.address, first.off, first.nbytes, list(first.files)), (at, gpu.SKEW, 65536 + 4096, []))
        self.assertEqual((len(first.gpu.uuid), len(first.gpu.handle), len(first.gpu.chunks)), (16, 64, 0))

    def test_chunks(self):
        import gpu

        at = gpu.chunks(0, 65536)
        placed, (b,) = self.place(shard(at), shard(at + 4096, tokens=64))
        self.assertEqual((len(b.gpu.chunks), len(b.files), b.nbytes), (2, 2, 65536 + 4096))
        self.assertEqual([os.fstat(fd).st_size for fd in b.files], list(b.gpu.chunks))
        self.assertFalse(any(os.get_inheritable(fd) for fd in b.files))

    def test_refused(self):
        import baton
        import gpu

        at = gpu.alloc(1, 4096)
        for shards, why in (
            ((shard(at, 0),), "the driver says GPU 1"),
            ((shard(at, 1, tokens=1 << 14),), "leave their allocation"),
        ):
            with self.assertRaisesRegex(baton.CudaError, why):
                self.place(*shards)
        with self.assertRaisesRegex(baton.AttachRefused, "a rank has one"):
            self.place(shard(at, 1), shard(gpu.alloc(0, 4096), 0))

    def test_refused_by_the_driver(self):
        for env, why in (
            ({"FAKE_CUDA_POOL": "1"}, "backend:native"),
            ({"FAKE_CUDA_VERSION": "11000"}, "install a newer one"),
            ({"FAKE_CUDA_MISSING": "cuIpcGetMemHandle"}, "it has no cuIpcGetMemHandle"),
            ({"LD_LIBRARY_PATH": ""}, "install NVIDIA's driver"),
        ):
            code = """
                import baton, gpu, test_gpu
                from baton import _place
                try:
                    _place.place([test_gpu.shard(gpu.alloc(0, 4096))])
                except baton.CudaError as err:
                    print(err)
            """
            said = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **env}, capture_output=True, text=True)
            self.assertIn(why, said.stdout, (env, said.stderr))

    def test_calls_on_a_gpu(self):
        import baton
        import gpu
        from baton import _cuda

        before = []
        _cuda.load()
        _cuda.on_gpu(0, lambda d: before.append(d))
        with self.assertRaises(ValueError):  # an error of f is the caller's
            _cuda.on_gpu(0, lambda d: int("no"))
        self.assertIs(before[0], _cuda.load())
        with self.assertRaises(baton.CudaError):
            _cuda.on_gpu(99, lambda d: gpu.alloc(0, 1))


if __name__ == "__main__":
    unittest.main()
