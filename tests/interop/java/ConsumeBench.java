package rmqha;

import com.alibaba.fastjson.JSON;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.ClusterInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The load of benchmarks/consumers.py: official push consumers, one of each group, and what they measured as one line of
 * JSON. Each message says its number, and it is counted how often each group got it.
 *
 * <pre>
 * ConsumeBench NAMESRV TOPIC GROUP GROUPS BODY_BYTES WARM_UP COUNT IN_FLIGHT
 * </pre>
 *
 * With COUNT 0 the topic gets WARM_UP messages: each queue the same number, in their order, and nobody consumes. With
 * IN_FLIGHT 0 the groups read far behind: the first group the first part of each queue, and so on, so that all parts
 * together are the queue. They go on after their parts until each has read its own. Otherwise the groups begin at the
 * end, and so many sent messages have not reached all groups yet.
 *
 * Each prints "ready" when the warm-up is over, and begins to measure.
 */
public final class ConsumeBench {
    private static final int TIMEOUT_MS = 30_000;
    private static final int PATIENCE_MS = 120_000;
    private static final int SENT_TOGETHER = 64;
    private static final int NUMBER_BYTES = 24;

    private final String namesrv;
    private final String topic;
    private final String group;
    private final int groups;
    private final byte[] body;
    private final int warmUp;
    private final int count;
    private final int inFlight;
    private final DefaultMQProducer producer = new DefaultMQProducer("rmqha_consume_bench");
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();

    /** How often a group got a message: of the group's part only if it is far behind. */
    private AtomicIntegerArray times;
    private long[] nanos = new long[0];
    private final AtomicInteger taken = new AtomicInteger();
    /** All messages that came, also those after a group's part. */
    private final AtomicLong received = new AtomicLong();
    private final AtomicLong wanted = new AtomicLong();
    private final AtomicInteger duplicates = new AtomicInteger();
    private final AtomicInteger foreign = new AtomicInteger();
    private Semaphore places;
    private AtomicIntegerArray missing;
    private long perQueue;
    private int queues;
    private volatile long readyAt;
    private volatile long readyWith;

    private ConsumeBench(String[] args) {
        namesrv = args[0];
        topic = args[1];
        group = args[2];
        groups = Integer.parseInt(args[3]);
        body = new byte[Integer.parseInt(args[4])];
        new Random(1).nextBytes(body);
        warmUp = Integer.parseInt(args[5]);
        count = Integer.parseInt(args[6]);
        inFlight = Integer.parseInt(args[7]);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setInstanceName("producer");
    }

    public static void main(String[] args) throws Exception {
        ConsumeBench bench = new ConsumeBench(args);
        bench.producer.start();
        List<MessageQueue> all = bench.producer.fetchPublishMessageQueues(bench.topic);
        all.sort(null);
        bench.queues = all.size();
        Map<String, Object> report;
        if (bench.count == 0) {
            report = bench.fill(all);
        } else if (bench.inFlight == 0) {
            report = bench.behind(all);
        } else {
            report = bench.atTheHead(all);
        }
        System.out.println(JSON.toJSONString(report));
        System.out.flush();
        Runtime.getRuntime().halt(0); // the client's own threads need not be waited for
    }

    // -- filling -----------------------------------------------------------------------------------------------

