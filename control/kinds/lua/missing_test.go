package lua

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMissing(t *testing.T) {
	kube := Library{"accuratePodRequirements": func([]any) (any, error) { return nil, nil }}
	for name, tt := range map[string]struct {
		script string
		want   string
		err    string
	}{
		"what all have":             {script: `local kube = require("kube") function F(o) local a = math.floor(1.5) .. #o return kube.accuratePodRequirements(o), string.rep("a", a), o.os.time, ipairs(o) end`},
		"functions of the language": {script: `function F(o) local ok = pcall(function() return setmetatable({}, {}) end) return ok end`, want: "pcall setmetatable"},
		"libraries":                 {script: `function F(o) return os.time() + math.random(3), string.dump(F) end`, want: "math.random os string.dump"},
		"modules":                   {script: `local j = require("json") function F(o) return j.encode(o), require("kube").none() end`, want: `kube.none require("json")`},
		"a library under its own name, and a name of its own": {script: `local k, os = require("kube"), {} local function pcall(f) return f end function F(o) k.none() for _, load in pairs(o) do os.time = load end return pcall(F) end`, want: "kube.none"},
		"a parameter":           {script: `function F(os) return os.time end`},
		"a member of a library": {script: `function F(o) return table.getn(o), table.maxn(o), string.byte("a"), math.pi end`, want: "table.getn"},
		"no Lua":                {script: `function F(`, err: "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Missing(tt.script, kube)
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q; -want +got\n%s", err, tt.err, diff)
			}
		})
	}
}
