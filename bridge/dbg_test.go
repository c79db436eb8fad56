package bridge_test
import ("testing";"time";"sort";"syscall";"context"
"github.com/taibox/taibox/bridge"
"github.com/taibox/taibox/tai/sandbox")
func TestDbg(t *testing.T) {
	b := startProgram(t, "/tmp/tb")
	f := b.files()
	spec := sandbox.ExecSpec{Args: []string{"/bin/true"}}
	m := map[string][]time.Duration{}
	run := func(name string, do func()) { s := time.Now(); do(); m[name] = append(m[name], time.Since(s)) }
	for range 1500 {
		run("fork", func() {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Env: []string{"PATH=/bin"}})
			if err != nil { t.Fatal(err) }
			var ws syscall.WaitStatus
			syscall.Wait4(pid, &ws, 0, nil)
		})
		var id string
		one := func(files bridge.Files) func() { return func() {
			s, err := b.StartExec(context.Background(), spec, files)
			if err != nil { t.Fatal(err) }
			sandbox.Collect(context.Background(), s, nil, false, 0)
			id = s.ID()
		}}
		run("bare", one(bridge.Files{}))
		b.ForgetExec(context.Background(), id)
		run("full", one(f))
		b.ForgetExec(context.Background(), id)
		run("list", func(){ b.InspectExec(context.Background(), "none") })
	}
	for n, d := range m { sort.Slice(d, func(i,j int) bool { return d[i]<d[j]}); t.Logf("%s p10 %v p50 %v p90 %v", n, d[len(d)/10], d[len(d)/2], d[len(d)*9/10]) }
}
