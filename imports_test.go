package main

import (
	"bufio"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/batonkv/baton"

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	CgoFiles     []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
}

func packages(t *testing.T) []listed {
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,CgoFiles,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var ps []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	return ps
}

// table reads the import table of docs/ARCHITECTURE.md: package pattern → what it may
// import of ours and which foreign roots, as patterns. "/..." covers a tree.
func table(t *testing.T) (order []string, may map[string][]string) {
	f, err := os.Open("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	may = map[string][]string{}
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if strings.HasPrefix(line, "| package |") {
			in = true
			continue
		}
		if !in || !strings.HasPrefix(line, "| `") {
			in = in && strings.HasPrefix(line, "|")
			continue
		}
		cells := strings.Split(line, "|")
		name := strings.Trim(strings.TrimSpace(cells[1]), "`")
		order = append(order, name)
		may[name] = strings.FieldsFunc(cells[2], func(r rune) bool { return strings.ContainsRune(", `–", r) })
	}
	if len(order) == 0 {
		t.Fatal("docs/ARCHITECTURE.md has no import table")
	}
	return order, may
}

func match(pattern, p string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == tree || strings.HasPrefix(p, tree+"/")
	}
	return pattern == p
}

// TestImports holds the code against the table: what is not written there may not be imported.
func TestImports(t *testing.T) {
	order, may := table(t)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if name == "" {
			name = "main"
		}
		i := slices.IndexFunc(order, func(pat string) bool { return match(pat, name) })
		if i < 0 {
			t.Errorf("%s: not in the import table of docs/ARCHITECTURE.md", name)
			continue
		}
		for _, imp := range p.Imports {
			own, ours := strings.CutPrefix(imp, module+"/")
			root, _, _ := strings.Cut(imp, "/")
			if !ours && !strings.Contains(root, ".") {
				continue // standard library, and "C"
			}
			if !ours {
				own = imp
			}
			if !slices.ContainsFunc(may[order[i]], func(pat string) bool { return match(pat, own) }) {
				t.Errorf("%s imports %s: the table's line `%s` does not allow it", name, own, order[i])
			}
		}
	}
}

// pure packages keep no clock, start nothing and reach nothing outside.
var pure = []string{"transfer/layout/...", "transfer/reshard", "transfer/lower", "transfer/sums", "transfer/planview", "transfer/choice", "transfer/staged", "transfer/staged/pack", "sidecar/handoff",
	"sidecar/machine", "sidecar/engine/blockhash", "sidecar/blocks", "sidecar/events", "transfer", "plugins/adapter/session", "examples/engine/sample",
	"examples/engine/admission", "examples/engine/paged", "examples/engine/safetensors"}

var impure = []string{"net", "net/http", "os", "os/exec", "sync", "sync/atomic", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "unsafe"}

var clocks = []string{"Now", "Since", "Until", "Sleep", "NewTimer", "NewTicker", "After", "AfterFunc", "Tick"}

func TestPurePackages(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if !slices.ContainsFunc(pure, func(pat string) bool { return match(pat, name) }) {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(impure, imp) {
				t.Errorf("%s imports %s, but is pure", name, imp)
			}
		}
		eachFile(t, p, func(fs *token.FileSet, f *ast.File) {
			if strings.HasSuffix(fs.Position(f.Pos()).Filename, "_test.go") {
				return
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%v: a goroutine in a pure package", fs.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
						t.Errorf("%v: time.%s in a pure package", fs.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		})
	}
}

func TestCgoStaysInKernels(t *testing.T) {
	allowed := []string{"kernels/...", "transfer/staged/nixl", "transfer/staged/nccl"}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if len(p.CgoFiles) > 0 && !slices.ContainsFunc(allowed, func(pat string) bool { return match(pat, name) }) {
			t.Errorf("%s uses cgo", name)
		}
	}
}

const (
	maxLines     = 400
	maxFuncLines = 60
)

// TestSizes keeps files and functions readable.
func TestSizes(t *testing.T) {
	for _, p := range packages(t) {
		eachFile(t, p, func(fs *token.FileSet, f *ast.File) {
			file := fs.Position(f.Pos()).Filename
			if strings.HasSuffix(file, ".pb.go") {
				return
			}
			if n := fs.Position(f.End()).Line; n > maxLines {
				t.Errorf("%s: %d lines, at most %d: split by idea", rel(p, file), n, maxLines)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok {
					if n := fs.Position(fn.End()).Line - fs.Position(fn.Pos()).Line + 1; n > maxFuncLines {
						t.Errorf("%s: func %s has %d lines, at most %d", rel(p, file), fn.Name.Name, n, maxFuncLines)
					}
				}
			}
		})
	}
}

func rel(p listed, file string) string {
	return path.Join(strings.TrimPrefix(p.ImportPath, module+"/"), filepath.Base(file))
}

// eachFile parses every Go file of p's folder, tests included.
func eachFile(t *testing.T, p listed, f func(*token.FileSet, *ast.File)) {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		fs := token.NewFileSet()
		file, err := parser.ParseFile(fs, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(strconv.Quote(name), err)
		}
		f(fs, file)
	}
}
