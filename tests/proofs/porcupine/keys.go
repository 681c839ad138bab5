package main

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Key is a key of a coordinator.
type Key struct {
	value        string
	created, mod int64
	lease        int64
}

// Keys is what a coordinator has. It never changes.
type Keys struct {
	revision int64
	keys     map[string]Key
	leases   map[int64]bool
	isOver   bool // whether the clients have gone: what was not answered need not have happened
}

func (state *Keys) copy() *Keys {
	copied := &Keys{state.revision, map[string]Key{}, map[int64]bool{}, state.isOver}
	for name, key := range state.keys {
		copied.keys[name] = key
	}
	for lease := range state.leases {
		copied.leases[lease] = true
	}
	return copied
}

func text(raw json.RawMessage) string {
	var found string
	_ = json.Unmarshal(raw, &found)
	return found
}

func number(raw json.RawMessage) int64 {
	var found int64
	_ = json.Unmarshal(raw, &found)
	return found
}

func (state *Keys) holds(compare []json.RawMessage) bool {
	key, isThere := state.keys[text(compare[0])]
	switch text(compare[1]) {
	case "VALUE":
		return isThere && key.value == text(compare[2])
	case "CREATE":
		return key.created == number(compare[2])
	default:
		return key.mod == number(compare[2])
	}
}

func (state *Keys) wants(value Value) bool {
	for _, compare := range value.Compares {
		if !state.holds(compare) {
			return false
		}
	}
	return true
}

func (state *Keys) isGone(value Value) bool {
	for _, write := range value.Writes {
		if len(write) == 3 && number(write[2]) != 0 && !state.leases[number(write[2])] {
			return true
		}
	}
	return false
}

func (state *Keys) write(value Value) *Keys {
	next, isChanged := state.copy(), false
	for _, write := range value.Writes {
		name := text(write[0])
		before, isThere := state.keys[name]
		if len(write) == 1 {
			delete(next.keys, name)
			isChanged = isChanged || isThere
			continue
		}
		created := state.revision + 1
		if isThere {
			created = before.created
		}
		next.keys[name], isChanged = Key{text(write[1]), created, state.revision + 1, number(write[2])}, true
	}
	if isChanged {
		next.revision++
	}
	return next
}

func (state *Keys) end(lease int64) *Keys {
	next, isChanged := state.copy(), false
	delete(next.leases, lease)
	for name, key := range state.keys {
		if key.lease == lease {
			delete(next.keys, name)
			isChanged = true
		}
	}
	if isChanged {
		next.revision++
	}
	return next
}

func parseKeys(raw json.RawMessage) map[string]Key {
	var parsed map[string][]json.RawMessage
	_ = json.Unmarshal(raw, &parsed)
	found := map[string]Key{}
	for name, key := range parsed {
		found[name] = Key{text(key[0]), number(key[1]), number(key[2]), number(key[3])}
	}
	return found
}

func (state *Keys) shows(value Value) bool {
	told, count := parseKeys(value.Keys), 0
	for name, key := range state.keys {
		if strings.HasPrefix(name, value.Prefix) {
			count++
			if other, isThere := told[name]; !isThere || other != key {
				return false
			}
		}
	}
	return count == len(told) && value.Revision == state.revision
}

func stepKeys(before, input, output interface{}) (bool, interface{}) {
	state, asked, told := before.(*Keys), input.(Operation), output.(Operation)
	value := told.value
	switch asked.f {
	case "over":
		next := state.copy()
		next.isOver = true
		return true, next
	case "lease-ends":
		if state.isOver {
			return true, state
		}
		return state.leases[value.Lease], state.end(value.Lease)
	case "grant":
		next := state.copy()
		next.leases[value.Lease] = true
		return !state.leases[value.Lease], next
	case "keep-alive":
		return state.leases[value.Lease] != value.Gone, state
	case "revoke":
		if !told.isAnswered && state.isOver {
			return true, state
		}
		return told.isAnswered || state.leases[value.Lease], state.end(value.Lease)
	case "range":
		return state.shows(value), state
	}
	if !told.isAnswered {
		if state.isOver {
			return true, state
		}
		return state.wants(value) && !state.isGone(value), state.write(value)
	}
	if !state.wants(value) {
		return !value.Succeeded && !value.Gone && value.Revision == state.revision, state
	}
	if state.isGone(value) {
		return value.Gone, state
	}
	next := state.write(value)
	return value.Succeeded && !value.Gone && value.Revision == next.revision, next
}

func equalKeys(one, other interface{}) bool {
	a, b := one.(*Keys), other.(*Keys)
	if a.revision != b.revision || a.isOver != b.isOver || len(a.keys) != len(b.keys) || len(a.leases) != len(b.leases) {
		return false
	}
	for name, key := range a.keys {
		if b.keys[name] != key {
			return false
		}
	}
	for lease := range a.leases {
		if !b.leases[lease] {
			return false
		}
	}
	return true
}

// checkKeys checks all keys together: a transaction writes several, and they share a revision. That a lease ends is an
// operation that nobody answers. What nobody answers may happen until all clients have gone, and need not.
func checkKeys(lines []Line, limit time.Duration) porcupine.CheckResult {
	first := &Keys{lines[0].Value.Revision, parseKeys(lines[0].Value.Keys), map[int64]bool{}, false}
	told := answers(lines)
	var events, ends []porcupine.Event
	next, ids := 0, map[int]int{}
	call := func(operation Operation) int {
		events = append(events, porcupine.Event{Kind: porcupine.CallEvent, Value: operation, Id: next})
		next++
		return next - 1
	}
	forEver := func(operation Operation) {
		id := call(operation)
		ends = append(ends, porcupine.Event{Kind: porcupine.ReturnEvent, Value: operation, Id: id})
	}
	for _, line := range lines {
		answer := told[line.Process]
		operation := Operation{line.F, line.Value, answer.Type == "ok"}
		switch {
		case line.F == "init" || answer.Type == "fail":
		case line.Type == "invoke" && answer.Type == "ok":
			ids[line.Process] = call(operation)
			if line.F == "grant" {
				forEver(Operation{"lease-ends", answer.Value, false})
			}
		case line.Type == "invoke" && (line.F == "transact" || line.F == "revoke"):
			forEver(operation)
		case line.Type == "ok":
			end := porcupine.Event{Kind: porcupine.ReturnEvent, Value: operation, Id: ids[line.Process]}
			events = append(events, end)
		}
	}
	over := Operation{"over", Value{}, true}
	events = append(events, porcupine.Event{Kind: porcupine.ReturnEvent, Value: over, Id: call(over)})
	model := porcupine.Model{
		Init:  func() interface{} { return first },
		Step:  stepKeys,
		Equal: equalKeys,
	}
	return porcupine.CheckEventsTimeout(model, append(events, ends...), limit)
}
