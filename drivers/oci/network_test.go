package oci_test

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/tai/sandbox"
)

// world is a host that is not this machine, at a public address.
type world struct {
	addr    string
	machine string // this machine's address there
	ns      string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	var b [2]byte
	rand.Read(b[:]) // other runs of this test have worlds of their own
	subnet := fmt.Sprintf("11.%d.%d.", b[0], b[1])
	w := &world{addr: subnet + "7", machine: subnet + "1", ns: "tbx" + instanceOf(t)}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", w.ns).Run() })
	run(t, fmt.Sprintf(`set -e
ip netns add %[1]s
ip link add %[1]s type veth peer name eth0 netns %[1]s
ip addr add %[2]s/24 dev %[1]s; ip link set %[1]s up
ip -n %[1]s addr add %[3]s/24 dev eth0; ip -n %[1]s link set eth0 up; ip -n %[1]s link set lo up; ip -n %[1]s route add default via %[2]s`, w.ns, w.machine, w.addr))
	return w
}

// run runs a script on this machine.
func run(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// python runs a script there until the test ends.
func (w *world) python(t *testing.T, args ...string) {
	t.Helper()
	listenIn(t, exec.Command("ip", append([]string{"netns", "exec", w.ns, "/usr/bin/python3"}, args...)...))
}

func listenIn(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

const connects = `
import socket,sys
for a in sys.argv[1].split(","):
    h,p=a.rsplit(":",1)
    try: socket.create_connection((h,int(p)),2).close(); print("reached")
    except OSError as e: print("closed")
`

func reach(t *testing.T, d *oci.Driver, id string, addrs ...string) []string {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecSpec{Args: []string{"/usr/bin/python3", "-c", connects, strings.Join(addrs, ",")}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(res.Stdout))
}

// echoes says which addresses answer a datagram (udp: at a port) or a ping.
const echoes = `
import select,socket,struct,sys
ping=sys.argv[1]=="icmp"
def reached(addrs):
    socks={}
    for a in addrs:
        h,p=a.rsplit(":",1)
        s=socket.socket(socket.AF_INET,socket.SOCK_RAW,socket.IPPROTO_ICMP) if ping else socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
        try: s.connect((h,int(p)))
        except OSError: continue
        socks[s]=a
    found=set()
    data=struct.pack("!BBHHH",8,0,0xf7f8,7,0) if ping else b"hi"
    for i in range(3):
        for s in socks:
            try: s.send(data)
            except OSError: pass
        while True:
            ready=select.select([s for s in socks if socks[s] not in found],[],[],.5)[0]
            if not ready: break
            for s in ready:
                try: got=s.recv(2000)
                except OSError: continue
                if not ping or got[20]==0: found.add(socks[s])
    return found
addrs=sys.argv[2].split(",")
found=reached(addrs)
for a in addrs: print("reached" if a in found else "closed")
`

// answering is a program that sends datagrams to its port back.
const answering = `
import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("0.0.0.0",int(sys.argv[1])))
while True:
    d,a=s.recvfrom(100)
    s.sendto(d,a)
`

// S05: what has no connections reaches no further.
func TestS05Datagrams(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	started(t, d, sandbox.Spec{ID: "b2"})
	w := newWorld(t)
	const port = "8125"
	w.python(t, "-c", answering, port)
	conn, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprint(conn.LocalAddr().(*net.UDPAddr).Port)
	conn.Close()
	listenIn(t, exec.Command("/usr/bin/python3", "-c", answering, own))
	if _, err := d.ExecStream(t.Context(), "b2", sandbox.ExecSpec{Args: []string{"/usr/bin/python3", "-c", answering, port}}); err != nil {
		t.Fatal(err)
	}
	neighbour, err := d.Inspect(t.Context(), "b2")
	if err != nil {
		t.Fatal(err)
	}
	// As the box's root would if it had raw sockets.
	reach := func(id, proto string, addrs ...string) []string {
		t.Helper()
		ns := "--net=/run/taibox/" + cfg.Instance + "/b/" + id + "/ns/net"
		out, err := exec.Command("nsenter", ns, "/usr/bin/python3", "-c", echoes, proto, strings.Join(addrs, ",")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Fields(string(out))
	}
	closed := []string{neighbour.IP + ":" + port, "169.254.169.254:" + port}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			closed = append(closed, ip.String()+":"+own)
		}
	}
	for _, ns := range nameservers(t, d, "b1") {
		closed = append(closed, ns+":"+own)
	}
	waitFor(t, func() bool { return reach("b2", "udp", "127.0.0.1:"+port)[0] == "reached" }, "the neighbour to answer")
	for _, proto := range []string{"udp", "icmp"} {
		waitFor(t, func() bool { return reach("b1", proto, w.addr+":"+port)[0] == "reached" }, "the world to answer by "+proto)
		for i, got := range reach("b1", proto, closed...) {
			if got != "closed" {
				t.Errorf("%s answers by %s", closed[i], proto)
			}
		}
	}
}

// S05: a box reaches the world, and neither the machine, nor its neighbours,
// nor private or metadata addresses, however they are spelled.
func TestS05Network(t *testing.T) {
	d, _ := box(t, sandbox.Spec{})
	started(t, d, sandbox.Spec{ID: "b2"})
	w := newWorld(t)
	w.python(t, "-m", "http.server", "8123")
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if _, err := d.ExecStream(t.Context(), "b2", sandbox.ExecSpec{Args: []string{"/usr/bin/python3", "-m", "http.server", "8124"}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return reach(t, d, "b1", w.addr+":8123")[0] == "reached" }, "the world to be reached")
	waitFor(t, func() bool { return reach(t, d, "b2", "127.0.0.1:8124")[0] == "reached" }, "the neighbour to listen")
	neighbour, err := d.Inspect(t.Context(), "b2")
	if err != nil {
		t.Fatal(err)
	}
	var closed []string
	for _, a := range append(nameservers(t, d, "b1"), w.machine, "127.0.0.1", "::ffff:"+w.machine, "0") {
		closed = append(closed, fmt.Sprintf("%s:%d", a, port))
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		closed = append(closed, fmt.Sprintf("%s:%d", a.(*net.IPNet).IP, port))
	}
	closed = append(closed, neighbour.IP+":8124", "169.254.169.254:80", "2852039166:80", "0xa9fea9fe:80", "::ffff:169.254.169.254:80", "168.63.129.16:80")
	for i, got := range reach(t, d, "b1", closed...) {
		if got != "closed" {
			t.Errorf("%s was reached", closed[i])
		}
	}
	if out := string(sh(t, d, "b1", "cat /proc/sys/net/ipv6/conf/all/disable_ipv6").Stdout); out != "1\n" {
		t.Errorf("IPv6 is on: %q", out)
	}
}

// S05: a box is not started without its walls.
func TestS05StartMakesSureOfTheFirewall(t *testing.T) {
	d, cfg := box(t, sandbox.Spec{})
	ctx := t.Context()
	if err := d.Stop(ctx, "b1", 0); err != nil {
		t.Fatal(err)
	}
	table := "taibox-" + cfg.Instance
	run(t, "nft delete table "+table)
	if err := d.Start(ctx, "b1"); err != nil {
		t.Fatal(err)
	}
	run(t, "nft list chain "+table+" forward")
}

func TestNetworkNone(t *testing.T) {
	d, _ := box(t, sandbox.Spec{Network: sandbox.NetworkNone})
	if out := string(sh(t, d, "b1", "ls /sys/class/net").Stdout); out != "lo\n" {
		t.Errorf("interfaces %q", out)
	}
	if res := python(t, d, "b1", "import socket; s=socket.create_server(('127.0.0.1',80)); socket.create_connection(('127.0.0.1',80)); print('ok')"); string(res.Stdout) != "ok\n" {
		t.Errorf("loopback: %q %q", res.Stdout, res.Stderr)
	}
}

// Another table that drops what is forwarded does not cut the boxes off. With
// Docker, the accept belongs where Docker leaves it alone.
func TestForeignForwardPolicy(t *testing.T) {
	machine(t)
	for name, chains := range map[string]string{
		"plain":  "chain forward {\ntype filter hook forward priority filter; policy drop;\n}\n",
		"docker": "chain DOCKER-USER {\n}\nchain FORWARD {\ntype filter hook forward priority filter; policy drop;\njump DOCKER-USER\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			table := "tbxtest" + instanceOf(t)
			if out, err := exec.Command("nft", fmt.Sprintf("table ip %s {\n%s}\n", table, chains)).CombinedOutput(); err != nil {
				t.Fatalf("nft: %v: %s", err, out)
			}
			defer exec.Command("nft", "delete", "table", "ip", table).Run()
			d, cfg := box(t, sandbox.Spec{})
			w := newWorld(t)
			w.python(t, "-m", "http.server", "8123")
			waitFor(t, func() bool { return reach(t, d, "b1", w.addr+":8123")[0] == "reached" }, "the world to be reached past a drop policy")
			rules := func() string {
				out, err := exec.Command("nft", "list", "table", "ip", table).CombinedOutput()
				if err != nil {
					t.Fatalf("nft: %v: %s", err, out)
				}
				return string(out)
			}
			if n := strings.Count(rules(), "taibox-"+cfg.Instance); n != 2 {
				t.Errorf("%d rules of ours: %s", n, rules())
			}
			if err := d.Remove(t.Context(), "b1"); err != nil {
				t.Fatal(err)
			}
			if err := d.Dismantle(t.Context()); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(rules(), cfg.Instance) {
				t.Errorf("our rules were left: %s", rules())
			}
		})
	}
}

