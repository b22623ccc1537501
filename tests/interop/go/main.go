package main

import (
	"fmt"
	"os"
)

func main() {
	arguments := os.Args[1:]
	switch {
	case len(arguments) == 2 && arguments[0] == "check":
		os.Exit(check(arguments[1]))
	case len(arguments) == 3 && arguments[0] == "converse":
		converse(arguments[1], arguments[2])
	case len(arguments) == 2 && arguments[0] == "serve":
		serve(arguments[1])
	default:
		fmt.Fprintln(os.Stderr, "usage: interop check FOLDER | converse URL KEY | serve KEY")
		os.Exit(2)
	}
}
