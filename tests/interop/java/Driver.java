package rmqha;

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.FindBrokerResult;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.impl.producer.DefaultMQProducerImpl;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.PermName;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.RequestCode;
import org.apache.rocketmq.common.protocol.ResponseCode;
import org.apache.rocketmq.common.protocol.body.KVTable;
import org.apache.rocketmq.common.protocol.header.GetMinOffsetRequestHeader;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.CommandUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * What the interop tests and benchmarks ask of the official Java client, one command a process, or one after another
 * if the command is serve. A command's answer is one line of JSON on standard output; a failure is a stack trace and
 * exit status 1.
 *
 * <pre>
 * send NAMESRV TOPIC COUNT BODY_BYTES [--threads N] [--rate PER_S] [--seconds S] [--keys] [--first I] [--log FILE]
 *      [--timeout MS] [--no-wait]                COUNT 0: until --seconds are over, or until told to stop
 * consume NAMESRV TOPIC[,TOPIC...] GROUP EXPECTED SECONDS [--broker-id ID]
 * runtime-info HOST:PORT
 * queue-ends NAMESRV TOPIC...                    min and max offset of each queue of each topic
 * look-up NAMESRV FILE                           for each line of FILE, in order, a list of messages:
 *                                                "id OFFSET_MSG_ID", "key TOPIC KEY" or "uniq TOPIC UNIQ_KEY"
 * clients NAMESRV FILE                           producers and consumers at work together, see Clients
 * create-topics NAMESRV CLUSTER TOPIC:QUEUES...
 * mqadmin NAMESRV FILE                           what mqadmin prints for each line of FILE, words separated by tabs
 * serve                                          commands from standard input, one a line, words separated by tabs, until
 *                                                it ends; an answer is {"answer": ...} or {"failure": STACK_TRACE}
 * </pre>
 *
 * With -Drmqha.watch.stdin=true the end of standard input stops a send and clients early (they still report) and ends
 * any other command at once, so that nothing outlives the Python process holding the other end.
 */
@SuppressWarnings("deprecation") // DefaultMQPullConsumer is the only one that asks just what it is told to
public final class Driver {
    private static final int READ_AND_WRITE = PermName.PERM_READ | PermName.PERM_WRITE;
    private static final int PULL_BATCH = 32;
    private static final long RPC_TIMEOUT_MS = 60_000;
    /** A busy machine is no trouble. */
    private static final int PATIENCE_MS = 120_000;
    private static final int MOST_FOUND = 32;
    private static final long PAUSE_AFTER_FAILURE_MS = 100;

    private static volatile boolean stopped;
    /** What ends the clients of the command in progress. */
    private static final List<Runnable> ends = new ArrayList<>();