// S05: a question that another table sends on to a resolver's port, as a
// cluster does for its DNS, is not let through for being one.
func TestS05ForeignResolver(t *testing.T) {
	machine(t)
	w := newWorld(t)
	w.python(t, "-c", `
import socket
s=socket.create_server(("0.0.0.0",53))
while True: s.accept()[0].close()
`)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	cfg.Resolvers = []string{w.addr}
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	private, service := "172.31."+strings.Join(strings.Split(w.addr, ".")[1:3], "."), "10.96.0.10"
	run(t, fmt.Sprintf("ip -n %[1]s addr add %[2]s/32 dev lo && ip route add %[2]s/32 via %[3]s", w.ns, private, w.addr))
	table := "tbxtest" + instanceOf(t)
	defer exec.Command("nft", "delete", "table", "ip", table).Run()
	run(t, fmt.Sprintf("nft 'table ip %s {\nchain c {\ntype nat hook prerouting priority dstnat;\nip daddr %s tcp dport 53 dnat to %s\n}\n}'", table, service, private))
	waitFor(t, func() bool { return reach(t, d, "b1", nameservers(t, d, "b1")[0]+":53")[0] == "reached" }, "the resolver to be reached")
	conn, err := net.Dial("tcp", private+":53")
	if err != nil {
		t.Fatalf("the machine itself does not reach it: %v", err)
	}
	conn.Close()
	for _, a := range []string{service, private} {
		if got := reach(t, d, "b1", a+":53"); got[0] != "closed" {
			t.Errorf("%s was reached", a)
		}
	}
}

// nameservers are those that a box's programs ask.
func nameservers(t *testing.T, d *oci.Driver, id string) []string {
	t.Helper()
	return strings.Fields(string(sh(t, d, id, "awk '/nameserver/{print $2}' /etc/resolv.conf").Stdout))
}

// The source address is bound to the box's interface, whatever its root does
// and however the machine filters.
func TestSourceAddressIsBound(t *testing.T) {
	_, cfg := box(t, sandbox.Spec{})
	const loose = "/proc/sys/net/ipv4/conf/all/rp_filter"
	before, err := os.ReadFile(loose)
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(loose, before, 0)
	if err := os.WriteFile(loose, []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	got := filepath.Join(t.TempDir(), "got")
	w.python(t, "-c", `
import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("0.0.0.0",9000))
while True:
    d,a=s.recvfrom(100); open(sys.argv[1],"a").write(d.decode()+"\n")
`, got)
	send := `
import socket,sys
for i in range(5):
    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind((sys.argv[1],0)); s.sendto(sys.argv[2].encode(),(sys.argv[3],9000))
`
	ns := "--net=/run/taibox/" + cfg.Instance + "/b/b1/ns/net"
	inside := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("nsenter", append([]string{ns}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// A public address that the machine has a route to, elsewhere.
	foreign := strings.TrimSuffix(w.addr, "7") + "9"
	inside("ip", "addr", "add", foreign+"/32", "dev", "lo")
	waitFor(t, func() bool {
		inside("/usr/bin/python3", "-c", send, foreign, "spoofed", w.addr)
		inside("/usr/bin/python3", "-c", send, "0.0.0.0", "honest", w.addr)
		data, _ := os.ReadFile(got)
		return strings.Contains(string(data), "honest")
	}, "an honest packet")
	if data, _ := os.ReadFile(got); strings.Contains(string(data), "spoofed") {
		t.Error("a packet with a foreign source address left")
	}
}

// answers is a resolver that knows one address for all names: its own.
func (w *world) answers(t *testing.T) {
	t.Helper()
	w.python(t, "-c", `
import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("0.0.0.0",53))
while True:
    q,a=s.recvfrom(512)
    s.sendto(q[:2]+b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00"+q[12:12+q[12:].index(0)+5]+b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04"+socket.inet_aton(sys.argv[1]),a)
`, w.addr)
}

// ask has a function that asks a nameserver until it answers, for a minute.
const ask = `
import os,socket,time
def ask(nameserver):
    for i in range(60):
        s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(1)
        try:
            s.sendto(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04name\x00\x00\x01\x00\x01",(nameserver,53))
            return socket.inet_ntoa(s.recv(512)[-4:])
        except OSError: time.sleep(.1)
nameservers=[l.split()[1] for l in open("/etc/resolv.conf") if l.startswith("nameserver")]
`

// A resolver that is silent is one of several: programs ask the next.
func TestDNSFallsBack(t *testing.T) {
	machine(t)
	w := newWorld(t)
	w.answers(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	silent := strings.TrimSuffix(w.addr, "7") + "9"
	cfg.Resolvers = []string{silent, w.addr}
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	res := python(t, d, "b1", ask+"print(len(nameservers), ask(nameservers[1]))")
	if got, want := string(res.Stdout), "2 "+w.addr+"\n"; got != want {
		t.Errorf("got %q%s, want %q", got, res.Stderr, want)
	}
}

// DNS needs no server of ours: it works while the driver is closed.
func TestDNSWithoutDriver(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	dismantle(t, cfg)
	w := newWorld(t)
	cfg.Resolvers = []string{w.addr}
	d := open(t, cfg)
	started(t, d, sandbox.Spec{ID: "b1"})
	s, err := d.ExecStream(t.Context(), "b1", sandbox.ExecSpec{ID: "dns", Args: []string{"/usr/bin/python3", "-c", ask + `
answer=ask(nameservers[0])
open("/new","w").write(answer or "nothing"); os.rename("/new","/answer")
`}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	w.answers(t)
	answer := "/run/taibox/" + cfg.Instance + "/b/b1/rootfs/answer"
	waitFor(t, func() bool { _, err := os.Stat(answer); return err == nil }, "an answer")
	if got, err := os.ReadFile(answer); err != nil || string(got) != w.addr {
		t.Errorf("answer %q, %v", got, err)
	}
}
