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

const (
	patience = 5 * time.Second
	// For hosts that do not start together.
	meeting = time.Minute
)

const usage = `usage: probe COMMAND ARGUMENT...
  serve :PORT        answer every HTTP request with this host's name
  get URL            print what a server answers
  lookup NAME        print a name's addresses
  meet :PORT A B     answer there until the hosts A and B, one of them this one, have asked, and ask them
  dial HOST:PORT     open a TCP connection
  write FILE TEXT    write a file
  read FILE          print a file`

// arguments is how many each command takes.
var arguments = map[string]int{"serve": 1, "get": 1, "lookup": 1, "meet": 3, "dial": 1, "write": 2, "read": 1}

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
	case "meet":
		return "met", meet(args[0], args[1:])
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

// meet ends once every host has answered and has asked: none is gone before the others have found it.
func meet(address string, hosts []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), meeting)
	defer cancel()
	met := make(chan string)
	server := http.Server{Addr: address, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		select {
		case met <- "asked by " + from:
		case <-ctx.Done():
		}
	})}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	for _, host := range hosts {
		go func() {
			for ctx.Err() == nil {
				if _, err := get("http://" + host + address); err == nil {
					met <- "answered by " + host
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	for seen := map[string]bool{}; len(seen) < 2*len(hosts); {
		select {
		case what := <-met:
			seen[what] = true
		case err := <-failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%v have not all met within %v: %v", hosts, meeting, seen)
		}
	}
	return server.Shutdown(ctx)
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
