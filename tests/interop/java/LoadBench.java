package rmqha;

import com.alibaba.fastjson.JSON;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * The load of benchmarks/broker.py: the official producer keeps so many sends unanswered, and what it measured is one
 * line of JSON: how many messages a second, the median and the 99th percentile of their times in milliseconds, and what
 * became of them. One in flight is sent synchronously, more asynchronously.
 *
 * <pre>
 * LoadBench NAMESRV TOPIC BODY_BYTES IN_FLIGHT WARM_UP COUNT
 * </pre>
 */
public final class LoadBench {
    private static final int SEND_TIMEOUT_MS = 30_000;

    private final DefaultMQProducer producer = new DefaultMQProducer("rmqha_load");
    private final String topic;
    private final byte[] body;
    private final int inFlight;

    private LoadBench(String topic, int bodyBytes, int inFlight) {
        this.topic = topic;
        this.inFlight = inFlight;
        body = new byte[bodyBytes];
        new Random(1).nextBytes(body);
    }

    public static void main(String[] args) throws Exception {
        LoadBench bench = new LoadBench(args[1], Integer.parseInt(args[2]), Integer.parseInt(args[3]));
        bench.producer.setNamesrvAddr(args[0]);
        bench.producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        bench.producer.setRetryTimesWhenSendFailed(0);
        bench.producer.setRetryTimesWhenSendAsyncFailed(0);
        bench.producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        bench.producer.start();
        bench.send(Integer.parseInt(args[4]));
        System.out.println(JSON.toJSONString(bench.send(Integer.parseInt(args[5]))));
        System.out.flush();
        Runtime.getRuntime().halt(0); // the client's own threads need not be waited for
    }

    private Map<String, Object> send(int count) throws Exception {
        long[] nanos = new long[count];
        Map<String, Integer> statuses = new TreeMap<>();
        long start = System.nanoTime();
        if (inFlight == 1) {
            for (int number = 0; number < count; number++) {
                long before = System.nanoTime();
                SendResult result = producer.send(message(number));
                nanos[number] = System.nanoTime() - before;
                statuses.merge(result.getSendStatus().name(), 1, Integer::sum);
            }
        } else {
            sendInFlight(nanos, statuses);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        Arrays.sort(nanos);
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("tps", count / seconds);
        report.put("p50", count == 0 ? 0 : nanos[count / 2] / 1e6);
        report.put("p99", count == 0 ? 0 : nanos[(int) (count * 0.99)] / 1e6);
        report.put("statuses", statuses);
        return report;
    }

    private void sendInFlight(long[] nanos, Map<String, Integer> statuses) throws Exception {
        Semaphore places = new Semaphore(inFlight);
        AtomicInteger answered = new AtomicInteger();
        for (int number = 0; number < nanos.length; number++) {
            places.acquire();
            long before = System.nanoTime();
            producer.send(message(number), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answered(result.getSendStatus().name());
                }

                @Override
                public void onException(Throwable failure) {
                    answered(failure.toString());
                }

                private void answered(String status) {
                    nanos[answered.getAndIncrement()] = System.nanoTime() - before;
                    synchronized (statuses) {
                        statuses.merge(status, 1, Integer::sum);
                    }
                    places.release();
                }
            });
        }
        places.acquire(inFlight);
    }

    private Message message(int number) {
        return new Message(topic, "Tag" + number % 4, "k" + number, body);
    }
}
