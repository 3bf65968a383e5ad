package drive

// Linked reports whether the local mover has a way between the engine and the arena.
func (s *Stage) Linked() bool { return s.engine != nil && s.engine.in != nil }
