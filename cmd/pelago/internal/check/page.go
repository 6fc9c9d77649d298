package check

import (
	"fmt"
	"strings"
)

// Text is what is known of a check, for a terminal.
func (c *Check) Text() string {
	return fmt.Sprintf("%s: %s\n\nLooks at:  %s\nWhy:       %s\nRemedy:    %s\nTopic:     %s\n", c.Code, c.Title, c.Looks, c.Why, c.Remedy, c.Topic)
}

// areas are those of the codes, in the order of the table.
var areas = []struct{ letter, title string }{
	{"N", "Network"}, {"D", "Discovery and DNS"}, {"H", "Hub"}, {"P", "Before a join"}, {"A", "Manifests"},
}

// columns is the width of pages.
const columns = 100

// Pages is docs/checks.md.
func Pages() string {
	var b strings.Builder
	b.WriteString(`# Checks

` + wrap("`pelago check` reads the API objects of members and hubs and evaluates the checks below. Each has a stable code. "+
		"`pelago check --explain CODE` prints its section; `-o wide` names it behind each remedy.") + `

| command | |
|---|---|
` + "| `pelago check` | all members and hubs of the kubeconfig; `--contexts` narrows it down, `--hub-kubeconfig` adds a hub |\n" +
		"| `pelago status` | the clusterset on one screen, with the findings of all checks; `--watch` repeats it |\n" +
		"| `pelago check --only N,D` | areas or codes |\n" +
		"| `pelago check --wait` | until nothing is wrong except warnings |\n" +
		"| `pelago check --pre` | a cluster before it joins; `pelago join` runs it, and `--skip-checks` leaves it out |\n" +
		"| `pelago check --pre --node-pods` | also MTUs and UDP ports of the nodes, by a pod in the network of each |\n" +
		"| `pelago check --pre --hub` | an API server before it is a hub; `pelago init` and `pelago deploy-broker` run it |\n" +
		"| `pelago analyze -f DIR` | manifests, without a cluster |\n" +
		"| `pelago gather` | one archive for a report: objects, logs, the result of the checks |\n" +
		"| `pelago diagnose cni`, … | the checks of a topic, by the words of Submariner's tool |\n" + `
| verdict | exit status | |
|---|---|---|
| ok, warning | 0 | nothing is wrong, or something may become so |
| error | 1 | something does not work |
| unknown | 3, without an error | what the check looks at could not be read; the reason names it |

` + wrap("Clusters are read in parallel, each for at most 20 seconds. What a cluster does not answer in that time is unknown; "+
		"the rest is evaluated. `-o json`, `-o yaml` and `-o junit` list all checks, with JUnit's failures for errors.") + "\n")
	for _, area := range areas {
		fmt.Fprintf(&b, "\n## %s\n", area.title)
		for i := range table {
			if c := &table[i]; strings.HasPrefix(c.Code, "PLG-"+area.letter) {
				fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", c.Code, wrap(c.Title+"."))
				for _, part := range [][2]string{{"Looks at", c.Looks}, {"Why", c.Why}, {"Remedy", c.Remedy}, {"Topic", c.Topic}} {
					b.WriteString(indent(wrap("- "+part[0]+": "+part[1])) + "\n")
				}
			}
		}
	}
	return b.String()
}

// wrap breaks a paragraph at the width of pages, less the indent of a list.
func wrap(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > columns-2 {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }
