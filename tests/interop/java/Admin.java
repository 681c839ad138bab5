package rmqha;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of mqadmin, of any release: it names no class that has moved since 4.9.
 *
 * <pre>
 * NAMESRV FILE FOLDER        for each line of FILE, words separated by tabs, a file in FOLDER with what mqadmin prints
 * </pre>
 */
final class Admin {
    private Admin() {
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        int number = 0;
        for (String line : Files.readAllLines(Paths.get(args[1]))) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            PrintStream out = System.out;
            PrintStream err = System.err;
            PrintStream both = new PrintStream(bytes, true, "UTF-8");
            System.setOut(both);
            System.setErr(both);
            try {
                MQAdminStartup.main0(line.split("\t"), null);
            } catch (Throwable failure) {
                failure.printStackTrace(both);
            } finally {
                System.setOut(out);
                System.setErr(err);
            }
            Path path = Paths.get(args[2], String.valueOf(number++));
            Files.write(path, bytes.toString("UTF-8").getBytes(StandardCharsets.UTF_8));
        }
        Runtime.getRuntime().halt(0);
    }
}
