package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonkv/baton/internal/bounded"
)

// Times of the file backend: a record's file is touched while its process lives.
const (
	fileTouch = 3 * time.Second
	fileDead  = 10 * time.Second // untouched for so long: its process is gone
	fileLook  = 500 * time.Millisecond
)

// Files is a folder that Dynamo's processes share: a file for each record.
type Files struct{ dir string }

// OpenFiles is the folder that DYN_FILE_KV names; it is made when there is none.
func OpenFiles(dir string) (*Files, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w: folder %q: want an absolute path", ErrDown, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDown, err)
	}
	return &Files{dir}, nil
}

// Close implements Backend.
func (f *Files) Close() error { return nil }

// name is the file of a key: the bucket is a folder, the rest one name.
func (f *Files) name(key string) (string, error) {
	version, rest, _ := strings.Cut(key, "/")
	bucket, path, ok := strings.Cut(rest, "/")
	if version != "v1" || !ok || path == "" || word.FindString(bucket) == "" {
		return "", fmt.Errorf("%w: key %.100q", ErrName, key)
	}
	return filepath.Join(f.dir, version, bucket, percent(path, "")), nil
}

// Lease implements Backend.
func (f *Files) Lease(context.Context) (Lease, error) {
	l := &fileLease{files: f, stop: make(chan struct{}), lost: make(chan struct{}), held: map[string][]byte{}}
	l.over.Go(l.touch)
	return l, nil
}

type fileLease struct {
	files *Files
	stop  chan struct{}
	lost  chan struct{} // is never closed: nobody takes a file away from its lease
	over  sync.WaitGroup

	mu   sync.Mutex        // guards:
	held map[string][]byte // what was put, by the file's name
}

func (l *fileLease) Lost() <-chan struct{} { return l.lost }

// touch says that the process lives.
func (l *fileLease) touch() {
	t := time.NewTicker(fileTouch)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case now := <-t.C:
			l.mu.Lock()
			for name := range l.held {
				if l.ours(name) {
					_ = os.Chtimes(name, now, now) // a file that was removed is put again by the keeper
				}
			}
			l.mu.Unlock()
		}
	}
}

// Put writes beside the records, where no process looks for any, and links into place: a
// record is there whole or not at all, and replaces none.
func (l *fileLease) Put(_ context.Context, r Record) error {
	name, err := l.files.name(r.Key)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	if bytes.Equal(l.held[name], r.Value) && l.ours(name) {
		return nil
	}
	tmp, err := os.CreateTemp(l.files.dir, ".new-*")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	_, err = tmp.Write(r.Value)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Link(tmp.Name(), name)
	}
	if errors.Is(err, fs.ErrExist) {
		err = replace(tmp.Name(), name, r)
	}
	if gone := os.Remove(tmp.Name()); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if err != nil && !errors.Is(err, ErrTaken) {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	if err == nil {
		l.held[name] = slices.Clone(r.Value)
	}
	return err
}

// replace takes over a file of the same value, or of a process that is gone.
func replace(tmp, name string, r Record) error {
	old, err := bounded.File(name, MaxRecord)
	if err == nil && !bytes.Equal(old, r.Value) {
		if info, err := os.Stat(name); err != nil || time.Since(info.ModTime()) < fileDead {
			return fmt.Errorf("%w: %s: remove it if its process is gone", ErrTaken, name)
		}
	}
	return os.Rename(tmp, name)
}

func (l *fileLease) Delete(_ context.Context, key string) error {
	name, err := l.files.name(key)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remove(name)
}

// ours says that a file is as this lease put it, and not another's, who took it over while
// this process stood still.
func (l *fileLease) ours(name string) bool {
	value, put := l.held[name]
	if !put {
		return false
	}
	now, err := bounded.File(name, MaxRecord)
	return err == nil && bytes.Equal(now, value)
}

func (l *fileLease) remove(name string) error {
	ours := l.ours(name)
	delete(l.held, name)
	if !ours {
		return nil
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return nil
}

func (l *fileLease) End(context.Context) error {
	close(l.stop)
	l.over.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for name := range l.held {
		errs = append(errs, l.remove(name))
	}
	return errors.Join(errs...)
}

// Watch implements Backend. It looks at the folder every half second.
func (f *Files) Watch(ctx context.Context, prefix string) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		t := time.NewTicker(fileLook)
		defer t.Stop()
		var last Snapshot
		for first := true; ; first = false {
			s, err := f.list(prefix)
			if err != nil {
				yield(nil, err)
				return
			}
			if first || !slices.EqualFunc(s, last, func(a, b Record) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
				if last = s; !yield(s, nil) {
					return
				}
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// list reads the bucket of a prefix.
func (f *Files) list(prefix string) (Snapshot, error) {
	version, rest, _ := strings.Cut(prefix, "/")
	bucket, _, ok := strings.Cut(rest, "/")
	if version != "v1" || !ok || word.FindString(bucket) == "" {
		return nil, fmt.Errorf("%w: prefix %.100q: want a bucket, such as %s", ErrName, prefix, Instances)
	}
	dir := filepath.Join(f.dir, version, bucket)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDown, err)
	}
	var s Snapshot
	for _, e := range entries {
		path, err := url.PathUnescape(e.Name())
		key := version + "/" + bucket + "/" + path
		info, err2 := e.Info()
		if err != nil || err2 != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) > fileDead || !strings.HasPrefix(key, prefix) {
			continue
		}
		if b, err := bounded.File(filepath.Join(dir, e.Name()), MaxRecord); err == nil {
			s = append(s, Record{key, b})
		}
	}
	slices.SortFunc(s, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return s, nil
}
