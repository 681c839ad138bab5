package rmqha;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * Producers and consumers of the official client at work together, as a JSON object says:
 *
 * <pre>
 * topics     {TOPIC: QUEUES}: those whose queues must all be some consumer's before anything is sent
 * consumers  a list of {name, group, topic, kind: concurrent|orderly|broadcasting|lite-pull|lite-assign,
 *            [expression], [max_reconsume], [pause_ms]}; one that pauses with each message has few at hand
 * producers  a list of {name, topic, kind: sync|async|one-way|batch|delay|transaction|orderly, count,
 *            [body_bytes], [properties], [delays], [pause_ms], [timeout_ms]}; they send at the same time. With
 *            count 0 it sends until told to stop, also when sends fail (sync, delay, transaction, orderly)
 * until      a list of [CONSUMERS, COUNT]: done when these have so many messages together, each list of them
 * seconds    done when they are over; also when told to stop
 * [log]      a file with a line for each message consumed, each one sent that was answered SEND_OK, and each check
 *            of a transaction ("checks-of-NAME"): the client's name, where the broker says that it is (queue id and
 *            queue offset), and the KEYS
 * [ready]    a file that is there as soon as the consumers have the queues of "topics"
 * </pre>
 *
 * A message's property "fail" makes its consumer fail with it: "once", "always", or never.
 */
final class Clients {
    private static final int SMALL_BODY_BYTES = 100;
    private static final int BATCH = 8;
    private static final int FEW = 16;
    private static final String FAIL = "fail";
    private static final long READY_SECONDS = 300;
    /** What a client waits for an answer, unless its plan says otherwise: a busy machine is no trouble. */
    private static final int PATIENCE_MS = 120_000;
    /** What it waits for a route, or a list of consumers: while a broker is killed, others are asked after this. */
    private static final int API_TIMEOUT_MS = 20_000;
    /** What follows the last message that was waited for is there by then: nothing may. */
    private static final long QUIET_MS = 1_000;
    private static final int PAUSE_AFTER_FAILURE_MS = 200;

    private final String nameServer;
    private final JSONObject plan;
    private final PrintWriter log;
    private final Map<String, List<Map<String, Object>>> sent = new ConcurrentHashMap<>();
    private final Map<String, List<Map<String, Object>>> received = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPushConsumer> pushConsumers = new LinkedHashMap<>();
    private final Set<String> failedOnce = ConcurrentHashMap.newKeySet();
    private final List<Runnable> shutdowns = new ArrayList<>();
    private final List<String> troubles = Collections.synchronizedList(new ArrayList<>());

    Clients(String nameServer, String planFile) throws IOException {
        this.nameServer = nameServer;
        plan = JSON.parseObject(new String(Files.readAllBytes(Paths.get(planFile)), StandardCharsets.UTF_8));
        String file = plan.getString("log");
        log = file == null ? null : new PrintWriter(Files.newBufferedWriter(Paths.get(file)));
    }

