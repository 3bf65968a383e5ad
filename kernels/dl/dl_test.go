package dl

import (
	"errors"
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	l, err := Open("libbaton-has-none.so.1", "libm.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != "libm.so.6" {
		t.Errorf("found %q", l.Name())
	}
	if at, err := l.Symbol("cos"); err != nil || at == 0 {
		t.Errorf("cos at %#x: %v", at, err)
	}
	if _, err := l.Symbol("cosinus"); !errors.Is(err, ErrSymbol) {
		t.Errorf("a symbol that is not there: %v", err)
	}
	if _, err := (Library{}).Symbol("cos"); !errors.Is(err, ErrSymbol) {
		t.Errorf("a symbol of no library: %v", err)
	}
}

// The reason names every file that was tried.
func TestMissing(t *testing.T) {
	_, err := Open("libbaton-a.so.1", "/nowhere/libbaton-b.so.1")
	if !errors.Is(err, ErrLibrary) || !strings.Contains(err.Error(), "libbaton-a") || !strings.Contains(err.Error(), "libbaton-b") {
		t.Errorf("Open: %v", err)
	}
}
