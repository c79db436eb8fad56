package tai_test

import (
	"context"
	"fmt"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/tai"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func ExampleClient() {
	ctx := context.Background()
	d := fake.New()
	c := tai.NewClient(d, d)
	defer c.Close()

	info, err := c.Sandbox().Create(ctx, taisandbox.Spec{ID: "b1", Image: taisandbox.HostFS})
	if err != nil {
		fmt.Println(err)
		return
	}
	images, err := c.Image().ListImages(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.ID, info.State, images[0].Name)
	// Output: b1 created hostfs
}
