package mover

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/batonkv/baton/transfer"
	"github.com/batonkv/baton/transfer/direct"
	"github.com/batonkv/baton/transfer/layout"
	"github.com/batonkv/baton/transfer/lower"
	"github.com/batonkv/baton/transfer/staged"
)

// The protocol of the socket pair: frames, little endian, each
//
//	u32 body bytes | u8 kind | u8 zero | u16 descriptors sent with this frame | u64 id | body
//
// The sidecar's id names a request, and the mover's one answer to it repeats it. Both
// ends are one binary of one version, so there is no negotiation. Bounds below hold
// for what is read, whoever wrote it.
const (
	headBytes    = 16
	maxBody      = 64 << 20 // bytes
	maxTemplate  = 16 << 20 // bytes
	maxBlocks    = 4 << 20  // entries of one block table
	maxText      = 4 << 10  // bytes of an error, and of a peer's name
	maxFrameFDs  = 200      // the kernel takes 253 a message
	maxTemplates = 16       // slots of one link
)

// kind is the kind of a frame.
type kind uint8

const (
	kindHello      kind = iota + 1 // mover: it serves
	kindFDs                        // descriptors of the next frame, which has too many
	kindConfig                     // sidecar, first: config
	kindRegister                   // region
	kindUnregister                 // u32 region
	kindOpen                       // u32 link, peer, regions
	kindCloseLink                  // u32 link
	kindTemplate                   // u32 link, u32 slot, template; no answer
	kindPull                       // u32 link, u32 slot, job
	kindCancel                     // id of a pull; no answer
	kindAnswer                     // mover: status, and the sums of kindSum
	kindSum                        // sums.Job
	// Of a wire mover:
	kindSetup    // sidecar, first: setup, and the arena's descriptor; answered with the port
	kindOffer    // staged.Exposed
	kindWithdraw // id of an offer; no answer
	kindFetch    // staged.Fetching
)

// errWire reports bytes that are no frame of this protocol: the two ends differ.
var errWire = errors.New("mover: bad frame")

var le = binary.LittleEndian

func appendHead(b []byte, k kind, id uint64, body, fds int) []byte {
	b = le.AppendUint32(b, uint32(body))
	b = append(b, byte(k), 0)
	b = le.AppendUint16(b, uint16(fds))
	return le.AppendUint64(b, id)
}

// frame is one message, as sent or as read. fds belong to whoever holds the frame.
type frame struct {
	kind kind
	id   uint64
	body []byte // read: valid until the next read
	fds  []int
}

func (f *frame) append(b []byte, fds int) []byte {
	return append(appendHead(b, f.kind, f.id, len(f.body), fds), f.body...)
}

// reader takes a body apart; the first shortage sticks.
type reader struct {
	b   []byte
	err error
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.err = errWire
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() uint8 {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

func (r *reader) text() string {
	n := r.u32()
	if n > maxText {
		r.err = errWire
		return ""
	}
	return string(r.bytes(int(n)))
}

// end is the error of the whole body, which must be used up.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%w: %d bytes too many", errWire, len(r.b))
	}
	return r.err
}

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	return append(le.AppendUint32(b, uint32(len(s))), s...)
}

// settings are what the sidecar tells its mover once.
type settings struct {
	maxOpen, workers uint32
	look             uint64 // nanoseconds
}

func (s settings) append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint32(b, s.maxOpen), s.workers), s.look)
}

func decodeSettings(b []byte) (settings, error) {
	r := reader{b: b}
	s := settings{r.u32(), r.u32(), r.u64()}
	return s, r.end()
}

// decodePeer reads the body of kindOpen and takes its descriptors out of fds; after
// an error the ones taken are in the peer.
func decodePeer(b []byte, fds *[]int) (link uint32, p transfer.Peer, err error) {
	r := reader{b: b}
	link = r.u32()
	p = transfer.Peer{ID: transfer.PeerID(r.text()), Regions: map[transfer.RegionID]transfer.Memory{}}
	n := r.u32()
	if n > direct.MaxRegions {
		return link, p, fmt.Errorf("%w: %d regions", errWire, n)
	}
	for range n {
		id, m := r.memory(fds)
		if _, twice := p.Regions[id]; twice {
			closeMemory(m)
			r.err = fmt.Errorf("%w: region %d twice", errWire, id)
		}
		if r.err != nil {
			break
		}
		p.Regions[id] = m
	}
	return link, p, r.end()
}

