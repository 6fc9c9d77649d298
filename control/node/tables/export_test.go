package tables

// For tests in package tables_test, which use test/clusterset.
type CacheHead = cacheHead

const CacheVersion = cacheVersion

var (
	ParseSettings = parseSettings
	Source        = source
	Sources       = sources
)
