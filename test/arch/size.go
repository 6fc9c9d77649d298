package arch

import (
	"bytes"
	"cmp"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// SizesFile is the checked-in table of sizes, from the root of the tree.
const SizesFile = "docs/sizes.md"

// features groups the files of the product by what a user gets from them. A file belongs to the
// first feature of which one prefix begins its path; the last feature has what no other names.
var features = []struct {
	name     string
	prefixes []string
}{
	{"install, upgrade, operator", []string{"deploy/", "control/operator/", "cmd/pelago-agent/operator",
		"cmd/pelago/internal/install/", "cmd/pelago/init", "cmd/pelago/deinit", "cmd/pelago/deploybroker",
		"cmd/pelago/join", "cmd/pelago/unjoin", "cmd/pelago/push", "cmd/pelago/register", "cmd/pelago/token",
		"cmd/pelago/gateways"}},
	{"migration from Submariner and Karmada", []string{"cmd/pelago/internal/migrate/", "cmd/pelago/promote"}},
	{"trace: the datapath in Go", []string{"dataplane/trace/", "dataplane/loader/trace", "dataplane/loader/tables.go",
		"dataplane/observe/trace", "cmd/pelago-node/trace", "cmd/pelago/internal/inspect/trace", "cmd/pelago/internal/inspect/reasons"}},
	{"views and inspection of the CLI", []string{"cmd/pelago/"}},
	{"datapath: C", []string{"bpf/"}},
	{"datapath: loader, cable, NAT discovery, devices, probes, metrics", []string{"dataplane/"}},
	{"node daemon", []string{"control/node/", "cmd/pelago-node/"}},
	{"addresses of a member", []string{"control/agent/ipam/"}},
	{"peering", []string{"control/agent/peering/", "control/topology/"}},
	{"services and DNS", []string{"control/agent/services/", "control/agent/clusterdns/", "dns/", "cmd/pelago-dns/"}},
	{"propagation: policies, decisions, placement", []string{"control/hub/propagate/", "control/hub/placement/",
		"control/hub/policy/", "control/hub/binding/", "scheduler/"}},
	{"Works, their execution and status", []string{"control/hub/work/", "control/hub/status/", "control/execute/meter/",
		"control/execute/collect/", "control/execute/"}},
	{"kinds: native, CEL, Lua, webhooks", []string{"control/kinds/"}},
	{"members of the hub", []string{"control/hub/cluster/", "control/hub/member/"}},
	{"access: proxy, search, tunnel", []string{"control/hub/access/", "control/tunnel/"}},
	{"autoscaling", []string{"control/hub/autoscale/"}},
	{"daemons, shared code of controllers", []string{"control/", "cmd/"}},
	{"API types", []string{"api/"}},
	{"suites, lab, benchmarks", []string{"test/"}},
	{"other", []string{""}},
}

// size counts the lines of code of the product and of its tests.
type size struct{ code, tests int }

// Sizes is the text of SizesFile for the tree at root: lines of Go and C that are neither blank nor
// comment, without generated files and the kernel's headers, rounded to hundreds. A number of the
// former text stays as it is while it differs from the count by less than a hundred, so that few
// changes of code change the table.
func Sizes(root, former string) (string, error) {
	byFeature, byRoom := map[string]size{}, map[string]size{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && (name == "out" || name == "bin" || name == "bpf/include" || d.Name() == "testdata" ||
			strings.HasPrefix(name, ".") && name != "."):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".c", ".h"}, filepath.Ext(name)):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(content[:min(len(content), 2000)], []byte("DO NOT EDIT")) {
			return nil
		}
		s := size{code: codeLines(name, content)}
		if strings.HasPrefix(name, "test/") || strings.HasSuffix(name, "_test.go") {
			s = size{tests: s.code}
		}
		add(byFeature, feature(name), s)
		add(byRoom, room(name), s)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("count the lines below %s: %w", root, err)
	}
	var names []string
	for _, f := range features {
		if byFeature[f.name] != (size{}) {
			names = append(names, f.name)
		}
	}
	rooms := make([]string, 0, len(byRoom))
	for name := range byRoom {
		rooms = append(rooms, name)
	}
	slices.Sort(rooms)
	was := written(former)
	var b strings.Builder
	b.WriteString("# Sizes\n\nLines of Go and C that are neither blank nor comment, without generated files, in hundreds.\n" +
		"A number is written again when it is off by a hundred: `go run ./test/arch/sizes -update`.\n" +
		"Nothing limits them; a reviewer asks about growth.\n")
	table(&b, "feature", names, byFeature, was)
	table(&b, "room", rooms, byRoom, was)
	return b.String(), nil
}

