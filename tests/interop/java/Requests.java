package rmqha;

import com.alibaba.fastjson.JSON;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Request-reply and SQL92 filters with the official client:
 *
 * <pre>
 * ask NAMESRV TOPIC GROUP COUNT                  a consumer that replies, and a producer that asks, each with a
 *                                                connection of its own; the odd ones with a callback. Prints
 *                                                {replies, errors}
 * filter NAMESRV TOPIC GROUP EXPRESSION COUNT    a push consumer with the expression; prints the COUNT bodies that it
 *                                                got, or {error} if it cannot start
 * </pre>
 */
final class Requests {
    private static final int TIMEOUT_MS = 60_000;

    private Requests() {
    }

    public static void main(String[] args) throws Exception {
        Object answer;
        switch (args[0]) {
            case "ask":
                answer = ask(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            case "filter":
                answer = filter(args[1], args[2], args[3], args[4], Integer.parseInt(args[5]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.out.println(JSON.toJSONString(answer));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setInstanceName("replier");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullInterval(0);
        return consumer;
    }

    private static DefaultMQProducer producer(String nameServer, String group, String instance) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServer);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setInstanceName(instance);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        return producer;
    }

    private static Map<String, Object> ask(String nameServer, String topic, String group, int count) throws Exception {
        DefaultMQProducer replier = producer(nameServer, group + "-replier", "replier");
        DefaultMQPushConsumer consumer = consumer(nameServer, group);
        List<String> errors = Collections.synchronizedList(new ArrayList<>());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = ("re: " + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(message, body), TIMEOUT_MS);
                } catch (Exception failure) {
                    errors.add("replying: " + failure);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer asker = producer(nameServer, group + "-asker", "asker");
        List<String> replies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch waiting = new CountDownLatch(count / 2);
        for (int number = 0; number < count; number++) {
            Message message = new Message(topic, ("question " + number).getBytes(StandardCharsets.UTF_8));
            try {
                if (number % 2 == 0) {
                    replies.add(new String(asker.request(message, TIMEOUT_MS).getBody(), StandardCharsets.UTF_8));
                    continue;
                }
                asker.request(message, new RequestCallback() {
                    @Override
                    public void onSuccess(Message reply) {
                        replies.add(new String(reply.getBody(), StandardCharsets.UTF_8));
                        waiting.countDown();
                    }

                    @Override
                    public void onException(Throwable failure) {
                        errors.add("asking: " + failure);
                        waiting.countDown();
                    }
                }, TIMEOUT_MS);
            } catch (Exception failure) {
                errors.add("asking: " + failure);
            }
        }
        waiting.await(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("replies", replies);
        answer.put("errors", errors);
        return answer;
    }

    private static Map<String, Object> filter(String nameServer, String topic, String group, String expression, int count)
        throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch waiting = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = consumer(nameServer, group);
        consumer.subscribe(topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                waiting.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
        } catch (Exception failure) {
            answer.put("error", failure.toString());
            return answer;
        }
        waiting.await(TIMEOUT_MS, TimeUnit.MILLISECONDS);
        answer.put("bodies", bodies);
        return answer;
    }
}
