package script

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Changes prints what each step has changed.
type Changes struct {
	// Shown is what was printed of each object last, by its name.
	Shown map[string]string
	// Said are the Events and errors since.
	Said []string
}

// Step prints the objects that differ from those of the step before, then what was said. now are all
// objects by name, as YAML in lines of their own or as the predicate of a sentence.
func (o *Changes) Step(now map[string]string) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(now)) {
		switch text := now[name]; {
		case text == o.Shown[name]:
		case strings.Contains(text, "\n"):
			fmt.Fprintf(&out, "# %s\n%s", name, text)
		default:
			fmt.Fprintf(&out, "# %s %s\n", name, text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Shown)) {
		if _, ok := now[name]; !ok {
			fmt.Fprintf(&out, "# %s is deleted\n", name)
		}
	}
	for _, line := range o.Said {
		fmt.Fprintf(&out, "# %s\n", line)
	}
	o.Shown, o.Said = now, nil
	return out.String()
}
