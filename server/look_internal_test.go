package server

import (
	"testing"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// A name that is not UTF-8 is there as it is, too.
func TestPortsOf(t *testing.T) {
	p := portsOf([]taisandbox.Port{{Process: "a\xff"}, {Process: "é"}}).Items
	if p[0].Process != "a\uFFFD" || string(p[0].ProcessB64) != "a\xff" || p[1].Process != "é" || p[1].ProcessB64 != nil {
		t.Errorf("%+v", p)
	}
}
