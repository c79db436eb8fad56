package image

// Bounds of what an archive may hold. They are far beyond any image that is
// meant to be run, and near enough to keep a malicious one from taking the
// machine's memory or, with a few compressed bytes, its disk.
const (
	// maxMetadataBytes bounds each index, manifest and configuration.
	maxMetadataBytes = 8 << 20
	// maxArchiveEntries bounds the files of an archive.
	maxArchiveEntries = 10_000
	// maxManifests bounds the manifests and indexes looked at for one archive.
	maxManifests = 1000
	// maxIndexDepth bounds indexes within indexes.
	maxIndexDepth = 4
	// maxLayers bounds the layers of an image. An overlay's options have to
	// fit a page, which this many just do.
	maxLayers = 127
	// maxLayerEntries bounds the files of a layer.
	maxLayerEntries = 1 << 20
	// maxLayerNameBytes bounds the names in a layer, all together.
	maxLayerNameBytes = 256 << 20
	// maxLayerHoles bounds what a commit writes out as zeros of files with
	// holes, all together.
	maxLayerHoles = 16 << 30

	// What is compressed may grow to expandFree bytes whatever its size, and
	// beyond that to expandRatio times its size.
	expandFree  = 1 << 30
	expandRatio = 200

	// maxZstdWindow bounds the memory that a zstd stream may ask for; it is
	// what zstd's own --long takes.
	maxZstdWindow = 128 << 20
)
