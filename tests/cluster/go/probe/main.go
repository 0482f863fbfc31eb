// Command probe is what the cluster's own tests run in pods: a server to be reached and the client that reaches it.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const patience = 5 * time.Second

const usage = `usage: probe COMMAND ARGUMENT...
  serve :PORT        answer every HTTP request with this host's name
  get URL            print what a server answers
  lookup NAME        print a name's addresses
  dial HOST:PORT     open a TCP connection
  write FILE TEXT    write a file
  read FILE          print a file`

// arguments is how many each command takes.
var arguments = map[string]int{"serve": 1, "get": 1, "lookup": 1, "dial": 1, "write": 2, "read": 1}

func main() {
	args := os.Args[1:]
	if len(args) == 0 || len(args)-1 != arguments[args[0]] {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(64)
	}
	answer, err := run(args[0], args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	fmt.Println(answer)
}

func run(command string, args []string) (string, error) {
	switch command {
	case "serve":
		return "", serve(args[0])
	case "get":
		return get(args[0])
	case "lookup":
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		addresses, err := net.DefaultResolver.LookupHost(ctx, args[0])
		return fmt.Sprint(addresses), err
	case "dial":
		connection, err := net.DialTimeout("tcp", args[0], patience)
		if err != nil {
			return "", err
		}
		return "connected", connection.Close()
	case "write":
		return "written", os.WriteFile(args[0], []byte(args[1]), 0o664)
	default:
		content, err := os.ReadFile(args[0])
		return string(content), err
	}
}

func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, name)
	}))
}

func get(url string) (string, error) {
	client := http.Client{Timeout: patience}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
