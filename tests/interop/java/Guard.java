package rmqha;

import java.io.IOException;
import java.util.Arrays;

/**
 * Runs MAIN_CLASS ARGS... and ends when standard input does. It needs no class of RocketMQ, so it runs any version of it.
 */
public final class Guard {
    private Guard() {
    }

    public static void main(String[] args) throws Exception {
        watchStandardInput(() -> Runtime.getRuntime().halt(137));
        String[] mainArgs = Arrays.copyOfRange(args, 1, args.length);
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) mainArgs);
    }

    static void watchStandardInput(Runnable ended) {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException gone) {
                // as good as the end
            }
            ended.run();
        }, "standard-input");
        watcher.setDaemon(true);
        watcher.start();
    }
}
