package rmqha;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * The official client and signer with an account:
 *
 * <pre>
 * sign FILE                                      a JSON list of {fields, body: base64, secret}: the signatures
 * put NAMESRV ACCESS SECRET TOPIC COUNT          sends; prints {sent, error}
 * pull NAMESRV ACCESS SECRET TOPIC GROUP         pulls all queues from their start; prints {bodies, error}
 * push NAMESRV ACCESS SECRET TOPIC GROUP COUNT   a push consumer: prints {bodies} once it has got COUNT messages
 * work NAMESRV ACCESS SECRET TOPIC GROUP         a message that comes back once, a transaction that is committed when the
 *                                                broker asks, and a request and its reply: prints {bodies, reply}
 * </pre>
 */
final class Acl {
    private static final int TIMEOUT_MS = 60_000;
    private static final int BATCH = 32;

    private Acl() {
    }

    public static void main(String[] args) throws Exception {
        Object answer;
        switch (args[0]) {
            case "sign":
                answer = sign(args[1]);
                break;
            case "put":
                answer = put(args[1], hook(args[2], args[3]), args[4], Integer.parseInt(args[5]));
                break;
            case "pull":
                answer = pull(args[1], hook(args[2], args[3]), args[4], args[5]);
                break;
            case "push":
                answer = push(args[1], hook(args[2], args[3]), args[4], args[5], Integer.parseInt(args[6]));
                break;
            case "work":
                answer = work(args[1], hook(args[2], args[3]), args[4], args[5]);
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.out.println(JSON.toJSONString(answer));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static AclClientRPCHook hook(String accessKey, String secretKey) {
        return new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    private static List<String> sign(String file) throws Exception {
        JSONArray cases = JSON.parseArray(new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8));
        List<String> signatures = new ArrayList<>();
        for (JSONObject each : cases.toJavaList(JSONObject.class)) {
            RemotingCommand request = RemotingCommand.createRequestCommand(10, null);
            request.setBody(Base64.getDecoder().decode(each.getString("body")));
            TreeMap<String, String> fields = new TreeMap<>();
            each.getJSONObject("fields").forEach((name, value) -> fields.put(name, (String) value));
            byte[] content = AclUtils.combineRequestContent(request, fields);
            signatures.add(AclUtils.calSignature(content, each.getString("secret")));
        }
        return signatures;
    }

    private static Map<String, Object> put(String nameServer, AclClientRPCHook hook, String topic, int count)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("PG_ACL", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        Map<String, Object> answer = new LinkedHashMap<>();
        int sent = 0;
        try {
            producer.start();
            for (int number = 0; number < count; number++) {
                producer.send(new Message(topic, "TagA", "key" + number, ("body" + number).getBytes()));
                sent++;
            }
        } catch (Exception error) {
            answer.put("error", error + " " + error.getCause());
        }
        answer.put("sent", sent);
        return answer;
    }

    private static Map<String, Object> pull(String nameServer, AclClientRPCHook hook, String topic, String group)
        throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        List<String> bodies = new ArrayList<>();
        Map<String, Object> answer = new LinkedHashMap<>();
        try {
            consumer.start();
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                long offset = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (offset < end) {
                    PullResult result = consumer.pull(queue, "*", offset, BATCH);
                    if (result.getMsgFoundList() != null) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            bodies.add(new String(message.getBody()));
                        }
                    }
                    offset = result.getNextBeginOffset();
                }
            }
        } catch (Exception error) {
            answer.put("error", error + " " + error.getCause());
        }
        answer.put("bodies", bodies);
        return answer;
    }

    private static Map<String, Object> push(
        String nameServer, AclClientRPCHook hook, String topic, String group, int count) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.subscribe(topic, "*");
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody()));
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await();
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("bodies", bodies);
        return answer;
    }

    private static Map<String, Object> work(
        String nameServer, AclClientRPCHook hook, String topic, String group) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");
        TransactionMQProducer producer = new TransactionMQProducer("PG_ACL_WORK", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setHeartbeatBrokerInterval(500);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.subscribe(topic, "*");
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(2);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = new String(message.getBody());
            if (body.equals("question")) {
                try {
                    producer.send(MessageUtil.createReplyMessage(message, "reply".getBytes()));
                } catch (Exception error) {
                    bodies.add(error.toString());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            if (body.startsWith("body")) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            if (message.getReconsumeTimes() == 0) {
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            bodies.add(body + " " + message.getReconsumeTimes());
            left.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(new Message(topic, "ordinary".getBytes()));
        producer.sendMessageInTransaction(new Message(topic, "transaction".getBytes()), null);
        Map<String, Object> answer = new LinkedHashMap<>();
        // A reply goes to a producer that the broker knows by its heartbeat; the first one comes a second after its start.
        MQClientManager.getInstance().getOrCreateMQClientInstance(producer).sendHeartbeatToAllBrokerWithLock();
        CompletableFuture<Message> reply = new CompletableFuture<>();
        // The callback: request() without one fails in 5.x as soon as the question is stored (apache/rocketmq#9319).
        producer.request(new Message(topic, "question".getBytes()), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) { // null: 5.x tells that the question is stored
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                reply.completeExceptionally(error);
            }
        }, TIMEOUT_MS);
        answer.put("reply", new String(reply.get().getBody()));
        left.await();
        answer.put("bodies", bodies);
        return answer;
    }
}
