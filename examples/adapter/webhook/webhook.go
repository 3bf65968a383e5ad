// Package webhook is a sample adapter, to be read and copied. It keeps what a group holds
// and runs in a file, and posts the same to a URL: two control planes in one page.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/batonkv/baton/plugins/adapter"
	"github.com/batonkv/baton/sidecar/control"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Adapter speaks for one group. A new one is made for each life.
type Adapter struct {
	cfg struct {
		File string `yaml:"file"` // absolute path; replaced whole at each change
		URL  string `yaml:"url"`  // gets a POST for each call; may be empty
	}
	state adapter.State
}

// Event is what the file holds and the URL gets, as JSON.
type Event struct {
	Kind     string            `json:"kind"` // sync: forget what you knew; update; drain: the group goes
	Group    string            `json:"group"`
	Ready    bool              `json:"ready"`
	Draining bool              `json:"draining"`
	Handoffs map[string]string `json:"handoffs"` // phase by id
	Notices  []Notice          `json:"notices,omitempty"`
}

// Notice is one thing that happened.
type Notice struct {
	Kind, ID, Label, Error string
}

// Register says who this is, and what it wants to hear beside the state.
func (a *Adapter) Register(context.Context) (adapter.Info, error) {
	return adapter.Info{Name: "webhook", Version: "1", Wants: []control.Kind{control.Exported, control.Over, control.Imported, control.Failed}}, nil
}

// Configure takes the section and refuses what cannot work, with the reason.
func (a *Adapter) Configure(_ context.Context, section []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(section))
	d.KnownFields(true)
	if err := d.Decode(&a.cfg); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", handoff.ErrSection, err)
	}
	if !filepath.IsAbs(a.cfg.File) {
		return fmt.Errorf("%w: file: %q: want an absolute path", handoff.ErrSection, a.cfg.File)
	}
	if u, err := url.Parse(a.cfg.URL); err != nil || a.cfg.URL != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return fmt.Errorf("%w: url: %q: want http://… or https://…", handoff.ErrSection, a.cfg.URL)
	}
	return nil
}

// Sync begins with the whole state.
func (a *Adapter) Sync(ctx context.Context, s adapter.State) error {
	return a.tell(ctx, "sync", s, nil)
}

// Notify goes on from there; an Update that brings the whole state is applied like any other.
func (a *Adapter) Notify(ctx context.Context, u adapter.Update) error {
	return a.tell(ctx, "update", a.state.Apply(u), u.Notices)
}

// Drain says good-bye.
func (a *Adapter) Drain(ctx context.Context) error { return a.tell(ctx, "drain", a.state, nil) }

// tell brings file and URL up to date. Whatever fails here ends this life, and the next
// one begins with a sync: there is nothing to repair.
func (a *Adapter) tell(ctx context.Context, kind string, s adapter.State, notices []control.Notice) error {
	a.state = s
	e := Event{Kind: kind, Group: s.Group.Name, Ready: s.Group.Status.Ready, Draining: s.Group.Status.Draining, Handoffs: map[string]string{}}
	for _, i := range s.Handoffs {
		e.Handoffs[i.ID.String()] = i.Phase.String()
	}
	for _, n := range notices {
		line := Notice{Kind: n.Kind.String(), ID: n.ID.String(), Label: n.Label}
		if n.Err != nil {
			line.Error = n.Err.Error()
		}
		e.Notices = append(e.Notices, line)
	}
	b, err := json.Marshal(e)
	if err = errors.Join(err, os.WriteFile(a.cfg.File+".new", b, 0o600)); err == nil {
		err = os.Rename(a.cfg.File+".new", a.cfg.File)
	}
	if err != nil || a.cfg.URL == "" {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.cfg.URL, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if err = resp.Body.Close(); resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s answers %s", a.cfg.URL, resp.Status)
	}
	return err
}
