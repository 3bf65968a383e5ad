package errs

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonkv/baton/proto/pump"
	"github.com/batonkv/baton/sidecar/handoff"
	"github.com/batonkv/baton/transfer"
)

func TestEverySentinelKeepsItsIdentity(t *testing.T) {
	for _, e := range table {
		for name, err := range map[string]error{
			"bare":    e.err,
			"wrapped": fmt.Errorf("rank 3: %w: pool of 12 blocks", e.err),
			"twice":   fmt.Errorf("import r7: %w", fmt.Errorf("rank 3: %w", e.err)),
			"joined":  errors.Join(errors.New("first"), e.err),
			"op":      &transfer.OpError{Backend: "direct", Op: "pull", Peer: "p/0@1", Err: e.err},
		} {
			t.Run(e.name+"/"+name, func(t *testing.T) {
				over := FromStatus(ToStatus(err))
				if !errors.Is(over, e.err) || over.Error() != err.Error() {
					t.Errorf("over a status: %v, is %v", over, errors.Is(over, e.err))
				}
				if status.Code(ToStatus(err)) != e.code {
					t.Errorf("code %v, want %v", status.Code(ToStatus(err)), e.code)
				}
				named := FromName(Name(err), err.Error())
				if Name(err) != e.name || !errors.Is(named, e.err) || named.Error() != err.Error() {
					t.Errorf("by name %q: %v", Name(err), named)
				}
				for _, other := range table {
					if other.err != e.err && errors.Is(over, other.err) {
						t.Errorf("became %s as well", other.name)
					}
				}
			})
		}
	}
}

func TestTwoSentinelsBothArrive(t *testing.T) {
	err := FromStatus(ToStatus(fmt.Errorf("%w: %w", handoff.ErrTransfer, transfer.ErrMover)))
	if !errors.Is(err, handoff.ErrTransfer) || !errors.Is(err, transfer.ErrMover) {
		t.Fatalf("%v lost a sentinel", err)
	}
}

func TestUnknownStaysUnknown(t *testing.T) {
	err := FromStatus(ToStatus(errors.New("disk on fire")))
	if err.Error() != "disk on fire" || Name(err) != "" {
		t.Fatalf("got %v, name %q", err, Name(err))
	}
	plain := status.Error(codes.Unavailable, "connection refused")
	if got := FromStatus(plain); got != plain || Spoken(got) {
		t.Fatalf("a status of gRPC itself became %v", got)
	}
	if got := FromName("no.such", "text"); got.Error() != "text" || Name(got) != "" {
		t.Fatalf("unknown name: %v", got)
	}
	if FromName("", "") != nil || ToStatus(nil) != nil || FromStatus(nil) != nil || ToProto(nil) != nil {
		t.Fatal("nil did not stay nil")
	}
}

func TestTextIsBoundedAndUTF8(t *testing.T) {
	err := FromStatus(ToStatus(fmt.Errorf("%w: \xff%s", context.Canceled, strings.Repeat("x", 3*maxText))))
	if !errors.Is(err, context.Canceled) || len(err.Error()) > maxText+3 {
		t.Fatalf("%d bytes, is canceled: %v", len(err.Error()), errors.Is(err, context.Canceled))
	}
}

// TestTableIsComplete reads the sources: a sentinel that is not in the table would
// lose its identity at the first hop.
func TestTableIsComplete(t *testing.T) {
	dirs := map[string]string{
		"handoff": "sidecar/handoff", "transfer": "transfer", "reshard": "transfer/reshard",
		"lower": "transfer/lower", "layout": "transfer/layout", "discovery": "discovery", "choice": "transfer/choice", "session": "proto/pump",
	}
	want := 2 // of package context
	for pkg, dir := range dirs {
		for _, text := range sentinels(t, filepath.Join("..", "..", dir)) {
			want++
			found := false
			for _, e := range table {
				found = found || (e.err.Error() == text && strings.HasPrefix(e.name, pkg+"."))
			}
			if !found {
				t.Errorf("%s: sentinel %q is not in the table", dir, text)
			}
		}
	}
	if want != len(table) {
		t.Errorf("table has %d entries, the sources %d", len(table), want)
	}
	if len(byName) != len(table) {
		t.Errorf("%d names for %d entries", len(byName), len(table))
	}
	_ = pump.ErrFull
}

func TestEnded(t *testing.T) {
	bounded, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	over, end := context.WithCancel(context.Background())
	end()
	late := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want error
	}{
		"the other side's clock is first": {bounded, late, context.DeadlineExceeded},
		"a deadline of somebody else":     {context.Background(), late, nil},
		"the caller cancelled":            {over, status.Error(codes.Canceled, "context canceled"), context.Canceled},
		"the connection broke":            {bounded, status.Error(codes.Unavailable, "reset"), nil},
	} {
		if got := Ended(c.ctx, c.err); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// sentinels lists the texts of exported package variables made by errors.New.
func sentinels(t *testing.T, dir string) (texts []string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no sources: %v", dir, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, id := range v.Names {
					if !id.IsExported() || i >= len(v.Values) {
						continue
					}
					call, ok := v.Values[i].(*ast.CallExpr)
					if !ok || len(call.Args) != 1 {
						continue
					}
					if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "New" {
						texts = append(texts, strings.Trim(call.Args[0].(*ast.BasicLit).Value, `"`))
					}
				}
			}
		}
	}
	return texts
}
