// Package errs keeps the identity of errors across gRPC: what was errors.Is on one
// side is errors.Is on the other, and the text stays.
//
// A status carries a detail with the names of all sentinels that an error wraps.
// What is in no table stays unknown and keeps its text. Only names that the table
// knows are believed, so a peer cannot invent a decision.
package errs

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/batonkv/baton/proto/common/v1"
)

const (
	maxNames = 16
	// maxText bounds the text of an error on both sides, in bytes: it travels in
	// an HTTP/2 header.
	maxText = 4 << 10
)

// remote is an error that another process said.
type remote struct {
	text string
	is   []error
}

func (e *remote) Error() string   { return e.text }
func (e *remote) Unwrap() []error { return e.is }

// Name is the name of the first sentinel of the table that err wraps, "" if none.
func Name(err error) string {
	for _, e := range table {
		if errors.Is(err, e.err) {
			return e.name
		}
	}
	return ""
}

// FromName is the inverse of Name and Error: an error with this text that is the
// named sentinel, or no sentinel when the name is unknown. Both empty: nil.
func FromName(name, text string) error {
	if name == "" && text == "" {
		return nil
	}
	return fromNames([]string{name}, text)
}

func fromNames(names []string, text string) error {
	e := &remote{text: clip(text)}
	for _, n := range names[:min(len(names), maxNames)] {
		if s, ok := byName[n]; ok {
			e.is = append(e.is, s)
		}
	}
	if e.text == "" && len(e.is) > 0 {
		e.text = e.is[0].Error()
	}
	if e.text == "" {
		e.text = "unknown error"
	}
	return e
}

// ToProto describes err, nil for nil.
func ToProto(err error) *commonv1.Error {
	if err == nil {
		return nil
	}
	d := &commonv1.Error{Text: clip(err.Error())}
	for _, e := range table {
		if errors.Is(err, e.err) && len(d.Names) < maxNames {
			d.Names = append(d.Names, e.name)
		}
	}
	return d
}

// FromProto is the inverse of ToProto.
func FromProto(d *commonv1.Error) error {
	if d == nil {
		return nil
	}
	return fromNames(d.GetNames(), d.GetText())
}

// ToStatus makes err a gRPC status error that FromStatus reads. nil stays nil. An
// error that is a status of gRPC already, and no sentinel, passes unchanged.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	d := ToProto(err)
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok && len(d.Names) == 0 {
		return err
	}
	code := codes.Unknown
	if len(d.Names) > 0 {
		code = codeOf(d.Names[0])
	}
	st, derr := status.New(code, d.Text).WithDetails(d)
	if derr != nil {
		return status.Error(code, d.Text)
	}
	return st.Err()
}

func codeOf(name string) codes.Code {
	for _, e := range table {
		if e.name == name {
			return e.code
		}
	}
	return codes.Unknown
}

// FromStatus reads what a gRPC call or stream returned. An error that did not come
// through ToStatus keeps its text and its gRPC status. nil stays nil.
func FromStatus(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, d := range st.Details() {
		if e, ok := d.(*commonv1.Error); ok {
			return FromProto(e)
		}
	}
	return err
}

// Spoken reports whether err carries the word of the other side: a call without
// it may have broken anywhere.
func Spoken(err error) bool {
	var r *remote
	return errors.As(err, &r)
}

// Ended is why the caller of a call that broke with err had enough, nil if it had not: the
// end of ctx, or its deadline, which gRPC and the other side may notice before ctx does.
func Ended(ctx context.Context, err error) error {
	if _, bounded := ctx.Deadline(); bounded && ctx.Err() == nil && status.Code(err) == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// clip makes s valid in a proto string and short.
func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
