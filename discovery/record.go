package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/bits"
	"net"
	"strconv"
	"strings"
)

// Bounds of a record's fields; together they keep an encoded record within MaxRecord.
const (
	MaxRanks      = 1 << 16 // ranks of one group
	MaxHost       = 128     // bytes of Host
	MaxAddr       = 255     // bytes of Addr
	MaxGeometry   = 128     // bytes of Geometry
	MaxTransports = 16
	MaxTransport  = 32 // bytes of one transport's name
)

// Root is where all keys begin; the number is the version of the record.
const Root = "/baton/v1/"

// Key is where the record is kept: /baton/v1/<cluster>/<pool>/<group>/<rank>.
func (r Record) Key() string { return Root + r.Name() }

// Class rounds a count of blocks or slots down to a power of two, so that a
// record changes seldom; what is not positive is 0.
func Class(n int32) int32 {
	if n <= 0 {
		return 0
	}
	return 1 << (bits.Len32(uint32(n)) - 1)
}

// Check says which field of the record is wrong and what to do; the error is ErrRecord.
func (r Record) Check() error {
	for _, f := range []struct{ field, value string }{
		{"cluster", r.Cluster}, {"pool", r.Pool}, {"group", r.Group}, {"tenant", r.Tenant},
	} {
		if err := CheckName(f.field, f.value); err != nil {
			return err
		}
	}
	switch {
	case r.Rank < 0 || r.Rank >= MaxRanks:
		return bad("rank %d: want 0 to %d", r.Rank, MaxRanks-1)
	case r.Ranks < 0 || r.Ranks > MaxRanks:
		return bad("ranks %d: want 0 (no engine attached) to %d", r.Ranks, MaxRanks)
	case r.Ranks > 0 && r.Rank >= r.Ranks:
		return bad("rank %d: the group has ranks 0 to %d; start this sidecar with one of them", r.Rank, r.Ranks-1)
	case r.Incarnation == 0:
		return bad("incarnation 0: draw a random one at every start")
	case r.Role != Prefill && r.Role != Decode && r.Role != Both:
		return bad("role %q: want prefill, decode or both", clip(string(r.Role)))
	case r.Host == "" || len(r.Host) > MaxHost || !printable(r.Host):
		return bad("host %q: want 1 to %d printable bytes, equal on one host only", clip(r.Host), MaxHost)
	case r.PID <= 0:
		return bad("pid %d: want the sidecar's process id", r.PID)
	case r.CapacityBlocks != Class(r.CapacityBlocks):
		return bad("capacity_blocks %d: want 0 or a power of two; round down with Class", r.CapacityBlocks)
	case r.CapacitySlots != Class(r.CapacitySlots):
		return bad("capacity_slots %d: want 0 or a power of two; round down with Class", r.CapacitySlots)
	}
	if err := checkAddr(r.Addr); err != nil {
		return err
	}
	if err := checkGeometry(r.Geometry); err != nil {
		return err
	}
	return checkTransports(r.Transports)
}

func checkAddr(addr string) error {
	if len(addr) > MaxAddr {
		return bad("addr of %d bytes: want host:port of at most %d", len(addr), MaxAddr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return bad("addr %q: want host:port that peers can dial", clip(addr))
	}
	if host == "" || !printable(host) || strings.Contains(host, "/") {
		return bad("addr %q: the host is empty or not a name; want one that peers can dial", clip(addr))
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return bad("addr %q: peers cannot dial %s; advertise an address of this host", clip(addr), host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return bad("addr %q: want a port of 1 to 65535, the one that was bound", clip(addr))
	}
	return nil
}

func checkGeometry(digest string) error {
	if len(digest) > MaxGeometry || len(digest)%2 != 0 || strings.Trim(digest, "0123456789abcdef") != "" {
		return bad("geometry %q: want a digest in lower-case hex of at most %d digits, or none", clip(digest), MaxGeometry)
	}
	return nil
}

func checkTransports(names []string) error {
	if len(names) > MaxTransports {
		return bad("transports: %d names; want at most %d", len(names), MaxTransports)
	}
	for i, t := range names {
		if len(t) > MaxTransport || CheckName("transports", t) != nil {
			return bad("transports[%d] %q: want 1 to %d of a-z, 0-9 and -", i, clip(t), MaxTransport)
		}
	}
	return nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRecord, fmt.Sprintf(format, args...))
}

// clip keeps bytes from outside short in an error.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

func printable(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// wire is a record as JSON. The 64-bit numbers are decimal strings, which readers in
// every language keep whole. Fields are only ever added.
type wire struct {
	Cluster        string   `json:"cluster"`
	Pool           string   `json:"pool"`
	Group          string   `json:"group"`
	Rank           int32    `json:"rank"`
	Incarnation    uint64   `json:"incarnation,string"`
	Instance       uint64   `json:"instance,string"`
	Ranks          int32    `json:"ranks"`
	Role           Role     `json:"role"`
	Tenant         string   `json:"tenant"`
	Host           string   `json:"host"`
	PID            int32    `json:"pid"`
	Started        uint64   `json:"started,string"`
	PIDSpace       uint64   `json:"pid_space,string,omitempty"`
	Addr           string   `json:"addr"`
	Geometry       string   `json:"geometry,omitempty"`
	Transports     []string `json:"transports,omitempty"`
	CapacityBlocks int32    `json:"capacity_blocks"`
	CapacitySlots  int32    `json:"capacity_slots"`
	Draining       bool     `json:"draining,omitempty"`
}

// EncodeRecord checks r and gives its bytes, at most MaxRecord.
func EncodeRecord(r Record) ([]byte, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(wire(r)); err != nil {
		return nil, bad("encode: %v", err)
	}
	b := bytes.TrimRight(buf.Bytes(), "\n")
	if len(b) > MaxRecord {
		return nil, bad("%d bytes; want at most %d: shorten host, addr or transports", len(b), MaxRecord)
	}
	return b, nil
}

// DecodeRecord reads and checks what EncodeRecord wrote, of this version or a later
// one: fields that it does not know are passed over.
func DecodeRecord(b []byte) (Record, error) {
	if len(b) > MaxRecord {
		return Record{}, bad("%d bytes; want at most %d", len(b), MaxRecord)
	}
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return Record{}, bad("decode: %v", err)
	}
	r := Record(w)
	if err := r.Check(); err != nil {
		return Record{}, err
	}
	return r, nil
}

// DecodeAt is DecodeRecord of the bytes kept at key; a record that names another key
// is refused, so nobody registers as somebody else.
func DecodeAt(key string, b []byte) (Record, error) {
	r, err := DecodeRecord(b)
	if err != nil {
		return Record{}, err
	}
	if r.Key() != key {
		return Record{}, bad("it names %s and lies at %q", r.Key(), clip(key))
	}
	return r, nil
}
