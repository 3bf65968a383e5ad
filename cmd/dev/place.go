package dev

import (
	"os/exec"

	"github.com/batonkv/baton/lifeline"
)

// Place is a host, or what stands for one, that shares the files of this one.
type Place interface {
	// Addr is the address that its processes listen at.
	Addr() string
	// Host is its host id; "": its kernel's.
	Host() string
	Start(cmd *exec.Cmd) (*lifeline.Child, error)
	// PID is this process's number of the process that has the number inner there.
	PID(inner int) int
}

// place is where a group's processes run; nil: here.
func (c *Cluster) place(g Group) Place {
	if c.opt.Place == nil {
		return nil
	}
	return c.opt.Place(g)
}

// here makes numbers of processes, as a group's own tell them, those of this process.
func (c *Cluster) here(g Group, pids ...*int) {
	if p := c.place(g); p != nil {
		for _, pid := range pids {
			*pid = p.PID(*pid)
		}
	}
}
