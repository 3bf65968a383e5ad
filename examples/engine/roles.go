package engine

import (
	"errors"
	"fmt"

	"github.com/batonkv/baton/examples/engine/front"
	"github.com/batonkv/baton/examples/engine/life"
	"github.com/batonkv/baton/sidecar/handoff"
)

// Role is which side of a hand-off an engine takes. Whole requests are served in each.
type Role string

const (
	RoleBoth    Role = "both"
	RolePrefill Role = "prefill" // imports nothing
	RoleDecode  Role = "decode"  // exports nothing
)

// ErrSwitched: the rank left its sidecar for another role. Config.Role and Instance are new:
// attach what Attach states and Run again, in the same group.
var ErrSwitched = errors.New("engine: another role: attach again")

func (c Config) checkRole() error {
	switch c.Role {
	case "", RoleBoth, RolePrefill, RoleDecode:
	default:
		return fmt.Errorf("%w: role %.40q: want prefill, decode or both", ErrConfig, string(c.Role))
	}
	if c.NoPrefixCache && (c.Role == RolePrefill || c.Role == RoleDecode) {
		return fmt.Errorf("%w: --prefix-cache=false: role %s hands requests over, and both sides of a hand-off need the cache", ErrConfig, c.Role)
	}
	return nil
}

// Role is the one that the rank has, at any time.
func (r *Rank) Role() Role { return r.role.Load().(Role) }

// takes refuses what the other role does.
func (c Config) takes(m front.Mode) error {
	if c.Role == RolePrefill && (m == front.Import || m == front.Adopt) || c.Role == RoleDecode && m == front.Export {
		return fmt.Errorf("%w: mode %s at an engine whose role is %s", handoff.ErrRole, m, c.Role)
	}
	return nil
}

// turnOp ends the ranks' sessions, all in one step: they come back in another role, as
// another launch.
type turnOp struct {
	Role     Role
	Instance handoff.Instance
}

func (t *turnOp) check() error {
	if t == nil {
		return nil
	}
	if c := (Config{Role: t.Role}); t.Instance == 0 || t.Role == "" || c.checkRole() != nil {
		return fmt.Errorf("%w: turn to role %.40q, instance %d", ErrDiverged, string(t.Role), t.Instance)
	}
	return nil
}

// turn forgets the sidecar. Weights, memory and prefix cache stay: nobody else knows of
// anything in them, or the engine would not be quiet.
func (r *Rank) turn(t turnOp) error {
	if err := r.quiet(); err != nil {
		return fmt.Errorf("%w: role %s: %w", ErrDiverged, t.Role, err)
	}
	r.cfg.Role, r.cfg.Instance = t.Role, t.Instance
	r.role.Store(t.Role)
	r.session, r.applied, r.unpinned, r.away, r.down, r.news = nil, 0, nil, "", "", nil
	err := r.life.Close()
	r.life = life.Life{Dir: r.cfg.Profiles, Forget: r.pool.Forget}
	return errors.Join(ErrSwitched, err)
}