func add(to map[string]size, name string, s size) {
	to[name] = size{to[name].code + s.code, to[name].tests + s.tests}
}

func feature(file string) string {
	for _, f := range features {
		if slices.ContainsFunc(f.prefixes, func(p string) bool { return strings.HasPrefix(file, p) }) {
			return f.name
		}
	}
	return ""
}

// room is the folder of a file; below api and test the second folder, since each is one subject.
func room(file string) string {
	parts := strings.Split(file, "/")
	if n := len(parts) - 1; n > 2 && (parts[0] == "api" || parts[0] == "test") {
		parts = parts[:3]
	}
	return strings.Join(parts[:len(parts)-1], "/")
}

// table writes the rows and their sum.
func table(b *strings.Builder, head string, names []string, sizes map[string]size, was map[string]size) {
	fmt.Fprintf(b, "\n| %s | code | tests |\n|---|---:|---:|\n", head)
	var all size
	row := func(name string, s size) {
		shown := was[name]
		shown = size{hundreds(s.code, shown.code), hundreds(s.tests, shown.tests)}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, cell(shown.code, s.code), cell(shown.tests, s.tests))
	}
	for _, name := range names {
		all = size{all.code + sizes[name].code, all.tests + sizes[name].tests}
		row(name, sizes[name])
	}
	row("all", all)
}

// hundreds is the number to write for a count, of which the former one is close enough if it is
// less than a hundred off.
func hundreds(count, former int) int {
	if former > 0 && count > 0 && max(count-former, former-count) < 100 {
		return former
	}
	return max((count+50)/100*100, 100)
}

func cell(shown, count int) string {
	if count == 0 {
		return ""
	}
	return strconv.Itoa(shown)
}

var tableRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d*) \| (\d*) \|$`)

// written are the numbers of a former table by the name of their row.
func written(former string) map[string]size {
	out := map[string]size{}
	for _, m := range tableRow.FindAllStringSubmatch(former, -1) {
		code, _ := strconv.Atoi(cmp.Or(m[2], "0")) // digits
		tests, _ := strconv.Atoi(cmp.Or(m[3], "0"))
		out[m[1]] = size{code, tests}
	}
	return out
}

// codeLines counts the lines of a file that are neither blank nor comment.
func codeLines(name string, content []byte) int {
	if filepath.Ext(name) != ".go" {
		content = comment.ReplaceAllFunc(content, func(c []byte) []byte { return bytes.Repeat([]byte("\n"), bytes.Count(c, []byte("\n"))) })
		n := 0
		for line := range bytes.Lines(content) {
			if len(bytes.TrimSpace(line)) > 0 {
				n++
			}
		}
		return n
	}
	fset := token.NewFileSet()
	file := fset.AddFile(name, -1, len(content))
	var s scanner.Scanner
	s.Init(file, content, nil, 0)
	n, last := 0, 0
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return n
		}
		first := file.Line(pos)
		end := first + strings.Count(text, "\n") // of a raw string
		if tok == token.SEMICOLON && text == "\n" {
			end = first // at the end of a line
		}
		n += max(0, end-max(first, last+1)+1)
		last = max(last, end)
	}
}

// comment is a comment in C; no string of ours has one in it.
var comment = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/`)
