package machine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// withoutRow is what Step takes and Meets has no row for: it moves no half of the
// protocol, or what follows it has a row.
var withoutRow = map[string]string{
	"PeerUp":                  "a session moves nothing: Join and answers follow on it",
	"Found":                   "a view opens and ends sessions alone",
	"Meet":                    "a session moves nothing",
	"handoff.Attach":          "Mapped follows",
	"handoff.BuffersReady":    "Mapped follows",
	"handoff.Held":            "RankHeld follows",
	"handoff.Applied":         "RankApplied follows",
	"handoff.Freed":           "a Reserve follows",
	"handoff.WantGeometry":    "Geometry answers it",
	"handoff.Geometry":        "Open follows",
	"handoff.WantBuffers":     "Buffers answers it",
	"handoff.Buffers":         "Linked follows",
	"handoff.Roster":          "what a rank then states has rows at its leader",
	"handoff.SetWeightsEpoch": "a rank notes the number; Drop ends what it ends",
	"handoff.LifecycleAck":    "RankAcked follows",
	"handoff.Lifecycle":       "a rank notes whether its group drains; RankAcked follows",
}

// TestMeetsFollowsStep holds the rows of Meets against what Step dispatches, by the
// syntax of both: an event, message or decision that is new in one fails here until the
// other knows it.
func TestMeetsFollowsStep(t *testing.T) {
	own, msgs := parsed(t, "."), parsed(t, "../handoff")
	step := cases(own, 99, "Step", "fromEngine", "fromPeer", "betweenLeaders", "fromLeader", "fromRank", "pass")
	rows := cases(own, 1, "Meets", "meetsCall", "meetsEngine", "meetsPeer", "meetsLeader", "meetsRank", "meetsPacks")
	for _, f := range []string{"handoff.OK", "handoff.Pending"} { // of answers, not messages
		delete(rows, f)
	}
	for name := range step {
		why, none := withoutRow[name]
		switch {
		case !rows[name] && !none:
			t.Errorf("Step takes %s: give it a row in meets.go or meetings.go, or say in withoutRow why it has none", name)
		case rows[name] && none:
			t.Errorf("%s has a row, and withoutRow says %q", name, why)
		}
	}
	for name := range rows {
		if !step[name] {
			t.Errorf("Meets has a row for %s, which Step does not take", name)
		}
	}
	for name := range withoutRow {
		if !step[name] {
			t.Errorf("withoutRow names %s, which Step does not take", name)
		}
	}
	for _, name := range slices.Concat(marked(own, "event", ""), marked(msgs, "fromEngine", "handoff."), marked(msgs, "peerMessage", "handoff.")) {
		loops := slices.ContainsFunc([]string{"handoff.Staged", "handoff.Probe", "handoff.Link", "handoff.BlockEvents"}, func(p string) bool { return strings.HasPrefix(name, p) })
		if !step[name] && !loops { // sidecar/loop takes those
			t.Errorf("%s is declared, and Step has no case for it", name)
		}
	}
}

// TestMeetsKnowsEveryState: the states of halves are those that package handoff has, and
// those that launchState and pinState tell.
func TestMeetsKnowsEveryState(t *testing.T) {
	own, msgs := parsed(t, "."), parsed(t, "../handoff")
	for h, typ := range map[half]string{sourceHalf: "SourceState", destHalf: "DestState", leaderHalf: "LeaderState"} {
		want := append([]string{"absent"}, constants(msgs, typ)...)
		if h != sourceHalf { // the last one is absent from the machine; a source's answers stay
			want = want[:len(want)-1]
		}
		if got := halves[h].states; !slices.Equal(got, want) {
			t.Errorf("%s has the states %v, and handoff.%s has %v", halves[h].name, got, typ, want)
		}
	}
	for h, f := range map[half]string{pinHalf: "pinState", launchHalf: "launchState"} {
		if got, want := len(halves[h].states), results(own, f); got != want {
			t.Errorf("%s has %d states, and %s tells %d", halves[h].name, got, f, want)
		}
	}
}

// TestMeetsUsesEveryInput: an input without a row is a column that no simulation can fill.
func TestMeetsUsesEveryInput(t *testing.T) {
	used := map[string]bool{}
	for _, f := range parsed(t, ".") {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				ast.Inspect(fn, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						used[id.Name] = true
					}
					return true
				})
			}
		}
	}
	count := 0
	for _, in := range constants(parsed(t, "."), "input") {
		if strings.HasPrefix(in, "in") {
			count++
			if !used[in] {
				t.Errorf("no row has the input %s", in)
			}
		}
	}
	names := 0
	for _, h := range halves {
		names += len(h.inputs)
	}
	if names != count {
		t.Errorf("%d inputs have %d names", count, names)
	}
}

// parsed are the files of a package, without its tests.
func parsed(t *testing.T, dir string) (out []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %v", dir, err)
	}
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// each gives f the declarations of the functions named.
func each(files []*ast.File, names []string, f func(*ast.FuncDecl)) {
	for _, file := range files {
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && slices.Contains(names, fn.Name.Name) {
				f(fn)
			}
		}
	}
}

// cases are what functions name in cases of at most so many names, and in type assertions.
func cases(files []*ast.File, most int, funcs ...string) map[string]bool {
	out := map[string]bool{}
	add := func(e ast.Expr) {
		switch e := e.(type) {
		case *ast.Ident:
			out[e.Name] = true
		case *ast.SelectorExpr:
			if p, ok := e.X.(*ast.Ident); ok && p.Name == "handoff" {
				out["handoff."+e.Sel.Name] = true
			}
		}
	}
	each(files, funcs, func(fn *ast.FuncDecl) {
		ast.Inspect(fn, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CaseClause:
				if len(n.List) <= most {
					for _, e := range n.List {
						add(e)
					}
				}
			case *ast.TypeAssertExpr:
				if n.Type != nil {
					add(n.Type)
				}
			}
			return true
		})
	})
	return out
}

// marked are the types that have a method.
func marked(files []*ast.File, method, prefix string) (out []string) {
	each(files, []string{method}, func(fn *ast.FuncDecl) {
		if fn.Recv != nil {
			if id, ok := fn.Recv.List[0].Type.(*ast.Ident); ok {
				out = append(out, prefix+id.Name)
			}
		}
	})
	return out
}

// constants are the names of a type's constants in their order, with a small first letter.
func constants(files []*ast.File, typ string) (out []string) {
	for _, f := range files {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			in := false
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if v.Type != nil || v.Values != nil {
					id, ok := v.Type.(*ast.Ident)
					in = ok && id.Name == typ
				}
				for _, n := range v.Names {
					if in {
						out = append(out, strings.ToLower(n.Name[:1])+n.Name[1:])
					}
				}
			}
		}
	}
	return out
}

// results counts the different values that a function returns.
func results(files []*ast.File, name string) int {
	seen := map[string]bool{}
	each(files, []string{name}, func(fn *ast.FuncDecl) {
		ast.Inspect(fn, func(n ast.Node) bool {
			if r, ok := n.(*ast.ReturnStmt); ok {
				switch e := r.Results[0].(type) {
				case *ast.BasicLit:
					seen[e.Value] = true
				case *ast.Ident:
					seen[e.Name] = true
				}
			}
			return true
		})
	})
	return len(seen)
}
