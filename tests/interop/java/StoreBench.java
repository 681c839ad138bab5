package rmqha;

import com.alibaba.fastjson.JSON;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The Java store without a broker, for benchmarks/store.py: one thread puts messages as fast as it can, and the answer
 * is one line of JSON. putMessage() is asyncPutMessage() and a wait that never comes to pass here.
 *
 * <pre>
 * StoreBench STORE HA_PORT BODY_BYTES WARM_UP COUNT
 * </pre>
 */
public final class StoreBench {
    private static final int POOL = 4096;

    private final DefaultMessageStore store;
    private final InetSocketAddress bornHost = new InetSocketAddress(InetAddress.getLoopbackAddress(), 50_000);
    private final InetSocketAddress storeHost = new InetSocketAddress(InetAddress.getLoopbackAddress(), 10_911);
    private final List<Map<String, String>> properties = new ArrayList<>();
    private final byte[][] bodies = new byte[16][];
    private int number;

    private StoreBench(DefaultMessageStore store, int bodyBytes) {
        this.store = store;
        Random random = new Random(1);
        for (int i = 0; i < bodies.length; i++) {
            bodies[i] = new byte[bodyBytes];
            random.nextBytes(bodies[i]);
        }
        for (int i = 0; i < POOL; i++) {
            Map<String, String> map = new LinkedHashMap<>();
            map.put("KEYS", "k" + i);
            map.put("UNIQ_KEY", String.format("7F00000151595FFD2B27663426%06X", i));
            map.put("CLUSTER", "DefaultCluster");
            map.put("TAGS", "Tag" + "ABCD".charAt(i % 4));
            properties.add(map);
        }
    }

    public static void main(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setHaListenPort(Integer.parseInt(args[1]));
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setDiskMaxUsedSpaceRatio(95);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("bench", false), (t, q, o, c, s, f, p) -> { }, new BrokerConfig());
        if (!store.load()) {
            throw new IllegalStateException("the store cannot be loaded");
        }
        store.start();
        StoreBench bench = new StoreBench(store, Integer.parseInt(args[2]));
        bench.put(Integer.parseInt(args[3]));
        bench.waitForDispatch();

        int count = Integer.parseInt(args[4]);
        long start = System.nanoTime();
        bench.put(count);
        long put = System.nanoTime();
        long behind = store.dispatchBehindBytes();
        bench.waitForDispatch();
        long dispatched = System.nanoTime();

        Map<String, Object> report = new LinkedHashMap<>();
        report.put("put_seconds", (put - start) / 1e9);
        report.put("behind_bytes", behind);
        report.put("catch_up_seconds", (dispatched - put) / 1e9);
        System.out.println(JSON.toJSONString(report));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void put(int count) {
        for (int end = number + count; number < end; number++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic("BenchTopic");
            message.setQueueId(number % 4);
            message.setBody(bodies[number % bodies.length]);
            Map<String, String> map = properties.get(number % POOL);
            MessageAccessor.setProperties(message, map);
            message.setPropertiesString(MessageDecoder.messageProperties2String(map));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(bornHost);
            message.setStoreHost(storeHost);
            PutMessageResult result = store.putMessage(message);
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("message " + number + ": " + result.getPutMessageStatus());
            }
        }
    }

    private void waitForDispatch() {
        while (store.dispatchBehindBytes() > 0) {
            LockSupport.parkNanos(1_000_000);
        }
    }
}
