package sandboxtest

// issues holds one case for each bug that got past the rest of the suite, with
// a link to where it was reported.
func issues(e *env) {
	e.cases([]testCase{})
}
