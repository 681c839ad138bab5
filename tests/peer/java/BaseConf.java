package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.test.client.rmq.*;
import org.apache.rocketmq.test.clientinterface.*;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.*;

/**
 * Stands before the class of this name in rocketmq-test's jar of tests: it starts no brokers, it uses those at
 * -Dpeer.namesrv. Its names and signatures are those that the tests call. Its code is our own.
 */
public class BaseConf {
    public static String nsAddr = System.getProperty("peer.namesrv");
    protected static String broker1Name = "TestBrokerName_0";
    protected static String broker2Name = "TestBrokerName_1";
    protected static String clusterName = "DefaultCluster";
    protected static int brokerNum = 2;
    protected static int waitTime = 5;
    protected static int consumeTime = 2 * 60 * 1000;
    protected static List<Object> mqClients = new ArrayList<>();
    protected static boolean debug = false;

    static {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
    }

    public static String initTopic() { return initTopicWithName(MQRandomUtils.getRandomTopic()); }

    public static String initTopicWithName(String topic) {
        long end = System.currentTimeMillis() + 30_000;
        while (!MQAdmin.createTopic(nsAddr, clusterName, topic, 8)) {
            if (System.currentTimeMillis() > end) throw new AssertionError("topic " + topic + " was not created");
            TestUtils.waitForMoment(500);
        }
        return topic;
    }

    public static String initConsumerGroup() { return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup()); }

    public static String initConsumerGroup(String group) {
        MQAdmin.createSub(nsAddr, clusterName, group);
        return group;
    }

    private static <T> T keep(T client) { mqClients.add(client); return client; }

    public static RMQNormalProducer getProducer(String ns, String topic) { return getProducer(ns, topic, false); }

    public static RMQNormalProducer getProducer(String ns, String topic, boolean tls) { return keep(new RMQNormalProducer(ns, topic, tls)); }

    public static RMQNormalProducer getProducer(String ns, String topic, String group, String instance) {
        return keep(new RMQNormalProducer(ns, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(String ns, String topic, TransactionListener listener) {
        return keep(new RMQTransactionalProducer(ns, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String ns, String topic) { return keep(new RMQAsyncSendProducer(ns, topic)); }

    public static RMQNormalConsumer getConsumer(String ns, String topic, String sub, AbstractListener l) { return getConsumer(ns, topic, sub, l, false); }

    public static RMQNormalConsumer getConsumer(String ns, String topic, String sub, AbstractListener l, boolean tls) {
        return getConsumer(ns, initConsumerGroup(), topic, sub, l, tls);
    }

    public static RMQNormalConsumer getConsumer(String ns, String group, String topic, String sub, AbstractListener l) {
        return getConsumer(ns, group, topic, sub, l, false);
    }

    public static RMQNormalConsumer getConsumer(String ns, String group, String topic, String sub, AbstractListener l, boolean tls) {
        return keep(ConsumerFactory.getRMQNormalConsumer(ns, group, topic, sub, l, tls));
    }

    public static void shutdown() {
        for (Object client : mqClients) {
            if (client instanceof AbstractMQProducer) ((AbstractMQProducer) client).shutdown();
            else ((AbstractMQConsumer) client).shutdown();
        }
    }
}