func appendJob(b []byte, j *lower.Job) []byte {
	b = append(b, j.Handoff[:]...)
	for _, v := range [...]uint32{j.Pair, uint32(j.SrcSlot), uint32(j.DstSlot), uint32(j.Tokens.Lo), uint32(j.Tokens.Hi),
		uint32(j.SrcFirst), uint32(j.DstFirst),
		uint32(len(j.SrcBlocks)), uint32(len(j.DstBlocks))} {
		b = le.AppendUint32(b, v)
	}
	for _, t := range [...][]int32{j.SrcBlocks, j.DstBlocks} {
		for _, v := range t {
			b = le.AppendUint32(b, uint32(v))
		}
	}
	return b
}

// job reads a job into j, whose tables it reuses.
func (r *reader) job(j *lower.Job) {
	copy(j.Handoff[:], r.bytes(len(j.Handoff)))
	j.Pair, j.SrcSlot, j.DstSlot = r.u32(), int32(r.u32()), int32(r.u32())
	j.Tokens = layout.Span{Lo: int32(r.u32()), Hi: int32(r.u32())}
	j.SrcFirst, j.DstFirst = int32(r.u32()), int32(r.u32())
	ns, nd := r.u32(), r.u32()
	if r.err == nil && (ns > maxBlocks || nd > maxBlocks) {
		r.err = fmt.Errorf("%w: block tables of %d and %d", errWire, ns, nd)
	}
	j.SrcBlocks = r.table(j.SrcBlocks[:0], ns)
	j.DstBlocks = r.table(j.DstBlocks[:0], nd)
}

func (r *reader) table(out []int32, n uint32) []int32 {
	b := r.bytes(4 * int(n))
	for ; len(b) >= 4; b = b[4:] {
		out = append(out, int32(le.Uint32(b)))
	}
	return out
}

// appendChunk is an offer, or what a fetch has in common with one.
func appendChunk(b []byte, offer uint64, chunk int32, bytes int64) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint64(b, offer), uint32(chunk)), uint64(bytes))
}

func (r *reader) exposed() staged.Exposed {
	return staged.Exposed{Offer: r.u64(), Chunk: int32(r.u32()), Bytes: int64(r.u64())}
}

func appendFetching(b []byte, f staged.Fetching) []byte {
	return appendText(le.AppendUint64(appendChunk(b, f.Offer, f.Chunk, f.Bytes), uint64(f.Of)), f.Addr)
}

func (r *reader) fetching() staged.Fetching {
	e := r.exposed()
	return staged.Fetching{Offer: e.Offer, Chunk: e.Chunk, Bytes: e.Bytes, Of: staged.Incarnation(r.u64()), Addr: r.text()}
}

// sentinels cross the border by their index, which is only ever appended to.
var sentinels = [...]error{
	transfer.ErrClosed, transfer.ErrBounds, transfer.ErrMemory, transfer.ErrPeer, transfer.ErrMover,
	transfer.ErrCanceled, transfer.ErrBusy, transfer.ErrConvert, transfer.ErrFull,
	lower.ErrJob, lower.ErrTemplate, lower.ErrPair,
	transfer.ErrLost,
}

// remote is an error of the other process: its words, and the sentinel behind them.
type remote struct {
	text string
	is   error // nil: none that this package knows
}

func (e *remote) Error() string { return e.text }
func (e *remote) Unwrap() error { return e.is }

// answer is the body of kindAnswer.
type answer struct {
	bytes int64
	err   error
	sums  []uint64
}

func (a answer) append(b []byte) []byte {
	b = le.AppendUint64(b, uint64(a.bytes))
	if a.err == nil {
		b = append(b, 0)
		for _, v := range a.sums {
			b = le.AppendUint64(b, v)
		}
		return b
	}
	err := a.err
	if op := (*transfer.OpError)(nil); errors.As(err, &op) {
		err = op.Err // the sidecar says which step failed
	}
	code := byte(255)
	for i, s := range sentinels {
		if errors.Is(err, s) {
			code = byte(i + 1)
			break
		}
	}
	return appendText(append(b, code), err.Error())
}

func decodeAnswer(b []byte) (answer, error) {
	r := reader{b: b}
	a := answer{bytes: int64(r.u64())}
	if code := r.u8(); code != 0 {
		e := &remote{text: r.text()}
		if int(code) <= len(sentinels) {
			e.is = sentinels[code-1]
		}
		a.err = e
	}
	if n := len(r.b) / 8; n > 0 && r.err == nil && a.err == nil {
		for a.sums = make([]uint64, 0, n); len(r.b) >= 8; {
			a.sums = append(a.sums, r.u64())
		}
	}
	return a, r.end()
}