    /** All that was sent and received, by the names of clients. */
    Map<String, Object> run() throws Exception {
        for (JSONObject consumer : objects("consumers")) {
            received.put(consumer.getString("name"), Collections.synchronizedList(new ArrayList<>()));
            if (consumer.getString("kind").startsWith("lite-")) {
                startLitePull(consumer);
            } else {
                startPush(consumer);
            }
        }
        waitForAssignments();
        if (plan.containsKey("ready")) {
            Files.createFile(Paths.get(plan.getString("ready")));
        }
        List<Thread> threads = new ArrayList<>();
        for (JSONObject producer : objects("producers")) {
            Thread thread = new Thread(() -> runProducer(producer), producer.getString("name"));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        waitUntilDone();
        Collections.reverse(shutdowns);
        shutdowns.forEach(Runnable::run);
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("sent", sent);
        report.put("received", received);
        report.put("troubles", troubles);
        return report;
    }

    private List<JSONObject> objects(String key) {
        JSONArray array = plan.getJSONArray(key);
        return array == null ? Collections.emptyList() : array.toJavaList(JSONObject.class);
    }

    private void configure(ClientConfig client, String instance) {
        client.setNamesrvAddr(nameServer);
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        client.setInstanceName(instance);
        client.setPollNameServerInterval(1_000);
        client.setHeartbeatBrokerInterval(1_000);
        client.setPersistConsumerOffsetInterval(1_000);
    }

    // -- consumers ----------------------------------------------------------------------------------------------

    private void startPush(JSONObject spec) throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(spec.getString("group"));
        String name = spec.getString("name");
        String topic = spec.getString("topic");
        configure(consumer, name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(spec.getIntValue("max_reconsume") > 0 ? spec.getIntValue("max_reconsume") : -1);
        consumer.setSuspendCurrentQueueTimeMillis(200);
        int pauseMs = spec.getIntValue("pause_ms");
        if (pauseMs > 0) {
            consumer.setPullThresholdForQueue(FEW);
        }
        consumer.subscribe(topic, expression(spec));
        if (spec.getString("kind").equals("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (spec.getString("kind").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                all(messages, name) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                Driver.sleepMillis(pauseMs);
                return all(messages, name)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        shutdowns.add(consumer::shutdown);
        pushConsumers.put(name, consumer);
    }

    private static List<MessageQueue> queuesOf(DefaultMQPushConsumer consumer, String topic) {
        List<MessageQueue> queues = new ArrayList<>();
        for (MessageQueue queue :
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(topic)) {
                queues.add(queue);
            }
        }
        return queues;
    }

    private void startLitePull(JSONObject spec) throws MQClientException {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(spec.getString("group"));
        String name = spec.getString("name");
        String topic = spec.getString("topic");
        configure(consumer, name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommitIntervalMillis(1_000);
        consumer.setPollTimeoutMillis(200);
        if (spec.getString("kind").equals("lite-assign")) {
            consumer.start();
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seekToBegin(queue);
            }
        } else {
            consumer.subscribe(topic, expression(spec));
            consumer.start();
        }
        Thread poller = new Thread(() -> {
            while (consumer.isRunning()) {
                all(consumer.poll(), name);
            }
        }, name);
        poller.setDaemon(true);
        poller.start();
        shutdowns.add(consumer::shutdown);
    }

    private static String expression(JSONObject spec) {
        return spec.containsKey("expression") ? spec.getString("expression") : "*";
    }

    /** Takes messages; false if one of them is to fail. */
    private boolean all(List<MessageExt> messages, String consumer) {
        boolean succeeded = true;
        for (MessageExt message : messages) {
            boolean fails = fails(message, consumer);
            Map<String, Object> portrait = Driver.portrait(message);
            portrait.put("received_at", System.currentTimeMillis());
            portrait.put("failed", fails);
            received.get(consumer).add(portrait);
            note(consumer, message.getKeys(), message.getQueueId(), message.getQueueOffset());
            succeeded &= !fails;
        }
        return succeeded;
    }

    private void note(String client, String keys, int queueId, long queueOffset) {
        if (log != null) {
            synchronized (log) {
                log.println(client + " " + queueId + " " + queueOffset + " " + keys);
                log.flush();
            }
        }
    }

    private boolean fails(MessageExt message, String consumer) {
        String how = message.getUserProperty(FAIL);
        return "always".equals(how) || "once".equals(how) && failedOnce.add(consumer + " " + message.getKeys());
    }

    /** Until each topic's queues are shared out among the push consumers of each group, none of them to two. */
    private void waitForAssignments() {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(READY_SECONDS);
        String missing;
        while ((missing = missing()) != null) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not all queues of this topic have one consumer of the group: " + missing);
            }
            Driver.sleepMillis(50);
        }
    }

