package server

import (
	"errors"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func TestReadEnding(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		local  bool
		hangup bool
	}{
		{"closed", websocket.CloseError{Code: websocket.StatusNormalClosure}, true, false},
		{"closed_remotely", websocket.CloseError{Code: websocket.StatusNormalClosure}, false, false},
		{"page_left", websocket.CloseError{Code: websocket.StatusGoingAway}, false, true},
		{"dead", io.EOF, true, true},
		{"link_lost", io.EOF, false, false},
	} {
		if e := readEnding(c.err, c.local); e.hangup != c.hangup {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
}

// TestConversionsAreWhole: a field that is added to what the manager says
// travels.
func TestConversionsAreWhole(t *testing.T) {
	var box sandbox.BoxInfo
	var exec taisandbox.ExecInfo
	var stats taisandbox.Stats
	var port taisandbox.Port
	for _, v := range []any{&box, &exec, &stats, &port} {
		fill(reflect.ValueOf(v).Elem())
	}
	exec.Ended = exec.Started.Add(time.Second)
	for _, v := range []any{boxOf(&box), execOf(&exec), statsOf(&stats), portsOf([]taisandbox.Port{port}).Items[0]} {
		for field, f := range reflect.ValueOf(v).Fields() {
			if f.IsZero() {
				t.Errorf("%T.%s is left out", v, field.Name)
			}
		}
	}
}

// fill gives every field of a struct some value, and text one that is not
// UTF-8.
func fill(v reflect.Value) {
	for _, f := range v.Fields() {
		switch {
		case f.Kind() == reflect.String:
			f.SetString("x\xff")
		case f.Type() == reflect.TypeFor[time.Duration]():
			f.SetInt(int64(time.Second))
		case f.CanInt():
			f.SetInt(1)
		case f.CanUint():
			f.SetUint(1)
		case f.CanFloat():
			f.SetFloat(1)
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			if first := f.Index(0); first.Kind() == reflect.String {
				first.SetString("x\xff")
			}
		case f.Kind() == reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
		case f.Kind() == reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		default:
			f.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		}
	}
}

func TestCursor(t *testing.T) {
	for _, c := range []cursor{{1, "a"}, {-5, "b-c"}, {1 << 62, "0"}} {
		got, err := parseCursor(c.String())
		if err != nil || got != c || c.after(got) {
			t.Errorf("%+v: %+v %v", c, got, err)
		}
	}
	for _, token := range []string{"x", "!", "MQ", "MS4"} {
		if _, err := parseCursor(token); err == nil {
			t.Errorf("%q is a token", token)
		}
	}
	if _, err := duration("x", -1); !errors.Is(err, taisandbox.ErrInvalidSpec) {
		t.Errorf("%v", err)
	}
}
