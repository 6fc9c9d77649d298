package tables

import (
	"encoding/json"
	"slices"
)

// For tests in package tables_test, which use test/clusterset.
type CacheHead = cacheHead

const CacheVersion = cacheVersion

var (
	ParseSettings = parseSettings
	Source        = source
	Sources       = sources
)

// EncodeWhole is Encode of the former version.
func EncodeWhole(objs Objects, boot string) ([]byte, error) {
	var whole cacheBody
	for kind, body := range partsOf(objs) {
		content, err := json.Marshal(body())
		if err != nil {
			return nil, err
		}
		if err := whole.addPart(partName(kind, content), func(string) ([]byte, error) { return content, nil }); err != nil {
			return nil, err
		}
	}
	body, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(cacheHead{Version: wholeVersion, Node: objs.Name, Boot: boot, SHA256: sumOf(body)})
	return slices.Concat(head, []byte("\n"), body, []byte("\n")), err
}
