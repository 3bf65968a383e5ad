package bounded

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := File(path, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for text, good := range map[string]bool{"": true, "four": true, "fives": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := File(path, 4)
		if (err == nil) != good || good && string(b) != text || !good && b != nil {
			t.Errorf("%q: %q, %v", text, b, err)
		}
	}
}
