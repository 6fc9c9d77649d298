package execute

import (
	"fmt"
	"regexp"
	"strings"

	"encoding/json"
)

// What server-side apply says of a manifest that does not fit its schema (structured-merge-diff, typed/validate.go). Paths have the
// form of fieldpath.Path.String: .spec.template.spec.containers[name="x"].field
var (
	undeclaredField = regexp.MustCompile(`(\.[^\s]*(?:\[[^\]]*\][^\s]*)*): field not declared in schema`)
	duplicateKey    = regexp.MustCompile(`duplicate entries for key`)
)

// undeclared returns the paths that the member's schema does not have.
func undeclared(err error) []string {
	if err == nil {
		return nil
	}
	var paths []string
	for _, found := range undeclaredField.FindAllStringSubmatch(err.Error(), -1) {
		paths = append(paths, found[1])
	}
	return paths
}

// duplicates says that a list has two elements of one key.
func duplicates(err error) bool { return err != nil && duplicateKey.MatchString(err.Error()) }

// dropField removes the field at a path; false if there is none. The path is followed along the object, since field names may hold
// dots.
func dropField(object map[string]any, path string) bool {
	if !strings.HasPrefix(path, ".") {
		return false
	}
	for key, value := range object {
		rest, ok := strings.CutPrefix(path[1:], key)
		switch {
		case !ok:
		case rest == "":
			delete(object, key)
			return true
		case dropBelow(value, rest):
			return true
		}
	}
	return false
}

func dropBelow(value any, path string) bool {
	switch v := value.(type) {
	case map[string]any:
		return dropField(v, path)
	case []any:
		for i, element := range v {
			if rest, ok := strings.CutPrefix(path, fmt.Sprintf("[%d]", i)); ok && dropBelow(element, rest) {
				return true
			}
			m, ok := element.(map[string]any)
			if !ok || !strings.HasPrefix(path, "[") {
				continue
			}
			if rest, ok := afterKeys(m, path); ok && dropBelow(element, rest) {
				return true
			}
		}
	}
	return false
}

// afterKeys returns what follows [key="value",other=1] if an element has these keys. A key that it lacks has a default, so it fits.
func afterKeys(element map[string]any, path string) (string, bool) {
	path = path[1:]
	for {
		key, rest, ok := strings.Cut(path, "=")
		if !ok {
			return "", false
		}
		var value any
		d := strings.NewReader(rest)
		decoder := json.NewDecoder(d)
		if err := decoder.Decode(&value); err != nil {
			return "", false
		}
		rest = rest[decoder.InputOffset():]
		if have, found := element[key]; found && fmt.Sprint(have) != fmt.Sprint(value) {
			return "", false
		}
		switch {
		case strings.HasPrefix(rest, ","):
			path = rest[1:]
		case strings.HasPrefix(rest, "]"):
			return rest[1:], true
		default:
			return "", false
		}
	}
}
