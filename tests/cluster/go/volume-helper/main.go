// Command volume-helper makes and removes a volume's folder for local-path-provisioner.
//
// The provisioner runs it in a pod with -a create or -a delete and the folder's path in -p. Any user may write to a
// new folder: hostPath volumes know no fsGroup, and the pods that use them run as users of their own.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	path := flag.String("p", "", "the volume's folder")
	action := flag.String("a", "", "create or delete")
	flag.String("s", "", "size in bytes (not enforced)")
	flag.String("m", "", "volume mode (only Filesystem is asked for)")
	flag.Parse()

	if err := act(*action, *path); err != nil {
		fmt.Fprintln(os.Stderr, "volume-helper:", err)
		os.Exit(1)
	}
}

func act(action, path string) error {
	switch {
	case path == "":
		return fmt.Errorf("-p is missing: the volume's folder")
	case action == "create":
		if err := os.MkdirAll(path, 0o777); err != nil {
			return err
		}
		return os.Chmod(path, 0o777) // MkdirAll's mode is cut by the umask
	case action == "delete":
		return os.RemoveAll(path)
	default:
		return fmt.Errorf("-a %q: must be create or delete", action)
	}
}
