package main

import (
	"hash/fnv"
	"time"

	"github.com/anishathalye/porcupine"
)

// Queue is what a queue has: its last message, and the queue before that. It never changes.
type Queue struct {
	before *Queue
	key    string
	length int
	hash   uint64
}

func (queue *Queue) add(key string) *Queue {
	hash := fnv.New64a()
	hash.Write([]byte(key))
	return &Queue{queue, key, queue.length + 1, queue.hash*1099511628211 ^ hash.Sum64()}
}

// has tells whether these keys lie there from this offset on.
func (queue *Queue) has(offset int, keys []string) bool {
	end := offset + len(keys)
	if queue.length < end {
		return false
	}
	at := queue
	for at.length > end {
		at = at.before
	}
	for i := len(keys) - 1; i >= 0; i-- {
		if at.key != keys[i] {
			return false
		}
		at = at.before
	}
	return true
}

func stepQueue(state, input, output interface{}) (bool, interface{}) {
	queue, asked, told := state.(*Queue), input.(Operation), output.(Operation)
	switch asked.f {
	case "append":
		at := asked.value.Offset
		if told.isAnswered {
			at = told.value.Offset
		}
		if at != nil && *at != queue.length {
			return false, state
		}
		for _, key := range asked.value.Items {
			queue = queue.add(key)
		}
		return true, queue
	case "read":
		return queue.has(*told.value.Offset, told.value.Items), state
	default: // read-all
		end := *told.value.Offset + len(told.value.Items)
		return queue.length == end && queue.has(*told.value.Offset, told.value.Items), state
	}
}

func equalQueues(one, other interface{}) bool {
	a, b := one.(*Queue), other.(*Queue)
	return a.length == b.length && a.hash == b.hash
}

// checkQueues checks each queue by itself. An append without an answer happened where its message was read, and if
// all was read in the end, and it was not, it never happened.
func checkQueues(lines []Line, limit time.Duration) porcupine.CheckResult {
	told := answers(lines)
	seen, sent, isComplete := map[string]map[string]int{}, map[string]map[string]int{}, map[string]bool{}
	for _, line := range lines {
		value := line.Value
		if seen[value.Queue] == nil {
			seen[value.Queue], sent[value.Queue] = map[string]int{}, map[string]int{}
		}
		if line.Type == "invoke" && line.F == "append" {
			for _, key := range value.Items {
				sent[value.Queue][key]++
			}
		} else if line.Type == "ok" && line.F != "append" {
			for i, key := range value.Items {
				seen[value.Queue][key] = *value.Offset + i
			}
			isComplete[value.Queue] = isComplete[value.Queue] || line.F == "read-all"
		}
	}
	events, ends, next := map[string][]porcupine.Event{}, map[string][]porcupine.Event{}, 0
	ids := map[int]int{}
	for _, line := range lines {
		queue := line.Value.Queue
		isAnswered := told[line.Process].Type == "ok"
		switch {
		case told[line.Process].Type == "fail":
		case line.Type == "invoke" && isAnswered:
			ids[line.Process] = next
			call := porcupine.Event{Kind: porcupine.CallEvent, Value: Operation{line.F, line.Value, true}, Id: next}
			events[queue], next = append(events[queue], call), next+1
		case line.Type == "invoke" && line.F == "append": // each message by itself: a batch may be cut
			for _, key := range line.Value.Items {
				value := Value{Queue: queue, Items: []string{key}}
				if offset, isThere := seen[queue][key]; isThere && sent[queue][key] == 1 {
					value.Offset = &offset
				} else if isComplete[queue] && !isThere {
					continue
				}
				call := porcupine.Event{Kind: porcupine.CallEvent, Value: Operation{line.F, value, false}, Id: next}
				end := porcupine.Event{Kind: porcupine.ReturnEvent, Value: Operation{line.F, value, false}, Id: next}
				events[queue], ends[queue], next = append(events[queue], call), append(ends[queue], end), next+1
			}
		case line.Type == "ok":
			value := Operation{line.F, line.Value, true}
			end := porcupine.Event{Kind: porcupine.ReturnEvent, Value: value, Id: ids[line.Process]}
			events[queue] = append(events[queue], end)
		}
	}
	model := porcupine.Model{
		Init:  func() interface{} { return &Queue{} },
		Step:  stepQueue,
		Equal: equalQueues,
	}
	worst := porcupine.Ok
	for queue := range events {
		result := porcupine.CheckEventsTimeout(model, append(events[queue], ends[queue]...), limit)
		if result == porcupine.Illegal || (result == porcupine.Unknown && worst == porcupine.Ok) {
			worst = result
		}
	}
	return worst
}