    private Map<String, Object> fill(List<MessageQueue> all) throws Exception {
        AtomicInteger stored = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        long start = System.nanoTime();
        for (MessageQueue queue : all) {
            Thread thread = new Thread(() -> {
                try {
                    stored.addAndGet(fillOne(queue));
                } catch (Exception failure) {
                    failure.printStackTrace();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("stored", stored.get());
        report.put("seconds", (System.nanoTime() - start) / 1e9);
        return report;
    }

    private int fillOne(MessageQueue queue) throws Exception {
        int each = warmUp / queues;
        for (int from = 0; from < each; from += SENT_TOGETHER) {
            List<Message> batch = new ArrayList<>();
            for (int at = from; at < Math.min(each, from + SENT_TOGETHER); at++) {
                batch.add(message((long) at * queues + queue.getQueueId()));
            }
            SendResult result = producer.send(batch, queue);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
        }
        return each;
    }

    // -- consuming ---------------------------------------------------------------------------------------------

    private Map<String, Object> behind(List<MessageQueue> all) throws Exception {
        perQueue = count / queues;
        long[] starts = new long[groups];
        for (int number = 0; number < groups; number++) {
            starts[number] = partStart(number);
        }
        times = new AtomicIntegerArray((int) (perQueue * queues));
        beginAt(all, (number, queue) -> starts[number]);
        startConsumers((number, message) -> {
            long offset = message.getQueueOffset();
            if (numberOf(message) != offset * queues + message.getQueueId()) {
                foreign.incrementAndGet();
            }
            if (offset >= starts[number] && offset < partStart(number + 1)) {
                count((int) (offset * queues + message.getQueueId()));
            }
        });
        return measured(warmUp, perQueue * queues, 0);
    }

    /** The first offset of each queue that is a group's own. */
    private long partStart(int number) {
        return perQueue * number / groups;
    }

    private Map<String, Object> atTheHead(List<MessageQueue> all) throws Exception {
        int total = warmUp + count;
        times = new AtomicIntegerArray(total * groups);
        nanos = new long[count * groups];
        missing = new AtomicIntegerArray(total);
        places = new Semaphore(inFlight);
        beginAt(all, (number, queue) -> producer.maxOffset(queue));
        startConsumers((number, message) -> {
            long came = System.nanoTime();
            int sent = (int) numberOf(message);
            if (sent < 0 || sent >= total) {
                foreign.incrementAndGet();
                return;
            }
            if (sent >= warmUp) {
                nanos[taken.getAndIncrement() % nanos.length] = came - ByteBuffer.wrap(message.getBody()).getLong(16);
            }
            count(sent * groups + number);
            if (missing.incrementAndGet(sent) == groups) {
                places.release();
            }
        });
        send(0, warmUp);
        return measured(0, (long) count * groups, total);
    }

    private void send(int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            places.acquire();
            producer.send(message(number), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    if (result.getSendStatus() != SendStatus.SEND_OK) {
                        onException(new IllegalStateException(result.toString()));
                    }
                }

                @Override
                public void onException(Throwable failure) {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
        }
        places.acquire(inFlight);
        places.release(inFlight);
    }

    private void count(int place) {
        wanted.incrementAndGet();
        if (times.incrementAndGet(place) > 1) {
            duplicates.incrementAndGet();
        }
    }

    /** Waits for ``first`` messages, says "ready", and measures until the groups have their parts, or sends until then. */
    private Map<String, Object> measured(long first, long all, int sent) throws Exception {
        await(() -> received.get() >= first);
        long before = pulled();
        wanted.addAndGet(sent == 0 ? 0 : -wanted.get());
        System.out.println("ready");
        System.out.flush();
        long start = System.nanoTime();
        if (sent > 0) {
            send(warmUp, sent);
        }
        await(() -> wanted.get() - duplicates.get() >= all);
        double seconds = (System.nanoTime() - start) / 1e9;
        long consumed = pulled() - before;
        int never = 0;
        for (int place = 0; place < times.length(); place++) {
            never += times.get(place) == 0 ? 1 : 0;
        }
        Arrays.sort(nanos);
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("consumed", consumed);
        report.put("tps", consumed / seconds);
        report.put("p50", nanos.length == 0 ? 0 : nanos[nanos.length / 2] / 1e6);
        report.put("p99", nanos.length == 0 ? 0 : nanos[(int) (nanos.length * 0.99)] / 1e6);
        report.put("missing", never);
        report.put("duplicates", duplicates.get());
        report.put("foreign", foreign.get());
        return report;
    }

    private interface Condition {
        boolean isTrue();
    }

    /** Waits, as long as messages come. */
    private void await(Condition condition) throws Exception {
        long seen = received.get();
        long since = System.nanoTime();
        while (!condition.isTrue()) {
            Thread.sleep(1);
            if (received.get() != seen) {
                seen = received.get();
                since = System.nanoTime();
            } else if (System.nanoTime() - since > PATIENCE_MS * 1_000_000L) {
                throw new IllegalStateException("no message came for " + PATIENCE_MS + " ms, after " + seen);
            }
        }
    }

    /** All messages that the broker has given so far, also those that wait for their listener. */
    private long pulled() {
        long waiting = 0;
        for (DefaultMQPushConsumer consumer : consumers) {
            for (ProcessQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().values()) {
                waiting += queue.getMsgCount().get();
            }
        }
        return received.get() + waiting;
    }

    private interface Place {
        long of(int number, MessageQueue queue) throws Exception;
    }

    private void beginAt(List<MessageQueue> all, Place place) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin");
        admin.start();
        ClusterInfo cluster = admin.examineBrokerClusterInfo();
        for (MessageQueue queue : all) {
            String address = cluster.getBrokerAddrTable().get(queue.getBrokerName()).selectBrokerAddr();
            for (int number = 0; number < groups; number++) {
                admin.updateConsumeOffset(address, group + "-" + number, queue, place.of(number, queue));
            }
        }
        admin.shutdown();
    }

    private interface Listener {
        void came(int number, MessageExt message);
    }

    private void startConsumers(Listener listener) throws Exception {
        for (int each = 0; each < groups; each++) {
            int number = each;
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group + "-" + number);
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName("consumer-" + number);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeMessageBatchMaxSize(32);
            consumer.setConsumeThreadMin(2);
            consumer.setConsumeThreadMax(2);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    listener.came(number, message);
                }
                received.addAndGet(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumers.add(consumer);
            consumer.start();
        }
    }

    // -- messages ----------------------------------------------------------------------------------------------

    private Message message(long number) {
        byte[] content = body.clone();
        ByteBuffer.wrap(content).putLong(number).putLong(~number).putLong(System.nanoTime());
        return new Message(topic, "Tag" + number % 4, "", content);
    }

    /** A message's number; -1 if its body is not what was sent. */
    private long numberOf(MessageExt message) {
        byte[] content = message.getBody();
        if (content.length != body.length) {
            return -1;
        }
        ByteBuffer buffer = ByteBuffer.wrap(content);
        long number = buffer.getLong();
        boolean isSent = buffer.getLong() == ~number
            && Arrays.equals(content, NUMBER_BYTES, content.length, body, NUMBER_BYTES, body.length);
        return isSent ? number : -1;
    }
}
