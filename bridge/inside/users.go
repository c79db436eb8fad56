package inside

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/moby/sys/user"

	"github.com/taibox/taibox/tai/sandbox"
)

// account is who an exec runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// lookupUser finds user[:group] in the box's own files, as Docker does:
// numbers work without them. A file that is not a small regular one counts as
// missing.
func lookupUser(spec string) (account, error) {
	passwd, _ := readSmall("/etc/passwd")
	group, _ := readSmall("/etc/group")
	return findUser(spec, passwd, group)
}

func findUser(spec string, passwd, group []byte) (account, error) {
	if spec == "" {
		spec = "0"
	}
	u, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return account{}, fmt.Errorf("%w: %q: %w", sandbox.ErrUserNotFound, spec, err)
	}
	a := account{home: u.Home}
	ids := append([]int{u.Uid, u.Gid}, u.Sgids...)
	for _, id := range ids {
		if id < 0 || id > math.MaxInt32 {
			return account{}, fmt.Errorf("%w: %q: the box's files give it the number %d", sandbox.ErrUserNotFound, spec, id)
		}
		a.groups = append(a.groups, uint32(id))
	}
	a.uid, a.gid, a.groups = a.groups[0], a.groups[1], a.groups[2:]
	if a.home == "" || strings.ContainsRune(a.home, 0) {
		a.home = "/"
	}
	return a, nil
}