    private String missing() {
        JSONObject topics = plan.getJSONObject("topics");
        Map<String, List<MessageQueue>> queues = new TreeMap<>();
        for (JSONObject consumer : objects("consumers")) {
            String name = consumer.getString("name");
            String topic = consumer.getString("topic");
            if (pushConsumers.containsKey(name) && topics.containsKey(topic)) {
                List<MessageQueue> own = queuesOf(pushConsumers.get(name), topic);
                if (own.isEmpty()) {
                    return topic + " " + name;
                }
                String sharing = consumer.getString("kind").equals("broadcasting") ? name : consumer.getString("group");
                queues.computeIfAbsent(topic + " " + sharing, k -> new ArrayList<>()).addAll(own);
            }
        }
        for (Map.Entry<String, List<MessageQueue>> entry : queues.entrySet()) {
            int wanted = topics.getIntValue(entry.getKey().split(" ")[0]);
            if (entry.getValue().size() != wanted || new HashSet<>(entry.getValue()).size() != wanted) {
                return entry.getKey();
            }
        }
        return null;
    }

    private void waitUntilDone() {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(plan.getIntValue("seconds"));
        while (!isDone() && !Driver.isStopped()) {
            if (System.nanoTime() > deadline) {
                troubles.add("time is over");
                return;
            }
            Driver.sleepMillis(20);
        }
        if (!Driver.isStopped()) {
            Driver.sleepMillis(QUIET_MS);
        }
    }

    private boolean isDone() {
        for (Object condition : plan.getJSONArray("until")) {
            JSONArray pair = (JSONArray) condition;
            int count = 0;
            for (String consumer : pair.getJSONArray(0).toJavaList(String.class)) {
                count += received.get(consumer).size();
            }
            if (count < pair.getIntValue(1)) {
                return false;
            }
        }
        return true;
    }

    // -- producers ----------------------------------------------------------------------------------------------

    private void runProducer(JSONObject spec) {
        String name = spec.getString("name");
        sent.put(name, Collections.synchronizedList(new ArrayList<>()));
        try {
            DefaultMQProducer producer =
                spec.getString("kind").equals("transaction") ? transactional(spec) : new DefaultMQProducer(name);
            configure(producer, name);
            producer.setSendMsgTimeout(spec.containsKey("timeout_ms") ? spec.getIntValue("timeout_ms") : PATIENCE_MS);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
            synchronized (shutdowns) {
                shutdowns.add(producer::shutdown);
            }
            if (spec.getIntValue("count") > 0) {
                Driver.awaitRoute(producer, spec.getString("topic"));
                send(producer, spec);
            } else {
                sendUntilStopped(producer, spec);
            }
        } catch (Exception failure) {
            troubles.add(name + ": " + failure);
        }
    }

