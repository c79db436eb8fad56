package client

import (
	"encoding/json"
	"fmt"

	"github.com/taibox/taibox/api/rest"
)

// encode makes the JSON of a request, if that can have all of it.
func encode(in any) ([]byte, error) {
	err := rest.CheckText(in)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return raw, nil
}
