// What the interop tests ask of the official Go client, one command a process.
//
//	produce NAMESRV TOPIC MODE FIRST COUNT BODY_BYTES   MODE: sync, oneway, async or batch; a line of JSON for each
//	                                                    answer, then nothing; of oneway the last is sent as by sync
//	consume NAMESRV TOPIC GROUP TAGS MEMBERS            so many push consumers of one group; a line of JSON for each
//	                                                    message, until standard input ends
//
// Message 7 has the body "k7|k7|…", the key "k7", one of four tags, and the property "number".
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	sendTimeout = 60 * time.Second
	batchSize   = 16
	never       = 1 << 30
)

var (
	printing sync.Mutex
	lines    = json.NewEncoder(os.Stdout)
)

type answer struct {
	Status string `json:"status"`
	MsgID  string `json:"msg_id"`
}

type received struct {
	Member     int               `json:"member"`
	MsgID      string            `json:"msg_id"`
	Body       []byte            `json:"body"` // Base64
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Properties map[string]string `json:"properties"`
	Reconsumed int32             `json:"reconsumed"`
}

func main() {
	rlog.SetLogLevel("error")
	commands := map[string]func([]string) error{"produce": produce, "consume": consume}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tell(line any) {
	printing.Lock()
	defer printing.Unlock()
	if err := lines.Encode(line); err != nil {
		panic(err)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

func message(topic string, number, size int) *primitive.Message {
	key := fmt.Sprintf("k%d", number)
	body := bytes.Repeat([]byte(key+"|"), size/len(key)+1)[:size]
	message := primitive.NewMessage(topic, body)
	message.WithTag(fmt.Sprintf("tag%d", number%4))
	message.WithKeys([]string{key})
	message.WithProperty("number", strconv.Itoa(number))
	return message
}

func produce(words []string) error {
	topic, mode := words[1], words[2]
	first, count, size := number(words[3]), number(words[4]), number(words[5])
	sender, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{words[0]})),
		producer.WithGroupName("go_producer"),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithRetry(0),
		producer.WithCompressMsgBodyOverHowmuch(never),
	)
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	messages := make([]*primitive.Message, count)
	for i := range messages {
		messages[i] = message(topic, first+i, size)
	}
	if err := send(sender, mode, messages); err != nil {
		return err
	}
	return sender.Shutdown()
}

func send(sender rocketmq.Producer, mode string, messages []*primitive.Message) error {
	switch mode {
	case "async":
		return sendAsync(sender, messages)
	case "batch":
		for len(messages) > 0 {
			size := min(batchSize, len(messages))
			if err := sendSync(sender, messages[:size]...); err != nil {
				return err
			}
			messages = messages[size:]
		}
		return nil
	}
	for i, message := range messages {
		var err error
		// This client does not mark what it sends one-way, so it is answered; and where it closes a connection with
		// answers unread TCP resets it, and what the broker has not read yet is lost. An answer to the last says that
		// all were read.
		if mode == "oneway" && i < len(messages)-1 {
			err = sender.SendOneWay(context.Background(), message)
		} else {
			err = sendSync(sender, message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func sendSync(sender rocketmq.Producer, messages ...*primitive.Message) error {
	result, err := sender.SendSync(context.Background(), messages...)
	if err == nil {
		tell(answer{statuses[result.Status], result.MsgID})
	}
	return err
}

func sendAsync(sender rocketmq.Producer, messages []*primitive.Message) error {
	var answers sync.WaitGroup
	failures := make(chan error, len(messages))
	for _, message := range messages {
		answers.Add(1)
		answered := func(_ context.Context, result *primitive.SendResult, err error) {
			defer answers.Done()
			if err != nil {
				failures <- err
			} else {
				tell(answer{statuses[result.Status], result.MsgID})
			}
		}
		if err := sender.SendAsync(context.Background(), answered, message); err != nil {
			return err
		}
	}
	answers.Wait()
	close(failures)
	return <-failures
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
	primitive.SendUnknownError:      "UNKNOWN_ERROR",
}

func consume(words []string) error {
	for member := 0; member < number(words[4]); member++ {
		if err := join(member, words[0], words[1], words[2], words[3]); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func join(member int, namesrv, topic, group, tags string) error {
	listener, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("member-%d", member)),
		consumer.WithConsumerModel(consumer.Clustering),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	took := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range messages {
			tell(received{
				member, each.MsgId, each.Body, each.GetTags(), each.GetKeys(), each.GetProperties(), each.ReconsumeTimes,
			})
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := listener.Subscribe(topic, selector, took); err != nil {
		return err
	}
	return listener.Start()
}