    private Driver() {
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 0) {
            throw new IllegalArgumentException("which command?");
        }
        if (args[0].equals("serve")) {
            serve();
        }
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        if (Boolean.getBoolean("rmqha.watch.stdin")) {
            boolean reports = args[0].equals("send") || args[0].equals("clients");
            Guard.watchStandardInput(reports ? () -> stopped = true : () -> Runtime.getRuntime().halt(137));
        }
        try {
            String answer = JSON.toJSONString(perform(args[0], new Arguments(rest)));
            System.out.println();  // what tools of RocketMQ have printed may have no end of its line
            System.out.println(answer);
            System.out.flush();
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0); // the client's own threads need not be waited for
    }

    /** Does one command after another; does not return. */
    private static void serve() throws InterruptedException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BlockingQueue<String> asked = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> {
            try {
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    asked.add(line);
                }
            } catch (IOException gone) {
                // as good as the end
            }
            Runtime.getRuntime().halt(137);
        }, "standard-input");
        reader.start();
        while (true) {
            String[] words = asked.take().split("\t", -1);
            Map<String, Object> answer;
            try {
                Arguments rest = new Arguments(Arrays.copyOfRange(words, 1, words.length));
                answer = Collections.singletonMap("answer", perform(words[0], rest));
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace, true));
                answer = Collections.singletonMap("failure", trace.toString());
            }
            // A broker that is gone or paused may keep a client waiting: nobody waits for that.
            new ArrayList<>(ends).forEach(end -> new Thread(end, "end").start());
            ends.clear();
            answers.println(JSON.toJSONString(answer));
            answers.flush();
        }
    }

    private static Map<String, Object> perform(String command, Arguments arguments) throws Exception {
        switch (command) {
            case "send":
                return new Send(arguments).run();
            case "create-topics":
                return createTopics(arguments);
            case "consume":
                return consume(arguments);
            case "runtime-info":
                return runtimeInfo(arguments);
            case "queue-ends":
                return queueEnds(arguments);
            case "look-up":
                return lookUp(arguments);
            case "clients":
                return new Clients(arguments.positional(0), arguments.positional(1)).run();
            case "mqadmin":
                return mqadmin(arguments);
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    /** Whether the other end of standard input wants no more. */
    static boolean isStopped() {
        return stopped;
    }

    // -- send ---------------------------------------------------------------------------------------------------

    /** COUNT synchronous sends by some threads that take the next number from one counter. */
    private static final class Send {
        private final String topic;
        private final long count;
        private final int bodyBytes;
        private final int threads;
        private final double rate;
        private final double seconds;
        private final boolean keys;
        private final boolean waitStored;
        private final long first;
        private final DefaultMQProducer producer;
        private final PrintWriter log;

        private final AtomicLong taken = new AtomicLong();
        private final Map<String, Long> statuses = new TreeMap<>();
        private final Map<String, Long> failures = new TreeMap<>();
        private final List<long[]> latencies = new ArrayList<>();
        private long start;

        Send(Arguments arguments) throws IOException {
            topic = arguments.positional(1);
            count = Long.parseLong(arguments.positional(2));
            bodyBytes = Integer.parseInt(arguments.positional(3));
            threads = Integer.parseInt(arguments.option("threads", "1"));
            rate = Double.parseDouble(arguments.option("rate", "0"));
            seconds = Double.parseDouble(arguments.option("seconds", "0"));
            first = Long.parseLong(arguments.option("first", "0"));
            keys = arguments.flag("keys");
            waitStored = !arguments.flag("no-wait");
            String file = arguments.option("log", null);
            log = file == null ? null : new PrintWriter(Files.newBufferedWriter(Paths.get(file)));

            producer = new DefaultMQProducer("rmqha_driver");
            producer.setNamesrvAddr(arguments.positional(0));
            producer.setMqClientApiTimeout(PATIENCE_MS);
            // Longer than slaveTimeout's 3 s, or FLUSH_SLAVE_TIMEOUT would never be seen.
            producer.setSendMsgTimeout(Integer.parseInt(arguments.option("timeout", Integer.toString(PATIENCE_MS))));
            producer.setRetryTimesWhenSendFailed(0); // a number is sent once at most
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE); // BODY_BYTES are what is stored
            producer.setPollNameServerInterval(1_000);
            producer.setHeartbeatBrokerInterval(1_000);
        }

        Map<String, Object> run() throws Exception {
            ends.add(producer::shutdown);
            producer.start();
            awaitRoute(producer, topic);
            start = System.nanoTime();
            List<Thread> workers = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                Thread worker = new Thread(this::work, "send-" + i);
                worker.start();
                workers.add(worker);
            }
            for (Thread worker : workers) {
                worker.join();
            }
            double elapsed = (System.nanoTime() - start) / 1e9;
            if (log != null) {
                log.close();
            }

            Map<String, Object> report = new LinkedHashMap<>();
            report.put("statuses", statuses);
            report.put("failures", failures);
            report.put("elapsed_seconds", elapsed);
            report.put("latency_ms", latencyTable());
            return report;
        }

        private void work() {
            Map<String, Long> myStatuses = new HashMap<>();
            Map<String, Long> myFailures = new HashMap<>();
            long[] myLatencies = new long[1024];
            int sent = 0;
            while (true) {
                long turn = taken.getAndIncrement();
                if (count > 0 && turn >= count || !waitForTurn(turn)) {
                    break;
                }
                Message message = message(first + turn);
                long before = System.nanoTime();
                try {
                    SendResult result = producer.send(message);
                    if (sent == myLatencies.length) {
                        myLatencies = Arrays.copyOf(myLatencies, sent * 2);
                    }
                    myLatencies[sent++] = System.nanoTime() - before;
                    myStatuses.merge(result.getSendStatus().name(), 1L, Long::sum);
                    logLine(result.getMsgId(), result.getOffsetMsgId(), result.getMessageQueue().getQueueId(),
                        result.getQueueOffset(), result.getSendStatus().name(), first + turn);
                } catch (MQClientException | RemotingException | MQBrokerException | InterruptedException failure) {
                    String kind = kindOf(failure);
                    if (myFailures.merge(kind, 1L, Long::sum) == 1) {
                        System.err.println(failure);
                    }
                    logLine("-", "-", -1, -1, kind, first + turn);
                    sleepMillis(PAUSE_AFTER_FAILURE_MS);
                }
            }
            synchronized (this) {
                myStatuses.forEach((status, n) -> statuses.merge(status, n, Long::sum));
                myFailures.forEach((kind, n) -> failures.merge(kind, n, Long::sum));
                latencies.add(Arrays.copyOf(myLatencies, sent));
            }
        }

        /** Waits until the turn is due by the rate; false when sending is over. */
        private boolean waitForTurn(long turn) {
            while (true) {
                long now = System.nanoTime();
                if (stopped || seconds > 0 && now - start >= seconds * 1e9) {
                    return false;
                }
                long early = rate > 0 ? start + (long) (turn * 1e9 / rate) - now : 0;
                if (early <= 0) {
                    return true;
                }
                LockSupport.parkNanos(Math.min(early, 50_000_000L));
            }
        }

        private Message message(long number) {
            String key = "k" + number;
            Message message = new Message(topic, "tag" + number % 4, keys ? key : "", body(key, bodyBytes));
            message.setWaitStoreMsgOK(waitStored);
            return message;
        }

        private synchronized void logLine(
            String msgId, String offsetMsgId, int queueId, long queueOffset, String status, long number) {
            if (log != null) {
                log.println(msgId + " " + offsetMsgId + " " + queueId + " " + queueOffset + " " + status + " k" + number);
                log.flush();
            }
        }

        private Map<String, Double> latencyTable() {
            long[] all = latencies.stream().flatMapToLong(Arrays::stream).sorted().toArray();
            Map<String, Double> table = new LinkedHashMap<>();
            if (all.length > 0) {
                table.put("p50", all[(int) (all.length * 0.50)] / 1e6);
                table.put("p99", all[(int) (all.length * 0.99)] / 1e6);
                table.put("max", all[all.length - 1] / 1e6);
            }
            return table;
        }
    }

    /** The key and a bar, over and over, cut at the size wanted: Python can say the same. */
    private static byte[] body(String key, int size) {
        byte[] unit = (key + "|").getBytes(StandardCharsets.US_ASCII);
        byte[] body = new byte[size];
        for (int i = 0; i < size; i += unit.length) {
            System.arraycopy(unit, 0, body, i, Math.min(unit.length, size - i));
        }
        return body;
    }

    private static String kindOf(Exception failure) {
        if (failure instanceof MQBrokerException) {
            return "MQBrokerException:" + ((MQBrokerException) failure).getResponseCode();
        }
        Throwable cause = failure.getCause();
        String name = failure.getClass().getSimpleName();
        return cause == null ? name : name + ":" + cause.getClass().getSimpleName();
    }

    // -- topics and broker tables -------------------------------------------------------------------------------

    private static Map<String, Object> createTopics(Arguments arguments) throws Exception {
        String cluster = arguments.positional(1);
        DefaultMQAdminExt admin = new DefaultMQAdminExt(RPC_TIMEOUT_MS);
        admin.setNamesrvAddr(arguments.positional(0));
        admin.setMqClientApiTimeout(PATIENCE_MS);
        ends.add(admin::shutdown);
        admin.start();
        Set<String> masters = awaitMasters(admin, cluster);
        for (String wanted : arguments.positionalsFrom(2)) {
            int queues = Integer.parseInt(wanted.substring(wanted.lastIndexOf(':') + 1));
            TopicConfig topic =
                new TopicConfig(wanted.substring(0, wanted.lastIndexOf(':')), queues, queues, READ_AND_WRITE);
            for (String master : masters) {
                admin.createAndUpdateTopicConfig(master, topic);
            }
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
            while (!isRouted(admin, topic.getTopicName(), masters.size())) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the name server does not route " + topic);
                }
                sleepMillis(50);
            }
        }
        return Collections.singletonMap("masters", masters);
    }

    /** 5.x says that it has started before it has registered. */
    private static Set<String> awaitMasters(DefaultMQAdminExt admin, String cluster) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (true) {
            Set<String> masters = CommandUtil.fetchMasterAddrByClusterName(admin, cluster);
            if (!masters.isEmpty()) {
                return masters;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no master of cluster " + cluster + " is registered");
            }
            sleepMillis(50);
        }
    }

    private static boolean isRouted(DefaultMQAdminExt admin, String topic, int brokers) throws Exception {
        try {
            return admin.examineTopicRouteInfo(topic).getQueueDatas().size() >= brokers;
        } catch (MQClientException unknown) {
            return false;
        }
    }

    private static Map<String, Object> runtimeInfo(Arguments arguments) throws Exception {
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        ends.add(client::shutdown);
        client.start();
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.GET_BROKER_RUNTIME_INFO, null);
        RemotingCommand response = client.invokeSync(arguments.positional(0), request, RPC_TIMEOUT_MS);
        if (response.getCode() != 0) {
            throw new IllegalStateException("code " + response.getCode() + ": " + response.getRemark());
        }
        return new TreeMap<>(KVTable.decode(response.getBody(), KVTable.class).getTable());
    }

    // -- consume ------------------------------------------------------------------------------------------------

    /**
     * Pulls every queue of the topics from its min offset until EXPECTED messages came and nothing more is at hand, or SECONDS are
     * over. Asks any broker that still answers when the master is gone.
     */
    private static Map<String, Object> consume(Arguments arguments) throws Exception {
        String[] topics = arguments.positional(1).split(",");
        long expected = Long.parseLong(arguments.positional(3));
        long start = System.nanoTime();
        long deadline = start + (long) (Double.parseDouble(arguments.positional(4)) * 1e9);
        String brokerId = arguments.option("broker-id", null);

        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(arguments.positional(2));
        consumer.setNamesrvAddr(arguments.positional(0));
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setPollNameServerInterval(1_000);
        ends.add(consumer::shutdown);
        consumer.start();
        if (brokerId != null) {
            consumer.getDefaultMQPullConsumerImpl().getPullAPIWrapper().setConnectBrokerByUser(true);
            consumer.getDefaultMQPullConsumerImpl().getPullAPIWrapper().setDefaultBrokerId(Long.parseLong(brokerId));
        }

        Map<MessageQueue, Long> nextOffsets = new HashMap<>();
        List<String> lines = new ArrayList<>();
        String obstacle = "";
        while (System.nanoTime() < deadline) {
            boolean progress = false;
            try {
                if (nextOffsets.isEmpty()) {
                    Map<MessageQueue, Long> found = new HashMap<>();
                    for (String topic : topics) {
                        found.putAll(minOffsets(consumer, topic, brokerId));
                    }
                    nextOffsets.putAll(found);
                }
                for (MessageQueue queue : nextOffsets.keySet()) {
                    PullResult pulled = consumer.pull(queue, "*", nextOffsets.get(queue), PULL_BATCH);
                    if (pulled.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : pulled.getMsgFoundList()) {
                            lines.add(line(message));
                        }
                        progress = true;
                    }
                    nextOffsets.put(queue, pulled.getNextBeginOffset());
                }
            } catch (MQClientException | RemotingException | MQBrokerException failure) {
                if (!obstacle.equals(failure.toString())) {
                    obstacle = failure.toString();
                    System.err.println(obstacle);
                }
            }
            if (!progress) {
                if (lines.size() >= expected) {
                    break;
                }
                sleepMillis(50);
            }
        }

        Collections.sort(lines);
        MessageDigest digest = sha256();
        for (String line : lines) {
            digest.update(line.getBytes(StandardCharsets.UTF_8));
        }
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("count", lines.size());
        report.put("distinct", new HashSet<>(lines).size());
        report.put("sha256", hex(digest.digest()));
        report.put("queues", nextOffsets.size());
        report.put("elapsed_seconds", (System.nanoTime() - start) / 1e9);
        report.put("obstacle", obstacle);
        return report;
    }

    /** Asked of whichever broker would be pulled from: the client's own minOffset() asks nobody but a master. */
    private static Map<MessageQueue, Long> minOffsets(DefaultMQPullConsumer consumer, String topic, String brokerId)
        throws MQClientException, RemotingException, MQBrokerException {
        Map<MessageQueue, Long> offsets = new HashMap<>();
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        long wanted = brokerId == null ? 0 : Long.parseLong(brokerId);
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            client.updateTopicRouteInfoFromNameServer(topic);
            FindBrokerResult broker = client.findBrokerAddressInSubscribe(
                queue.getBrokerName(), wanted, brokerId != null);
            if (broker == null) {
                throw new MQClientException("no address of " + queue.getBrokerName(), null);
            }
            try {
                offsets.put(queue, minOffset(client, broker.getBrokerAddr(), queue));
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }
        return offsets;
    }

    /** The request itself, because the client's own method has other arguments since 4.9.4. */
    private static long minOffset(MQClientInstance client, String address, MessageQueue queue)
        throws InterruptedException, RemotingException, MQBrokerException {
        GetMinOffsetRequestHeader header = new GetMinOffsetRequestHeader();
        header.setTopic(queue.getTopic());
        header.setQueueId(queue.getQueueId());
        RemotingCommand response = client.getMQClientAPIImpl().getRemotingClient().invokeSync(
            address, RemotingCommand.createRequestCommand(RequestCode.GET_MIN_OFFSET, header), RPC_TIMEOUT_MS);
        if (response.getCode() != ResponseCode.SUCCESS) {
            throw new MQBrokerException(response.getCode(), response.getRemark());
        }
        return Long.parseLong(response.getExtFields().get("offset"));
    }

    /** One line a message; the digest of all of them, sorted, tells two sets of messages apart. */
    private static String line(MessageExt message) {
        String keys = message.getKeys() == null ? "" : message.getKeys();
        return keys + " " + bodySha256(message) + "\n";
    }

    /** The client has null for an empty body. */
    private static String bodySha256(MessageExt message) {
        return sha256Hex(message.getBody() == null ? new byte[0] : message.getBody());
    }

    // -- queues and single messages -----------------------------------------------------------------------------

    private static Map<String, Object> queueEnds(Arguments arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(RPC_TIMEOUT_MS);
        admin.setNamesrvAddr(arguments.positional(0));
        admin.setMqClientApiTimeout(PATIENCE_MS);
        ends.add(admin::shutdown);
        admin.start();
        Map<String, Object> answer = new TreeMap<>();
        for (String topic : arguments.positionalsFrom(1)) {
            Map<String, long[]> queues = new TreeMap<>();
            admin.examineTopicStats(topic).getOffsetTable().forEach((queue, ends) ->
                queues.put(Integer.toString(queue.getQueueId()), new long[] {ends.getMinOffset(), ends.getMaxOffset()}));
            answer.put(topic, queues);
        }
        return answer;
    }

    private static Map<String, Object> lookUp(Arguments arguments) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("driver-look-up");
        consumer.setNamesrvAddr(arguments.positional(0));
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        ends.add(consumer::shutdown);
        consumer.start();
        MQAdminImpl asked = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getMQAdminImpl();
        List<Object> answers = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(arguments.positional(1)))) {
            List<Object> found = new ArrayList<>();
            for (MessageExt message : lookUp(asked, line.split(" "))) {
                found.add(portrait(message));
            }
            answers.add(found);
        }
        return Collections.singletonMap("found", answers);
    }

    private static List<MessageExt> lookUp(MQAdminImpl asked, String[] words) throws Exception {
        try {
            switch (words[0]) {
                case "id":
                    return Collections.singletonList(asked.viewMessage(words[1]));
                case "key":
                    return asked.queryMessage(words[1], words[2], MOST_FOUND, 0, Long.MAX_VALUE).getMessageList();
                case "uniq":
                    return asked.queryMessageByUniqKey(words[1], words[2], MOST_FOUND, 0, Long.MAX_VALUE).getMessageList();
                default:
                    throw new IllegalArgumentException("what is " + words[0] + "?");
            }
        } catch (MQClientException failure) {
            if (failure.getResponseCode() == ResponseCode.NO_MESSAGE) {
                return Collections.emptyList();
            }
            throw failure;
        }
    }

    /** All that the client knows of a stored message; addresses and the body's digest in hex. */
    static Map<String, Object> portrait(MessageExt message) {
        Map<String, Object> portrait = new TreeMap<>();
        portrait.put("topic", message.getTopic());
        portrait.put("body_sha256", bodySha256(message));
        portrait.put("properties", new TreeMap<>(message.getProperties())); // the client goes on changing its own
        portrait.put("queue_id", message.getQueueId());
        portrait.put("queue_offset", message.getQueueOffset());
        portrait.put("physical_offset", message.getCommitLogOffset());
        portrait.put("size", message.getStoreSize());
        portrait.put("flag", message.getFlag());
        portrait.put("sys_flag", message.getSysFlag());
        portrait.put("born_timestamp", message.getBornTimestamp());
        portrait.put("born_host", address(message.getBornHost()));
        portrait.put("store_timestamp", message.getStoreTimestamp());
        portrait.put("store_host", address(message.getStoreHost()));
        portrait.put("reconsume_times", message.getReconsumeTimes());
        portrait.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        return portrait;
    }

    private static String address(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        return hex(address.getAddress().getAddress()) + ":" + address.getPort();
    }

    // -- mqadmin ------------------------------------------------------------------------------------------------

    private static Map<String, Object> mqadmin(Arguments arguments) throws Exception {
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, arguments.positional(0));
        List<String> printed = new ArrayList<>();
        PrintStream out = System.out;
        for (String line : Files.readAllLines(Paths.get(arguments.positional(1)))) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            System.setOut(new PrintStream(bytes, true, "UTF-8"));
            try {
                MQAdminStartup.main0(line.split("\t"), null);
            } finally {
                System.setOut(out);
            }
            printed.add(bytes.toString("UTF-8"));
        }
        return Collections.singletonMap("printed", printed);
    }

    // -- small things -------------------------------------------------------------------------------------------

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    static String sha256Hex(byte[] bytes) {
        return hex(sha256().digest(bytes));
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(bytes.length * 2);
        for (byte b : bytes) {
            text.append(Character.forDigit(b >> 4 & 0xF, 16)).append(Character.forDigit(b & 0xF, 16));
        }
        return text.toString();
    }

    /**
     * Until the producer knows where to send, if a name server knows it. By itself it gives up, or sends to a broker
     * that makes new topics, if a name server is slower than 3 s.
     */
    static void awaitRoute(DefaultMQProducer producer, String topic) {
        DefaultMQProducerImpl implementation = producer.getDefaultMQProducerImpl();
        MQClientInstance client = implementation.getmQClientFactory();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
        while (System.nanoTime() < deadline) {
            try {
                client.getMQClientAPIImpl().getTopicRouteInfoFromNameServer(topic, PATIENCE_MS);
                client.updateTopicRouteInfoFromNameServer(topic);
            } catch (MQClientException failure) {
                if (failure.getResponseCode() == ResponseCode.TOPIC_NOT_EXIST) {
                    return;
                }
            } catch (RemotingException | InterruptedException slow) {
                // another try
            }
            TopicPublishInfo found = implementation.getTopicPublishInfoTable().get(topic);
            if (found != null && found.ok()) {
                return;
            }
            sleepMillis(PAUSE_AFTER_FAILURE_MS);
        }
    }

    static void sleepMillis(long millis) {
        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(millis));
    }

    /** Positional words, then --option VALUE or --flag in any order. */
    private static final class Arguments {
        private static final Set<String> FLAGS = new HashSet<>(Arrays.asList("keys", "no-wait"));
        private static final Set<String> OPTIONS = new HashSet<>(
            Arrays.asList("threads", "rate", "seconds", "first", "log", "timeout", "broker-id"));

        private final List<String> words = new ArrayList<>();
        private final Map<String, String> options = new HashMap<>();

        Arguments(String[] args) {
            for (int i = 0; i < args.length; i++) {
                String name = args[i].startsWith("--") ? args[i].substring(2) : null;
                if (name == null) {
                    words.add(args[i]);
                } else if (FLAGS.contains(name)) {
                    options.put(name, "");
                } else if (OPTIONS.contains(name) && i + 1 < args.length) {
                    options.put(name, args[++i]);
                } else {
                    throw new IllegalArgumentException("what is " + args[i] + "?");
                }
            }
        }

        String positional(int index) {
            if (index >= words.size()) {
                throw new IllegalArgumentException("too few arguments: " + words);
            }
            return words.get(index);
        }

        List<String> positionalsFrom(int index) {
            return words.subList(index, words.size());
        }

        String option(String name, String otherwise) {
            return options.getOrDefault(name, otherwise);
        }

        boolean flag(String name) {
            return options.containsKey(name);
        }
    }
}
