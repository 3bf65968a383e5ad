package errs

// Sentinels are the errors that keep their identity between processes.
func Sentinels() []error {
	out := make([]error, len(table))
	for i, e := range table {
		out[i] = e.err
	}
	return out
}
