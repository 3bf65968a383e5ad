package wire

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// Control is what a request says of itself.
type Control struct {
	ID           string          `json:"id"`
	RequestType  string          `json:"request_type"`
	ResponseType string          `json:"response_type"`
	PayloadCodec string          `json:"payload_codec,omitempty"`
	Connection   Connection      `json:"connection_info"`
	Metadata     json.RawMessage `json:"metadata,omitempty"` // of the caller's context
}

// Connection says how the answer goes back. Info is a Home, in JSON.
type Connection struct {
	Transport string `json:"transport"`
	Info      string `json:"info"`
}

// Home is where the worker calls, and how it says for whom.
type Home struct {
	Address    string `json:"address"` // ip:port
	Subject    string `json:"subject"` // whoever shows it answers the call
	Context    string `json:"context"` // equal to Control.ID
	StreamType string `json:"stream_type"`
}

// What Control and Home say of an ordinary call.
const (
	SingleIn  = "single_in"
	ManyOut   = "many_out"
	TCPServer = "tcp_server"
	Response  = "response"
)

// maxWord bounds an id, a subject and an address.
const maxWord = 256

// NewControl is the control of an ordinary call.
func NewControl(id string, codec Codec, address, subject string) (Control, error) {
	info, err := JSON.Encode(Home{Address: address, Subject: subject, Context: id, StreamType: Response})
	return Control{ID: id, RequestType: SingleIn, ResponseType: ManyOut, PayloadCodec: codec.String(),
		Connection: Connection{Transport: TCPServer, Info: string(info)}}, err
}

// DecodeControl reads a Frame's Control and says whether the call can be answered. The
// address of Home is an ip:port.
func DecodeControl(b []byte) (c Control, h Home, codec Codec, err error) {
	if err = JSON.Decode(b, &c); err != nil {
		return c, h, 0, fmt.Errorf("control: %w", err)
	}
	if codec, err = ParseCodec(c.PayloadCodec); err != nil {
		return c, h, 0, err
	}
	if c.Connection.Transport != TCPServer {
		return c, h, 0, fmt.Errorf("%w: the answer goes by %.20q: only %s is known", ErrMalformed, c.Connection.Transport, TCPServer)
	}
	if err = JSON.Decode([]byte(c.Connection.Info), &h); err != nil {
		return c, h, 0, fmt.Errorf("connection_info.info: %w", err)
	}
	for _, f := range []struct{ name, value string }{{"id", c.ID}, {"subject", h.Subject}, {"address", h.Address}} {
		if f.value == "" || len(f.value) > maxWord {
			return c, h, 0, fmt.Errorf("%w: %s of %d bytes: want 1 to %d", ErrMalformed, f.name, len(f.value), maxWord)
		}
	}
	switch {
	case c.RequestType != SingleIn || c.ResponseType != ManyOut || h.StreamType != Response:
		err = fmt.Errorf("%w: a call %.20q, %.20q, answered by %.20q: only %s, %s, %s is served", ErrMalformed,
			c.RequestType, c.ResponseType, h.StreamType, SingleIn, ManyOut, Response)
	case h.Context != c.ID:
		err = fmt.Errorf("%w: context %.40q of a call with id %.40q", ErrMalformed, h.Context, c.ID)
	}
	if err == nil {
		if _, e := netip.ParseAddrPort(h.Address); e != nil {
			err = fmt.Errorf("%w: address: %w: want ip:port", ErrMalformed, e)
		}
	}
	return c, h, codec, err
}

// Handshake is the header of the first message on a call-home connection.
type Handshake struct {
	Subject    string `json:"subject"`
	StreamType string `json:"stream_type"`
}

// Prologue follows it. A worker that fails before its first item says so by Error; Dynamo's
// clients then call it no more for a while, so Baton never does.
type Prologue struct {
	Error *string         `json:"error"`
	Typed json.RawMessage `json:"typed_error,omitempty"`
}

// Headers of the other control messages: Sentinel ends a worker's answer; a client sends
// Stop when it wants no more of it, and Kill when it listens no more.
const (
	Sentinel = `"sentinel"`
	Stop     = `"stop"`
	Kill     = `"kill"`
)

// DecodeHandshake reads a handshake.
func DecodeHandshake(t TwoPart) (h Handshake, err error) {
	if err = JSON.Decode(t.Header, &h); err == nil && (h.Subject == "" || len(h.Subject) > maxWord || h.StreamType != Response || len(t.Body) > 0) {
		err = fmt.Errorf("%w: handshake with subject of %d bytes for %.20q", ErrMalformed, len(h.Subject), h.StreamType)
	}
	return h, err
}

// DecodePrologue reads a prologue.
func DecodePrologue(t TwoPart) (p Prologue, err error) {
	if err = JSON.Decode(t.Header, &p); err == nil && len(t.Body) > 0 {
		err = fmt.Errorf("%w: prologue with a body", ErrMalformed)
	}
	return p, err
}
