package sandbox

// Labels of the boxes that a server manages. A driver gives them to what it
// finds of a box whose own are lost.
const (
	LabelManagedBy = "managed-by" // ManagedBy
	LabelInstance  = "taibox-instance"

	ManagedBy = "taibox-sandbox"
)
