package dynamo

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/proto/codec"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Carrier is the field of disaggregated_params that a manifest travels in, beside whatever
// else an engine puts there. Its name has the version.
const (
	Carrier = "baton.v1"
	family  = "baton."
)

// Params is a disaggregated_params object. Values are as they came.
type Params map[string]wire.Raw

// Carry puts m into params, a JSON object or nothing, and returns the object.
func Carry(params []byte, m handoff.Manifest) ([]byte, error) {
	p := Params{}
	if len(params) > 0 {
		if err := wire.JSON.Decode(params, &p); err != nil {
			return nil, fmt.Errorf("disaggregated_params: %w", err)
		}
	}
	if p == nil { // it was null
		p = Params{}
	}
	b, err := wire.JSON.Encode(FromManifest(m))
	if err != nil {
		return nil, err
	}
	p[Carrier] = b
	return json.Marshal(p)
}

// Carried is the manifest within params. Without one the request goes its normal way.
// handoff.ErrVersion: there is one of versions that are not known here, and the error says
// which; handoff.ErrBound: it is malformed.
func (p Params) Carried(c wire.Codec) (m handoff.Manifest, ok bool, err error) {
	b, ok := p[Carrier]
	if !ok {
		var others []string
		for k := range p {
			if strings.HasPrefix(k, family) {
				others = append(others, k)
			}
		}
		if slices.Sort(others); len(others) > 0 {
			return m, false, fmt.Errorf("%w: disaggregated_params has %s: only %s is known here: upgrade the older side",
				handoff.ErrVersion, strings.Join(others, ", "), Carrier)
		}
		return m, false, nil
	}
	var d Manifest
	if err = c.Decode(b, &d); err == nil {
		m, err = d.Manifest()
	} else {
		err = fmt.Errorf("%w: %s: %w", handoff.ErrBound, Carrier, err)
	}
	return m, err == nil, err
}

// ID names a hand-off. Numbers of 64 bits are decimal strings everywhere: JSON readers
// round what is above 2^53.
type ID struct {
	Group    string `json:"group"`
	Instance string `json:"instance"`
	Leader   string `json:"leader"`
	N        string `json:"n"`
}

// Manifest is a handoff.Manifest. Digests and the key are hex.
type Manifest struct {
	ID           ID     `json:"id"`
	Key          string `json:"key"`
	Label        string `json:"label"`
	Model        string `json:"model"`
	Geometry     string `json:"geometry"`
	Tokens       int32  `json:"tokens"`
	Position     int32  `json:"position"`
	WeightsEpoch string `json:"weights_epoch"`
	BlockTokens  int32  `json:"block_tokens"`
	Resume       Resume `json:"resume"`
}

// Resume is a handoff.Resume. Logprobs is base64 of float32, little endian: no codec on the
// way rounds it, or refuses an infinity. Sampler is base64.
type Resume struct {
	Tokens   []int32 `json:"tokens"`
	Logprobs string  `json:"logprobs,omitempty"`
	Sampler  string  `json:"sampler,omitempty"`
	Finished bool    `json:"finished"`
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// FromID writes an ID.
func FromID(id handoff.ID) ID {
	return ID{id.Group, decimal(uint64(id.Instance)), decimal(uint64(id.Leader)), decimal(id.N)}
}

// reader reads fields and keeps the first fault.
type reader struct{ err error }

func (r *reader) fault(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s: %s", handoff.ErrBound, field, fmt.Sprintf(format, args...))
	}
}

func (r *reader) number(field, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		r.fault(field, "%.40q: want a number of 64 bits, as a decimal string", s)
	}
	return n
}

func (r *reader) hex(field, s string, to []byte) {
	if n, err := hex.Decode(to, []byte(s)[:min(len(s), 2*len(to))]); err != nil || n != len(to) || len(s) != 2*len(to) {
		r.fault(field, "%d characters: want %d hex digits", len(s), 2*len(to))
	}
}

func (r *reader) bytes(field, s string, most int) []byte {
	if base64.StdEncoding.DecodedLen(len(s)) > most+3 {
		r.fault(field, "%d characters: want at most %d bytes in base64", len(s), most)
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		r.fault(field, "%v: want base64", err)
	}
	return b
}

func (r *reader) id(d ID) handoff.ID {
	return handoff.ID{Group: d.Group, Instance: handoff.Instance(r.number("id.instance", d.Instance)),
		Leader: handoff.Incarnation(r.number("id.leader", d.Leader)), N: r.number("id.n", d.N)}
}

// ID reads an ID: handoff.ErrBound when it is none.
func (d ID) ID() (handoff.ID, error) {
	var r reader
	id := r.id(d)
	if len(id.Group) > codec.MaxString {
		r.fault("id.group", "%d bytes, at most %d", len(id.Group), codec.MaxString)
	}
	return id, r.err
}

// FromManifest writes a manifest.
func FromManifest(m handoff.Manifest) Manifest {
	d := Manifest{ID: FromID(m.ID), Key: hex.EncodeToString(m.Key[:]), Label: m.Label, Model: hex.EncodeToString(m.Model[:]),
		Geometry: hex.EncodeToString(m.Geometry[:]), Tokens: m.Tokens, Position: m.Position, WeightsEpoch: decimal(m.WeightsEpoch),
		BlockTokens: m.BlockTokens, Resume: Resume{Tokens: m.Resume.Tokens, Finished: m.Resume.Finished}}
	if d.Resume.Tokens == nil {
		d.Resume.Tokens = []int32{}
	}
	var b []byte
	for _, f := range m.Resume.Logprobs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	d.Resume.Logprobs = base64.StdEncoding.EncodeToString(b)
	d.Resume.Sampler = base64.StdEncoding.EncodeToString(m.Resume.Sampler)
	return d
}

// Manifest reads a manifest: handoff.ErrBound when it is none.
func (d Manifest) Manifest() (handoff.Manifest, error) {
	var r reader
	m := handoff.Manifest{ID: r.id(d.ID), Label: d.Label, Tokens: d.Tokens, Position: d.Position,
		WeightsEpoch: r.number("weights_epoch", d.WeightsEpoch), BlockTokens: d.BlockTokens,
		Resume: handoff.Resume{Finished: d.Resume.Finished}}
	r.hex("key", d.Key, m.Key[:])
	r.hex("model", d.Model, m.Model[:])
	r.hex("geometry", d.Geometry, m.Geometry[:])
	if len(d.Resume.Tokens) > 0 {
		m.Resume.Tokens = d.Resume.Tokens
	}
	if b := r.bytes("resume.sampler", d.Resume.Sampler, codec.MaxSampler); len(b) > 0 {
		m.Resume.Sampler = b
	}
	b := r.bytes("resume.logprobs", d.Resume.Logprobs, 4*codec.MaxResume)
	if len(b)%4 != 0 {
		r.fault("resume.logprobs", "%d bytes: want four for each", len(b))
	}
	for ; len(b) >= 4; b = b[4:] {
		m.Resume.Logprobs = append(m.Resume.Logprobs, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	if r.err == nil {
		_, r.err = codec.ToManifest(m) // the bounds that every other door has
	}
	return m, r.err
}
