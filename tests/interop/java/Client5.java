import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The remoting client of RocketMQ 5.x. It is compiled for 5.x only.
 *
 * <pre>
 * Client5 send NAMESRV TOPIC COUNT BATCH        sends COUNT messages, BATCH at a time (1: each by itself)
 * Client5 consume NAMESRV TOPIC GROUP COUNT     prints the bodies of COUNT messages, or of those that come in two minutes, sorted
 * </pre>
 *
 * The last line that it prints is what was asked for, words with spaces between them.
 */
public final class Client5 {
    private static final long SECONDS = 120;

    private Client5() {
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("send")) {
            send(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]));
        } else {
            consume(args[1], args[2], args[3], Integer.parseInt(args[4]));
        }
        System.exit(0);
    }

    private static void send(String nameServer, String topic, int count, int batch) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("P5");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        int sent = 0;
        List<Message> waiting = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            waiting.add(new Message(topic, "tag", "key" + i, ("body" + i).getBytes(StandardCharsets.UTF_8)));
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

    private static void consume(String nameServer, String topic, String group, int count) throws Exception {
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1_000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await(SECONDS, TimeUnit.SECONDS);
        consumer.shutdown();
        List<String> sorted = new ArrayList<>(bodies);
        Collections.sort(sorted);
        System.out.println(String.join(" ", sorted));
    }
}
