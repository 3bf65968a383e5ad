package choice

import "testing"

// Memory on GPUs is mapped between GPUs, and staged where one end has none.
func TestChooseByMemory(t *testing.T) {
	cuda := []string{"shm", "cudaipc", "nixl", "tcp"}
	gpu := Memory{Own: OnGPU, Peer: OnGPU}
	for _, c := range []choosing{
		{"GPUs of one host", end("a/0", "h", cuda...), end("b/0", "h", cuda...), gpu, "cudaipc mapped copy-engine", "same host: GPU memory is mapped"},
		{"a GPU, and nobody has heard of the peer's memory", end("a/0", "h", cuda...), end("b/0", "h", cuda...), Memory{Own: OnGPU}, "cudaipc mapped copy-engine", "same host: GPU memory is mapped"},
		{"both kinds at both", end("a/0", "h", cuda...), end("b/0", "h", cuda...), Memory{Own: OnGPU | OnHost, Peer: OnGPU | OnHost}, "cudaipc mapped copy-engine", "same host: GPU memory is mapped"},
		{"GPUs of two hosts", end("a/0", "h", cuda...), end("b/0", "g", "shm", "cudaipc", "tcp"), gpu, "tcp lacks tls", "other host: tcp, because nixl is not there on b/0: it does not name it"},
		{"from a GPU to the host", end("a/0", "h", cuda...), end("b/0", "h", cuda...), Memory{Own: OnHost, Peer: OnGPU}, "nixl mixed cma",
			"same host: nixl; its memory is not mapped: it is on a GPU, and this rank's in host memory"},
		{"from both to a GPU", end("a/0", "h", cuda...), end("b/0", "h", cuda...), Memory{Own: OnGPU, Peer: OnHost | OnGPU}, "nixl mixed cma",
			"same host: nixl; its memory is not mapped: it is both on a GPU and in host memory, and this rank's on a GPU"},
		{"from the host to a GPU without staging", end("a/0", "h", "cudaipc"), end("b/0", "h", "cudaipc"), Memory{Own: OnGPU, Peer: OnHost}, " none ",
			"same host: no transport: neither end names one; its memory is not mapped: it is in host memory, and this rank's on a GPU"},
		{"no access between GPUs", end("a/0", "h", cuda...), end("b/0", "h", cuda...), Memory{OnGPU, OnGPU, "no access between GPUs"}, "nixl unmapped cma",
			"same host: nixl; its memory is not mapped: no access between GPUs"},
		{"an older release at the peer", end("a/0", "h", cuda...), end("b/0", "h", "shm", "nixl", "tcp"), gpu, "nixl best cma",
			"same host: nixl; its memory is not mapped: cudaipc is not there on b/0: it does not name it"},
	} {
		c.check(t)
	}
}
