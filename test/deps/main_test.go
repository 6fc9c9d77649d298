package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
)

const goMod = `module example.org/m

go 1.26

tool example.org/tools/cmd/gen

require (
	example.org/held v1.2.0 // the server of example.org/a needs it
	example.org/a v1.2.3
	example.org/own v0.0.0
	example.org/staged v0.0.0
)

require (
	example.org/tools v0.3.0 // indirect; the last one with a tool
	example.org/transitive v1.0.0 // indirect
)

replace example.org/own => ../..

replace example.org/staged => example.org/staged v0.34.4
`

func TestReport(t *testing.T) {
	mod, err := modfile.Parse("go.mod", []byte(goMod), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = report(&out, direct("go.mod", mod), map[string]string{
		"example.org/held": "v1.3.0", "example.org/a": "v1.2.4", "example.org/staged": "v0.37.2", "example.org/tools": "v0.4.0",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `MODULE              HAVE     NEWEST   BEHIND BY  IN      REASON
example.org/held    v1.2.0   v1.3.0   minor      go.mod  the server of example.org/a needs it
example.org/staged  v0.34.4  v0.37.2  minor      go.mod
example.org/tools   v0.3.0   v0.4.0   minor      go.mod  the last one with a tool
example.org/a       v1.2.3   v1.2.4   patch      go.mod
4 direct requirements, 3 behind by a minor release, 1 by a patch
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestBehind(t *testing.T) {
	for _, tt := range []struct{ have, newest, want string }{
		{"v1.2.3", "v1.2.3", ""},
		{"v1.2.3", "v1.2.4", "patch"},
		{"v1.2.3", "v1.10.0", "minor"},
		{"v2.9.0", "v2.10.0", "minor"},
		{"v1.4.0-rc.1", "v1.3.9", ""},
		{"v0.0.0-20250101000000-abcdefabcdef", "v0.0.0-20260101000000-abcdefabcdef", "minor"},
		{"v2.0.0+incompatible", "v2.0.0+incompatible", ""},
	} {
		if got := behind(tt.have, tt.newest); got != tt.want {
			t.Errorf("behind(%s, %s) = %q, want %q", tt.have, tt.newest, got, tt.want)
		}
	}
	if got := newestRelease([]string{"v1.0.0", "v1.10.1", "v1.9.0", "v1.11.0-rc.0"}); got != "v1.10.1" {
		t.Errorf("the newest release is %s", got)
	}
}
