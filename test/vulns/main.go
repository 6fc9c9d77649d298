// Command vulns checks the commands of this module for calls of functions with known
// vulnerabilities (govulncheck), apart from those of allowed.txt. It fails if it cannot reach the
// database of vulnerabilities, since nothing is checked then (with -if-reachable it prints so), if
// an entry of allowed.txt has expired, and if one names what the commands do not call.
package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// allowed has a line for each vulnerability that is accepted: its id, the day from which it is not
// accepted any more, and the reason.
//
//go:embed allowed.txt
var allowed string

var errUnreachable = errors.New("known vulnerabilities are not checked")

func main() {
	lenient := flag.Bool("if-reachable", false, "without the database print that the check is left out, and succeed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Stdout)
	if *lenient && errors.Is(err, errUnreachable) {
		fmt.Println("left out:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulns:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	database := cmp.Or(os.Getenv("GOVULNDB"), "https://vuln.go.dev") // govulncheck does not read the variable
	if err := reachable(ctx, database); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "govulncheck", "-db", database, "-format", "json", "./cmd/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil { // with this format not because of findings
		return fmt.Errorf("go tool govulncheck: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	called, err := findings(bytes.NewReader(stdout))
	if err != nil {
		return err
	}
	return judge(out, called, allowed, time.Now())
}

// reachable reports whether the database answers, before all packages are loaded.
func reachable(ctx context.Context, database string) error {
	if strings.HasPrefix(database, "file:") {
		return nil
	}
	fail := func(err error) error {
		return fmt.Errorf("%w: the database %s cannot be reached: %w: run `make vulns` with access to it, or with a copy of it (GOVULNDB=file:///DIRECTORY)",
			errUnreachable, database, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, database+"/index/db.json", nil)
	if err != nil {
		return fail(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fail(errors.New(resp.Status))
	}
	return nil
}

// finding is a message of govulncheck (golang.org/x/vuln/internal/govulncheck); other messages have
// no osv.
type finding struct {
	Finding struct {
		OSV          string
		FixedVersion string `json:"fixed_version"`
		// Trace begins with the vulnerable symbol; without a function nothing calls it.
		Trace []struct{ Module, Version, Function string }
	}
}

// findings returns the vulnerabilities that the commands call: id → module, version and fix.
func findings(in io.Reader) (map[string]string, error) {
	called := map[string]string{}
	for d := json.NewDecoder(in); ; {
		var f finding
		if err := d.Decode(&f); errors.Is(err, io.EOF) {
			return called, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the output of govulncheck: %w", err)
		}
		if t := f.Finding.Trace; len(t) > 0 && t[0].Function != "" {
			fix := "no release has a fix"
			if f.Finding.FixedVersion != "" {
				fix = "update to " + f.Finding.FixedVersion
			}
			called[f.Finding.OSV] = fmt.Sprintf("%s %s: %s", t[0].Module, t[0].Version, fix)
		}
	}
}

// judge compares what is called with what is allowed.
func judge(out io.Writer, called map[string]string, allowed string, now time.Time) error {
	var errs []error
	accepted := map[string]bool{}
	for line := range strings.Lines(allowed) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		if len(fields) < 3 {
			errs = append(errs, fmt.Errorf("allowed.txt: %q: write ID YYYY-MM-DD REASON", line))
			continue
		}
		id := fields[0]
		end, err := time.Parse(time.DateOnly, fields[1])
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("allowed.txt: %s: %w", id, err))
		case !now.Before(end):
			errs = append(errs, fmt.Errorf("allowed.txt: %s was accepted until %s: update, or judge it again", id, fields[1]))
		case called[id] == "":
			errs = append(errs, fmt.Errorf("allowed.txt: no command has %s any more: remove the line", id))
		default:
			accepted[id] = true
		}
	}
	for id, what := range called {
		if !accepted[id] {
			errs = append(errs, fmt.Errorf("%s (https://pkg.go.dev/vuln/%s): %s", id, id, what))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	_, err := fmt.Fprintf(out, "no command calls a function with a known vulnerability; %d accepted\n", len(accepted))
	return err
}
