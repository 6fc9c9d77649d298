package replay

import (
	"bytes"
	"encoding/json"
)

// preconditions are the resourceVersions that a body names as such.
func preconditions(body []byte) (versions []string) {
	_, _ = rewriteVersions(body, func(old string) (string, bool) { // what is no JSON has none
		versions = append(versions, old)
		return old, true
	})
	return versions
}

// rewriteVersions replaces the resourceVersions that a body names as preconditions: of an object,
// of a merge patch, of DeleteOptions, of the operations of a JSON patch. What to gives up is taken
// out.
func rewriteVersions(body []byte, to func(old string) (string, bool)) ([]byte, error) {
	if !bytes.Contains(body, []byte("resourceVersion")) {
		return body, nil
	}
	var content any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&content); err != nil {
		return nil, err
	}
	switch content := content.(type) {
	case map[string]any:
		for _, parent := range []string{"metadata", "preconditions"} {
			if fields, ok := content[parent].(map[string]any); ok {
				replaceVersion(fields, "resourceVersion", to)
			}
		}
	case []any:
		for _, operation := range content {
			if fields, ok := operation.(map[string]any); ok && fields["path"] == "/metadata/resourceVersion" {
				replaceVersion(fields, "value", to)
			}
		}
	}
	return json.Marshal(content)
}

func replaceVersion(fields map[string]any, name string, to func(string) (string, bool)) {
	old, ok := fields[name].(string)
	if !ok || old == "" {
		return
	}
	if now, ok := to(old); ok {
		fields[name] = now
	} else {
		delete(fields, name)
	}
}
