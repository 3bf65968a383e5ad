// Package openengine carries manifests in the messages of OpenEngine (openengine.v1), in
// which an engine names a request's state to whoever decodes it: a manifest is what
// KvSessionRef refers to, an export is what PrefillReady tells. docs/DYNAMO.md says which
// field holds what.
//
// It reads and writes those messages, and nothing of the others: whoever serves or calls
// OpenEngine puts the bytes where they belong. Fields that are not known are passed over.
package openengine

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/batonkv/baton/plugins/adapter/dynamo"
	"github.com/batonkv/baton/plugins/adapter/dynamo/wire"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Backend is the transfer_backend of sessions that Baton moves.
const Backend = "baton"

// Bounds of a session that is read, in bytes.
const (
	maxSession = 1 << 20
	maxWord    = 1 << 10
)

// Session is a KvSessionRef. Its endpoints are neither written nor read: peers are found in
// discovery, and no address of a request is dialled.
type Session struct {
	ID         string
	Backend    string
	Rank       uint32        // data parallel
	Attributes dynamo.Params // JSON
}

// FromManifest is the session of a hand-off; its id is for people and logs.
func FromManifest(m handoff.Manifest) (Session, error) {
	b, err := wire.JSON.Encode(dynamo.FromManifest(m))
	return Session{ID: m.ID.String(), Backend: Backend, Attributes: dynamo.Params{dynamo.Carrier: b}}, err
}

// Manifest is what s refers to. Without one, ok is false: another backend moves it, or the
// request is a whole one. handoff.ErrVersion: it is of another version; handoff.ErrBound: it
// is malformed, or not of this session.
func (s Session) Manifest() (m handoff.Manifest, ok bool, err error) {
	if s.Backend != Backend {
		return m, false, nil
	}
	if m, ok, err = s.Attributes.Carried(wire.JSON); err != nil {
		return m, false, err
	}
	switch {
	case !ok:
		err = fmt.Errorf("%w: attributes of session %.80q of backend %s: want %s", handoff.ErrBound, s.ID, Backend, dynamo.Carrier)
	case s.ID != m.ID.String():
		err = fmt.Errorf("%w: session %.80q carries the manifest of %v", handoff.ErrBound, s.ID, m.ID)
	case s.Rank != 0:
		err = fmt.Errorf("%w: session %.80q is of dp_rank %d: a replica is a group of its own, want 0", handoff.ErrBound, s.ID, s.Rank)
	}
	return m, err == nil, err
}

// Numbers of fields: of KvSessionRef, and of the one field of PrefillReady and KvOptions that
// holds one.
const (
	sessionID         = protowire.Number(1)
	sessionBackend    = protowire.Number(2)
	sessionRank       = protowire.Number(4)
	sessionAttributes = protowire.Number(5)
	holdsSession      = protowire.Number(1)
)

// AppendSession appends s as a KvSessionRef.
func AppendSession(b []byte, s Session) ([]byte, error) {
	object, err := json.Marshal(s.Attributes)
	if err != nil {
		return b, err
	}
	attributes := &structpb.Struct{}
	if err := attributes.UnmarshalJSON(object); err != nil {
		return b, fmt.Errorf("%w: attributes: %w", handoff.ErrBound, err)
	}
	packed, err := proto.MarshalOptions{Deterministic: true}.Marshal(attributes)
	if err != nil {
		return b, err
	}
	b = appendBytes(b, sessionID, []byte(s.ID))
	b = appendBytes(b, sessionBackend, []byte(s.Backend))
	if s.Rank != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, sessionRank, protowire.VarintType), uint64(s.Rank))
	}
	return appendBytes(b, sessionAttributes, packed), nil
}

// AppendReady appends the PrefillReady of s, which is also the KvOptions with which a decode
// request names it.
func AppendReady(b []byte, s Session) ([]byte, error) {
	ref, err := AppendSession(nil, s)
	if err != nil {
		return b, err
	}
	return appendBytes(b, holdsSession, ref), nil
}

// appendBytes appends a field; an empty one is absent.
func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// DecodeReady reads the session of a PrefillReady, or of KvOptions; ok is false when it has
// none.
func DecodeReady(b []byte) (s Session, ok bool, err error) {
	err = fields(b, func(n protowire.Number, v []byte, _ uint64) (err error) {
		if n == holdsSession && v != nil {
			s, err = DecodeSession(v)
			ok = true
		}
		return err
	})
	return s, ok && err == nil, err
}

// DecodeSession reads a KvSessionRef.
func DecodeSession(b []byte) (s Session, err error) {
	var attributes []byte
	err = fields(b, func(n protowire.Number, v []byte, word uint64) error {
		switch {
		case (n == sessionID || n == sessionBackend) && len(v) > maxWord:
			return fmt.Errorf("%w: field %d of a session: %d bytes, at most %d", handoff.ErrBound, n, len(v), maxWord)
		case n == sessionID:
			s.ID = string(v)
		case n == sessionBackend:
			s.Backend = string(v)
		case n == sessionRank:
			s.Rank = uint32(word)
		case n == sessionAttributes:
			attributes = v
		}
		return nil
	})
	if err != nil || s.Backend != Backend {
		return s, err // of what others move nothing else is read
	}
	object := &structpb.Struct{}
	if err = proto.Unmarshal(attributes, object); err == nil {
		attributes, err = object.MarshalJSON()
	}
	if err == nil {
		err = wire.JSON.Decode(attributes, &s.Attributes)
	}
	if err != nil {
		return s, fmt.Errorf("%w: attributes: %w", handoff.ErrBound, err)
	}
	return s, nil
}

// fields gives the fields of a message: v of one with bytes, word of one with a number.
func fields(b []byte, each func(n protowire.Number, v []byte, word uint64) error) error {
	if len(b) > maxSession {
		return fmt.Errorf("%w: session of %d bytes, at most %d", handoff.ErrBound, len(b), maxSession)
	}
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return fmt.Errorf("%w: session: %w", handoff.ErrBound, protowire.ParseError(size))
		}
		b = b[size:]
		var v []byte
		var word uint64
		switch kind {
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			word, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return fmt.Errorf("%w: field %d of a session: %w", handoff.ErrBound, n, protowire.ParseError(size))
		}
		if err := each(n, v, word); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}
