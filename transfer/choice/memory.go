package choice

// Place is where the buffers of an engine are.
type Place uint8

// Places; buffers of both kinds are at their sum. 0: it is not known yet.
const (
	OnHost Place = 1 << iota
	OnGPU
)

// Memory is what is known of the memory of two ranks.
type Memory struct {
	Own, Peer Place
	// Unmapped is why the peer's could not be mapped, though it is on this host; empty before
	// that was tried.
	Unmapped string
}

// mapping is the transport that maps the peer's memory, or why none does.
func (m Memory) mapping() (transport, apart string) {
	own, peer := m.Own, m.Peer
	if own == 0 {
		own = peer
	}
	if peer == 0 {
		peer = own
	}
	switch {
	case own != peer:
		return "", "it is " + peer.words() + ", and this rank's " + own.words()
	case own&OnGPU != 0:
		return CUDAIPC, ""
	}
	return Shm, ""
}

func (p Place) words() string {
	switch p {
	case OnHost:
		return "in host memory"
	case OnGPU:
		return "on a GPU"
	}
	return "both on a GPU and in host memory"
}

// mapped is the choice of a transport that maps.
func mapped(transport string) Choice {
	if transport == CUDAIPC {
		return Choice{Transport: CUDAIPC, Code: Mapped, Why: "same host: GPU memory is mapped", Way: CopyEngine}
	}
	return Choice{Transport: Shm, Code: Mapped, Why: "same host: memory is mapped", Way: Copy}
}
