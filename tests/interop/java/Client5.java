import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The remoting client of RocketMQ 5.x. It is compiled for 5.x only.
 *
 * <pre>
 * Client5 send NAMESRV TOPIC COUNT BATCH        sends COUNT messages, BATCH at a time (1: each by itself)
 * Client5 delay NAMESRV TOPIC COUNT             sends COUNT messages with delay level 1
 * Client5 compressed NAMESRV TOPIC              sends a message for each way of compressing, and prints these
 * Client5 timer NAMESRV TOPIC COUNT SECONDS     sends COUNT messages that are due in SECONDS, and one more, which it takes back
 * Client5 transaction NAMESRV TOPIC GROUP COUNT sends COUNT transactions in turn committed, rolled back, and committed when the
 *                                               broker asks; then consumes as many as were committed
 * Client5 consume NAMESRV TOPIC GROUP COUNT     prints the bodies of COUNT messages, or of those that come in two minutes, sorted
 * Client5 orderly NAMESRV TOPIC GROUP COUNT     prints QUEUE:BODY for each, in the order in which they were consumed; each
 *                                               message fails the first time
 * Client5 failing NAMESRV TOPIC GROUP COUNT     prints BODY:TIMES for each try, sorted: TIMES is how often it came before. Each of
 *                                               COUNT messages fails each time, and is tried two times more
 * </pre>
 *
 * The last line that it prints is what was asked for, words with spaces between them.
 */
public final class Client5 {
    private static final long SECONDS = 120;
    private static final int TIMEOUT_MS = 60_000;

    private Client5() {
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the process alive
        }
        System.exit(0);
    }

    private static void run(String[] args) throws Exception {
        switch (args[0]) {
            case "send":
                send(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]));
                break;
            case "delay":
                delay(args[1], args[2], Integer.parseInt(args[3]));
                break;
            case "compressed":
                sendCompressed(args[1], args[2]);
                break;
            case "timer":
                timer(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]));
                break;
            case "transaction":
                transaction(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            case "failing":
                fail(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            default:
                consume(args[1], args[2], args[3], Integer.parseInt(args[4]), args[0].equals("orderly"));
        }
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1_000);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static void fail(String nameServer, String topic, String group, int count) throws Exception {
        List<String> tries = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(3 * count);
        DefaultMQPushConsumer consumer = consumer(nameServer, topic, group);
        consumer.setMaxReconsumeTimes(2);
        consumer.setAwaitTerminationMillisWhenShutdown(SECONDS * 1_000); // until the last tries are sent back
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) { // one, by default
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                tries.add(body + ":" + message.getReconsumeTimes());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        left.await(SECONDS, TimeUnit.SECONDS);
        consumer.shutdown();
        Collections.sort(tries);
        System.out.println(String.join(" ", tries));
    }

    private static <P extends DefaultMQProducer> P started(P producer, String nameServer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setSendMsgTimeout((int) SECONDS * 1_000);
        producer.start();
        return producer;
    }

    private static Message message(String topic, int number) {
        return new Message(topic, "tag", "key" + number, ("body" + number).getBytes(StandardCharsets.UTF_8));
    }

    private static void delay(String nameServer, String topic, int count) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("P5Delay"), nameServer);
        int sent = 0;
        for (int i = 0; i < count; i++) {
            Message delayed = message(topic, i);
            delayed.setDelayTimeLevel(1);
            sent += producer.send(delayed).getSendStatus() == SendStatus.SEND_OK ? 1 : 0;
        }
        producer.shutdown();
        System.out.println(sent);
    }

    private static void sendCompressed(String nameServer, String topic) throws Exception {
        List<String> sent = new ArrayList<>();
        for (CompressionType type : CompressionType.values()) {
            System.setProperty("rocketmq.message.compressType", type.name());
            DefaultMQProducer producer = started(new DefaultMQProducer("P5" + type), nameServer);
            producer.setCompressMsgBodyOverHowmuch(100);
            producer.setCompressType(type);
            byte[] body = String.join(" ", Collections.nCopies(500, type.name())).getBytes(StandardCharsets.UTF_8);
            producer.send(new Message(topic, type.name(), "key", body));
            producer.shutdown();
            sent.add(type.name());
        }
        System.out.println(String.join(" ", sent));
    }

    private static void timer(String nameServer, String topic, int count, int seconds) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("P5Timer"), nameServer);
        int sent = 0;
        for (int i = 0; i < count; i++) {
            Message timed = message(topic, i);
            switch (i % 3) {
                case 0:
                    timed.setDelayTimeSec(seconds);
                    break;
                case 1:
                    timed.setDelayTimeMs(seconds * 1_000L);
                    break;
                default:
                    timed.setDeliverTimeMs(System.currentTimeMillis() + seconds * 1_000L);
            }
            sent += producer.send(timed).getSendStatus() == SendStatus.SEND_OK ? 1 : 0;
        }
        Message takenBack = message(topic, count);
        takenBack.setDelayTimeSec(seconds);
        producer.recallMessage(topic, producer.send(takenBack).getRecallHandle());
        producer.shutdown();
        System.out.println(sent);
    }

    private static void transaction(String nameServer, String topic, String group, int count) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("P5Transaction");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                switch ((Integer) number % 3) {
                    case 0:
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case 1:
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        started(producer, nameServer);
        for (int i = 0; i < count; i++) {
            producer.sendMessageInTransaction(message(topic, i), i);
        }
        consume(nameServer, topic, group, count - (count + 1) / 3, false);
        producer.shutdown();
    }

    private static void send(String nameServer, String topic, int count, int batch) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("P5"), nameServer);
        int sent = 0;
        List<Message> waiting = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            waiting.add(message(topic, i));
            if (waiting.size() == batch || i == count - 1) {
                SendStatus status =
                    (batch == 1 ? producer.send(waiting.get(0)) : producer.send(waiting)).getSendStatus();
                sent += status == SendStatus.SEND_OK ? waiting.size() : 0;
                waiting = new ArrayList<>();
            }
        }
        producer.shutdown();
        System.out.println(sent);
    }

    private static void consume(String nameServer, String topic, String group, int count, boolean isOrderly)
        throws Exception {
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(nameServer, topic, group);
        Set<String> failed = ConcurrentHashMap.newKeySet();
        if (isOrderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) { // one, by default
                    if (failed.add(message.getMsgId())) {
                        context.setSuspendCurrentQueueTimeMillis(10);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    bodies.add(message.getQueueId() + ":" + new String(message.getBody(), StandardCharsets.UTF_8));
                    left.countDown();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                    left.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        left.await(SECONDS, TimeUnit.SECONDS);
        consumer.shutdown();
        List<String> sorted = new ArrayList<>(bodies);
        if (!isOrderly) {
            Collections.sort(sorted);
        }
        System.out.println(String.join(" ", sorted));
    }
}
