// Checks histories with Porcupine: "check [-seconds N] FILE...". rmqha/testing/sim/histories.py says what a file has.
//
// Prints a line for each file: ok, illegal, unknown (the time was not enough) or forgiven (a queue's history in which
// all nodes that held a message have lost it, which is not judged). The exit status is 1 if a history is illegal, 3 if
// one is unknown.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// Line is an event of a history.
type Line struct {
	Process int    `json:"process"`
	Type    string `json:"type"`
	F       string `json:"f"`
	Value   Value  `json:"value"`
}

// Value has the fields of all operations.
type Value struct {
	Queue  string   `json:"queue"`
	Offset *int     `json:"offset"`
	Items  []string `json:"-"`

	Revision  int64               `json:"revision"`
	Keys      json.RawMessage     `json:"keys"`
	Lease     int64               `json:"lease"`
	Prefix    string              `json:"prefix"`
	Compares  [][]json.RawMessage `json:"compares"`
	Writes    [][]json.RawMessage `json:"writes"`
	Succeeded bool                `json:"succeeded"`
	Gone      bool                `json:"gone"`
}

// Operation is what a client asked for, and what came of it.
type Operation struct {
	f          string
	value      Value
	isAnswered bool
}

func read(path string) ([]Line, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []Line
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<28)
	for scanner.Scan() {
		var line Line
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			return nil, err
		}
		if line.F == "append" || line.F == "read" || line.F == "read-all" {
			if err := json.Unmarshal(line.Value.Keys, &line.Value.Items); err != nil {
				return nil, err
			}
		}
		lines = append(lines, line)
	}
	return lines, scanner.Err()
}

// answers gives the last line of each process.
func answers(lines []Line) map[int]Line {
	found := map[int]Line{}
	for _, line := range lines {
		if line.Type != "invoke" {
			found[line.Process] = line
		}
	}
	return found
}

func check(lines []Line, limit time.Duration) porcupine.CheckResult {
	if len(lines) > 0 && lines[0].F == "init" {
		return checkKeys(lines, limit)
	}
	for _, line := range lines {
		if line.F == "forgiven" {
			return "Forgiven"
		}
	}
	return checkQueues(lines, limit)
}

func main() {
	seconds := flag.Float64("seconds", 60, "how long a history may take")
	flag.Parse()
	status, counts := 0, map[porcupine.CheckResult]int{}
	for _, path := range flag.Args() {
		lines, err := read(path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			os.Exit(2)
		}
		result := check(lines, time.Duration(*seconds*float64(time.Second)))
		counts[result]++
		if result != porcupine.Ok || flag.NArg() <= 10 {
			fmt.Printf("%s: %s\n", path, result)
		}
		if result == porcupine.Illegal {
			status = 1
		} else if result == porcupine.Unknown && status == 0 {
			status = 3
		}
	}
	fmt.Printf("%d ok, %d illegal, %d unknown, %d forgiven\n",
		counts[porcupine.Ok], counts[porcupine.Illegal], counts[porcupine.Unknown], counts["Forgiven"])
	os.Exit(status)
}