    private void send(DefaultMQProducer producer, JSONObject spec) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < spec.getIntValue("count"); i++) {
            messages.add(message(spec, i));
        }
        switch (spec.getString("kind")) {
            case "sync":
            case "delay":
            case "orderly":
            case "transaction":
                for (int i = 0; i < messages.size(); i++) {
                    Driver.sleepMillis(spec.getIntValue("pause_ms"));
                    sent(spec, messages.get(i), sendOne(producer, spec, messages.get(i), i));
                }
                break;
            case "one-way":
                for (Message message : messages) {
                    producer.sendOneway(message);
                    sent(spec, message, null);
                }
                break;
            case "async":
                sendAsync(producer, spec, messages);
                break;
            case "batch":
                for (int i = 0; i < messages.size(); i += BATCH) {
                    List<Message> batch = messages.subList(i, Math.min(i + BATCH, messages.size()));
                    SendResult result = producer.send(batch);
                    for (Message message : batch) {
                        sent(spec, message, result);
                    }
                }
                break;
            default:
                throw new IllegalArgumentException("unknown kind " + spec);
        }
    }

    private static SendResult sendOne(DefaultMQProducer producer, JSONObject spec, Message message, int number)
        throws Exception {
        switch (spec.getString("kind")) {
            case "orderly":
                return producer.send(message, (queues, m, n) -> queues.get((Integer) n % queues.size()), number);
            case "transaction":
                return producer.sendMessageInTransaction(message, number);
            default:
                return producer.send(message);
        }
    }

    /** A message whose send fails is not sent again: nobody knows whether the broker has it. */
    private void sendUntilStopped(DefaultMQProducer producer, JSONObject spec) {
        for (int i = 0; !Driver.isStopped(); i++) {
            Driver.sleepMillis(spec.getIntValue("pause_ms"));
            Message message = message(spec, i);
            try {
                sent(spec, message, sendOne(producer, spec, message, i));
            } catch (Exception failure) {
                troubles.add(spec.getString("name") + ": " + failure);
                Driver.sleepMillis(PAUSE_AFTER_FAILURE_MS);
            }
        }
    }

    private void sendAsync(DefaultMQProducer producer, JSONObject spec, List<Message> messages) throws Exception {
        CountDownLatch answers = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent(spec, message, result);
                    answers.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    troubles.add(spec.getString("name") + ": " + failure);
                    answers.countDown();
                }
            });
        }
        answers.await();
    }

    /** Of five messages: committed, rolled back, and three that are left to checks, the last to a second one. */
    private DefaultMQProducer transactional(JSONObject spec) {
        TransactionMQProducer producer = new TransactionMQProducer(spec.getString("name"));
        Set<String> checked = ConcurrentHashMap.newKeySet();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                switch ((Integer) number % 5) {
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
                note("checks-of-" + spec.getString("name"), message.getKeys(), message.getQueueId(), message.getQueueOffset());
                int number = Integer.parseInt(message.getUserProperty("number"));
                if (number % 5 == 1 || number % 5 == 2) { // the first if its rollback got lost
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                }
                boolean again = number % 5 == 4 && checked.add(message.getKeys());
                return again ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    /** All that an application can give a message, different each time; the same in each run. */
    private Message message(JSONObject spec, int number) {
        String name = spec.getString("name");
        int size = Math.max(1, (spec.containsKey("body_bytes") ? spec.getIntValue("body_bytes") : SMALL_BODY_BYTES) - number % 3);
        byte[] body = new byte[size];
        new Random(number).nextBytes(body);
        if (number % 2 == 0) {
            java.util.Arrays.fill(body, (byte) number); // what shrinks when compressed
        }
        Message message = new Message(spec.getString("topic"), "tag" + number % 4, name + "-" + number, number, body, true);
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("größe", "Straße № " + number + " 消息 😀 a=b;c,d");
        JSONObject properties = spec.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((key, value) -> message.putUserProperty(key, value.toString()));
        }
        JSONArray delays = spec.getJSONArray("delays");
        if (delays != null) {
            message.setDelayTimeLevel(delays.getIntValue(number % delays.size()));
        }
        return message;
    }

    private void sent(JSONObject spec, Message message, SendResult result) {
        Map<String, Object> portrait = new TreeMap<>();
        portrait.put("topic", message.getTopic());
        portrait.put("body_sha256", Driver.sha256Hex(message.getBody()));
        portrait.put("properties", new TreeMap<>(message.getProperties()));
        portrait.put("flag", message.getFlag());
        portrait.put("uniq_key", MessageClientIDSetter.getUniqID(message));
        portrait.put("keys", message.getProperty(MessageConst.PROPERTY_KEYS));
        portrait.put("sent_at", System.currentTimeMillis());
        if (result != null) {
            portrait.put("status", result.getSendStatus().name());
            portrait.put("queue_id", result.getMessageQueue().getQueueId());
            portrait.put("queue_offset", result.getQueueOffset());
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                note(spec.getString("name"), message.getKeys(), result.getMessageQueue().getQueueId(), result.getQueueOffset());
            }
        }
        sent.get(spec.getString("name")).add(portrait);
    }
}
